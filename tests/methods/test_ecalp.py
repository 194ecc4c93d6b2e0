"""ECALP: propagation by hand, and its order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from fedloom.client.context import ClientContext
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.engine.engine import first
from fedloom.methods.ecalp import ECALP
from fedloom.parts.propagation import propagate, similarity, spread

NONE = (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
USUAL = {
    "nearest_texts": 3,
    "nearest_images": 8,
    "nearest_shots": 8,
    "gamma": 10.0,
    "share": 1.0,
    "steps": 3,
}


def test_one_image_with_text_edges_only() -> None:
    """Its degree is the sum of weights, a text's its weight: one step gives sqrt(w_c / sum w)."""
    text = torch.eye(3)
    image = F.normalize(torch.tensor([[3.0, 2.0, 1.0]]), dim=1)
    w = image[0] ** 10
    found = propagate(image, text, *NONE, **USUAL)
    assert found[0].tolist() == pytest.approx((w / w.sum()).sqrt().tolist(), rel=1e-5)
    assert int(found.argmax()) == 0


def test_the_first_image_does_not_see_later_ones_and_the_second_sees_the_first() -> None:
    g = torch.Generator().manual_seed(0)
    images, text = (
        F.normalize(torch.rand(6, 3, generator=g), dim=1),
        F.normalize(torch.rand(4, 3, generator=g), dim=1),
    )
    whole = propagate(images, text, *NONE, **USUAL)
    first = propagate(images[:3], text, *NONE, **USUAL)
    assert torch.allclose(first, whole[:3], rtol=1e-6)  # other shapes round otherwise
    backwards = propagate(images.flip(0), text, *NONE, **USUAL).flip(0)
    assert not torch.allclose(backwards, whole)


def test_two_images_by_dense_matrices() -> None:
    """The same as iterating the whole normalised graph for two images, two texts and one shot."""
    text, shot = torch.eye(3)[:2], torch.tensor([[0.0, 0.6, 0.8]])
    images = F.normalize(torch.tensor([[2.0, 1.0, 0.5], [1.0, 2.0, 1.0]]), dim=1)
    found = propagate(images, text, shot, torch.tensor([1]), **USUAL)
    wt = similarity(images, text, 3, 10.0)
    ws = similarity(images, shot, 8, 10.0, torch.ones(3))
    ww = (F.normalize(images[1:] * spread(text), dim=1) @ images[:1].T) ** 10
    big = torch.zeros(5, 5)  # images, texts, shot
    big[:2, 2:4], big[:2, 4:] = wt, ws
    big[1, 0] = ww
    labels = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    best = int(found[0].argmax())
    start = torch.zeros(2, 2)
    start[0, best] = found[0, best] / 5
    graph = big + big.T
    root = graph.sum(1).rsqrt()
    flow = root[:, None] * graph * root
    now = torch.cat([start, labels[2:]])
    for _ in range(3):
        now = torch.cat([(flow @ now)[:2], labels[2:]])
    assert torch.allclose(found[1], now[1], atol=1e-6)


def test_few_neighbours_and_negative_cosines() -> None:
    near = similarity(
        torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0], [0.6, 0.8], [1.0, 0.0]]), 1, 2.5
    )
    assert near.tolist() == [[0.0, 0.0, 1.0]]
    assert spread(torch.ones(1, 4)).tolist() == [0.25] * 4


def test_a_client_sees_its_own_shots(place: Callable[..., ClientWorker]) -> None:
    method = ECALP()
    worker = place(method)
    down = method.download(first(worker), 1)
    x, y = worker.federation.samples(1, "test")
    said = method.personal(down, Payload(), ClientContext(worker, 1, 1))(x)
    assert said.shape == (len(y), 4) and (said.argmax(1) == y).float().mean() > 0.5
    assert method.personal(down, Payload(), ClientContext(worker, 1, 1))(x[:0]).shape == (0, 4)

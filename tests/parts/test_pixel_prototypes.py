"""Prototypes where labels are masks: every pixel is a sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.method import Method
from fedloom.core.payload import Payload
from fedloom.data.dataset import Dataset
from fedloom.data.federation import Client, Federation
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.models import Task, build
from fedloom.parts.prototypes import (
    by_label,
    class_means,
    distance_to_own,
    nearest,
    own_means,
    squared_gap,
)
from fedloom.parts.rules import ByDistance

# One image of 1 x 3 pixels with two features each: (0, 1), (2, 3) and (6, 1).
FEATURES = torch.tensor([[[[0.0, 2.0, 6.0]], [[1.0, 3.0, 1.0]]]])
MASK = torch.tensor([[[0, 0, 1]]])
PROTOTYPES = torch.tensor([[0.0, 1.0], [6.0, 4.0]])
KNOWN = torch.tensor([True, True])


def test_means_and_distances_by_hand() -> None:
    means, counts = class_means(*by_label(FEATURES, MASK), 2)
    assert means.tolist() == [[1.0, 2.0], [6.0, 1.0]] and counts.tolist() == [2, 1]
    # Squared differences, mean over two features: 0, (4 + 4) / 2 and (0 + 9) / 2.
    assert distance_to_own(FEATURES, MASK, PROTOTYPES, KNOWN).item() == pytest.approx(8.5 / 3)
    assert squared_gap(FEATURES, MASK, PROTOTYPES, KNOWN).item() == pytest.approx(8.5 / 3)
    only_first = torch.tensor([True, False])
    assert distance_to_own(FEATURES, MASK, PROTOTYPES, only_first).item() == pytest.approx(4 / 3)
    assert squared_gap(FEATURES, MASK, PROTOTYPES, only_first).item() == pytest.approx(4 / 2)


def test_scores_are_a_map() -> None:
    scores = ByDistance(PROTOTYPES, KNOWN)(FEATURES, FEATURES)
    assert scores.shape == (1, 2, 1, 3)
    # Distances to (0, 1): 0, sqrt 8, 6; to (6, 4): sqrt 45, sqrt 17, 3.
    assert scores[0, :, 0].tolist() == [
        pytest.approx([0.0, -(8**0.5), -6.0]),
        pytest.approx([-(45**0.5), -(17**0.5), -3.0]),
    ]
    unknown = nearest(FEATURES, PROTOTYPES, torch.tensor([True, False]))
    assert unknown[0, 1].isneginf().all() and unknown[0, 0].isfinite().all()


def worker(method: Method) -> ClientWorker:
    """Two clients with four images of 8 x 8 pixels; bright pixels are class 1."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(8, 3, 8, 8, generator=rng)
    y = (x.mean(1) > 0.5).long()
    data = Dataset(name="lesions", x=x, y=y, classes=("skin", "lesion"), domains=("all",))
    rows, none = np.arange(8), np.arange(0)
    clients = (Client(rows[:3], none, rows[3:4]), Client(rows[4:7], none, rows[7:]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build("unet", Task((3, 8, 8), 2), width=4, depth=1)
    return ClientWorker(method, Federation(data, clients), model, Training(batch=2), seed=0)


@pytest.mark.parametrize("name", ["fedproto", "fedtgp"])
def test_methods_learn_masks_by_prototypes(name: str) -> None:
    method = make(name, {"server_epochs": 2} if name == "fedtgp" else {})
    here = worker(method)
    engine = Engine(here, Inplace(here), Schedule(rounds=2))
    engine.run()
    down = here.arrived(method.download(engine.server, 0))
    local = ClientContext(here, 0, 3)
    x, _ = here.federation.samples(0, "test")
    scores = method.personal(down, engine.store.get(0), local)(x)
    assert scores.shape == (1, 2, 8, 8) and scores.isfinite().all()
    features = here.outputs(x).features
    protos = down.tensor("prototypes") if name == "fedtgp" else _stacked(down)
    assert protos.shape == (2, 4)
    expected = -torch.cdist(features.movedim(1, -1).flatten(0, 2), protos).view(8, 8, 2)
    assert torch.allclose(scores[0].movedim(0, -1), expected, atol=1e-5)


def test_a_clients_means_are_over_all_its_pixels() -> None:
    method = make("fedproto")
    here = worker(method)
    local = ClientContext(here, 1, 1)
    local.load()
    means, counts = own_means(local)
    x, y = here.federation.samples(1)
    features = here.outputs(x).features
    for c in (0, 1):
        assert counts[c].item() == (y == c).sum().item() > 0
        wanted = features.movedim(1, -1)[y == c].mean(0)
        assert torch.allclose(means[c], wanted, atol=1e-6)


def test_a_method_that_cannot_says_so() -> None:
    with pytest.raises(FedloomError, match="one vector of features"):
        here = worker(make("fedsa"))
        here.method.init(here)


def _stacked(down: Payload) -> torch.Tensor:
    return torch.stack([down.tree("protos")[c] for c in ("0", "1")])

"""Tip-Adapter: a client's own features as keys."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from fedloom.client.context import ClientContext
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.engine.engine import first
from fedloom.methods.tip_adapter import TipAdapter
from fedloom.testing import small_world


def test_the_cache_is_the_clients_training_set(place: Callable[..., ClientWorker]) -> None:
    worker = place(TipAdapter())
    method, server = TipAdapter(), first(worker)
    head = method.cache(method.download(server, 1), Payload(), ClientContext(worker, 1, 1))
    x, y = worker.federation.samples(1)
    assert torch.allclose(head.keys, F.normalize(x, dim=1)) and torch.equal(
        head.values.argmax(1), y
    )
    f = worker.federation.data.x[:5]
    near = (
        1.17
        * torch.exp(-(1 - F.normalize(f, dim=1) @ F.normalize(x, dim=1).T))
        @ F.one_hot(y, 4).float()
    )
    assert torch.allclose(
        head(f), near + 10 * F.normalize(f, dim=1) @ server.tensor("text").T, atol=1e-4
    )


def test_a_client_without_the_highest_class_scores_all_of_them(
    place: Callable[..., ClientWorker],
) -> None:
    worker = place(TipAdapter(), small_world.federation(sizes=(8, 8), only={0: [0], 1: [0, 1]}))
    method, server = TipAdapter(), first(worker)
    for k in range(2):
        scores = method.personal(
            method.download(server, k), Payload(), ClientContext(worker, k, 1)
        )(worker.federation.data.x[:3])
        assert scores.shape == (3, 4)

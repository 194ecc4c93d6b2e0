"""FedPGA, as reconstructed: a common cache held near prototypes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from fedloom.client.context import ClientContext
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.engine.engine import first
from fedloom.methods.fedpga import FedPGA
from fedloom.parts.pooling import prototypes


def joined(worker: ClientWorker) -> Payload:
    return worker.method.join(
        first(worker),
        {k: worker.method.hello(ClientContext(worker, k, 1)) for k in range(worker.clients)},
    )


def test_keys_start_at_the_pooled_prototypes(place: Callable[..., ClientWorker]) -> None:
    server = joined(place(FedPGA()))
    assert torch.allclose(server.tree("head")["keys"], F.normalize(prototypes(server), dim=1))


@pytest.mark.parametrize("mu,far", [(0.0, True), (1e6, False)])
def test_a_strong_pull_leaves_the_prototypes(
    place: Callable[..., ClientWorker], mu: float, far: bool
) -> None:
    """SGD with lr 1e-6 and mu 1e6: whatever a step adds, the next takes away."""
    method = FedPGA(mu=mu)
    worker = place(method, optimizer="sgd", lr=1e-6 if mu else 0.1, weight_decay=0.0)
    server = joined(worker)
    up = method.client(method.download(server, 1), Payload(), ClientContext(worker, 1, 1)).upload
    moved = (up.tree("head")["keys"] - server.tree("head")["keys"]).abs().max()
    assert (moved > 1e-3) == far and (far or moved < 1e-5)


def test_a_late_client_gets_the_cache_as_it_is(place: Callable[..., ClientWorker]) -> None:
    worker = place(FedPGA())
    method, server = worker.method, first(worker)
    server = method.join(server, {0: method.hello(ClientContext(worker, 0, 1))})
    server = method.aggregate(server, iter([(0, Payload(head=Payload(keys=torch.ones(4, 64))))]))
    late = method.join(server, {1: method.hello(ClientContext(worker, 1, 2))})
    assert torch.equal(late.tree("head")["keys"], torch.ones(4, 64))

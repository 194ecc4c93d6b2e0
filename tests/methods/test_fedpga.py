"""FedPGA, as reconstructed: a common cache held near prototypes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from fedloom.client.context import Local, Site
from fedloom.core.payload import Payload
from fedloom.engine.engine import first
from fedloom.methods.fedpga import FedPGA
from fedloom.parts.textual import prototypes


def joined(site: Site) -> Payload:
    return site.method.join(
        first(site), {k: site.method.hello(Local(site, k, 1)) for k in range(site.clients)}
    )


def test_keys_start_at_the_pooled_prototypes(place: Callable[..., Site]) -> None:
    server = joined(place(FedPGA()))
    assert torch.allclose(server.tree("head")["keys"], F.normalize(prototypes(server), dim=1))


@pytest.mark.parametrize("mu,far", [(0.0, True), (1e6, False)])
def test_a_strong_pull_leaves_the_prototypes(
    place: Callable[..., Site], mu: float, far: bool
) -> None:
    """SGD with lr 1e-6 and mu 1e6: whatever a step adds, the next takes away."""
    method = FedPGA(mu=mu)
    site = place(method, optimizer="sgd", lr=1e-6 if mu else 0.1, weight_decay=0.0)
    server = joined(site)
    up = method.client(method.download(server, 1), Payload(), Local(site, 1, 1)).upload
    moved = (up.tree("head")["keys"] - server.tree("head")["keys"]).abs().max()
    assert (moved > 1e-3) == far and (far or moved < 1e-5)


def test_a_late_client_gets_the_cache_as_it_is(place: Callable[..., Site]) -> None:
    site = place(FedPGA())
    method, server = site.method, first(site)
    server = method.join(server, {0: method.hello(Local(site, 0, 1))})
    server = method.aggregate(server, iter([(0, Payload(head=Payload(keys=torch.ones(4, 64))))]))
    late = method.join(server, {1: method.hello(Local(site, 1, 2))})
    assert torch.equal(late.tree("head")["keys"], torch.ones(4, 64))

"""FDSE: the server's consensus and mixtures, and who keeps what."""

from math import exp

import pytest
import torch
from torch import nn

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.methods.fdse import FDSE
from fedloom.models import Split
from fedloom.parts.erasers import mixtures
from fedloom.parts.simplex import consensus
from fedloom.testing.small_world import federation, network, trace


def place(method: FDSE) -> ClientWorker:
    return ClientWorker(method, federation(), network(), Training(batch=8), seed=7)


def test_consensus_of_orthogonal_updates() -> None:
    """Directions count equally, lengths give the step: (2 + 4) / 2 along (0.5, 0.5)."""
    got = consensus([torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 4.0]])])
    assert got.tolist() == [pytest.approx([1.5, 1.5])]


def test_consensus_of_one_and_of_equal_updates_is_the_update() -> None:
    delta = torch.tensor([3.0, -4.0])
    for deltas in ([delta], [delta, delta, delta]):
        torch.testing.assert_close(consensus(deltas), delta)


def test_consensus_without_direction() -> None:
    zero, delta = torch.zeros(2), torch.tensor([0.0, 2.0])
    assert consensus([zero, zero]).tolist() == [0.0, 0.0]
    assert consensus([zero, delta]).tolist() == [
        0.0,
        1.0,
    ]  # the mean length, along the only direction
    assert consensus([delta, -delta]).abs().max() < 1e-6


def test_mixtures() -> None:
    """Opposite tensors at tau 0.5: a weight of 0.98201 on oneself."""
    v = torch.tensor([[[1.0, 2.0]], [[-1.0, -2.0]]])
    got = mixtures(v, 0.5)
    assert got.shape == v.shape
    torch.testing.assert_close(got, (2 * 0.98201 - 1) * v, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mixtures(v[:1], 0.5), v[:1])
    same = v[:1].repeat(3, 1, 1)
    torch.testing.assert_close(mixtures(same, 0.5), same)


def test_roles() -> None:
    worker = place(FDSE())
    assert {n.split(".")[2] for n in worker.roles.names("private")} == {"statistics"}
    server = FDSE().init(worker)
    assert all(".affine." in n or ".erase." in n for n in server.tree("eraser"))
    assert len(server.tree("eraser")) == 3 and not set(server.tree("eraser")) & set(
        server.tree("model")
    )


def test_erasers_differ_by_client_and_the_rest_is_one() -> None:
    seen = trace(FDSE())
    downs = [FDSE().download(seen.server, k).tree("model") for k in range(4)]
    for name in downs[0]:
        same = all(torch.equal(downs[0][name], d[name]) for d in downs[1:])
        assert same is not (name in seen.server.tree("eraser")), name
    assert seen.metrics[-1]["common"] is None


def test_an_absent_client_keeps_its_eraser_and_a_new_one_gets_the_first() -> None:
    one = trace(FDSE(), rounds=1)
    two = trace(FDSE(), rounds=2, dropouts={2: [3]})
    assert two.server.tree("erasers/3").equal(one.server.tree("erasers/3"))
    assert not two.server.tree("erasers/0").equal(one.server.tree("erasers/0"))
    late = trace(FDSE(), rounds=1, dropouts={1: [2]})
    first = late.server.tree("eraser")
    assert FDSE().download(late.server, 2).tree("model").only(first).equal(first)


def test_the_regulariser_starts_with_the_first_received_statistics() -> None:
    worker = place(FDSE())
    server = FDSE().init(worker)
    update = FDSE().client(
        FDSE().download(server, 0), Payload(), local := ClientContext(worker, 0, 1)
    )
    assert set(local.losses()) == {"ce"}
    server = FDSE().aggregate(server, iter([(0, update.upload)]))
    FDSE().client(FDSE().download(server, 0), update.state, local := ClientContext(worker, 0, 2))
    assert set(local.losses()) == {"ce", "consistency"} and local.losses()["consistency"] > 0
    # without statistics nothing to be consistent with, whatever the round
    FDSE(lam=0.0).client(
        FDSE().download(server, 0), update.state, local := ClientContext(worker, 0, 2)
    )
    assert set(local.losses()) == {"ce"}


def test_statistics_never_travel() -> None:
    worker = place(FDSE())
    server = FDSE().init(worker)
    update = FDSE().client(FDSE().download(server, 0), Payload(), ClientContext(worker, 0, 1))
    assert not [n for n in (*update.upload, *FDSE().download(server, 0)) if "statistics" in n]
    assert [n for n in update.state if n.endswith("statistics.running_mean")]


def test_deeper_layers_count_more() -> None:
    """Statistics of the last layer are made to be far off: e^(beta l) / sum shows in the loss."""
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU())

    def consistency(beta: float) -> float:
        method = FDSE(beta=beta)
        worker = ClientWorker(
            method,
            federation(),
            Split(layers, nn.Linear(4, 4), 4),
            Training(batch=100, steps=1),
            seed=7,
        )
        model = FDSE().download(FDSE().init(worker), 0).tree("model")
        seen = {n: t + 1 for n, t in model.items() if n.endswith("num_batches_tracked")}
        off = {"body.3.norm.running_mean": torch.full((4,), 1000.0)}
        local = ClientContext(worker, 0, 1)
        local.load(model)
        return method.train(Payload(model=model | seen | off), Payload(), local).losses[
            "consistency"
        ]

    deepest = consistency(1000.0)
    assert deepest > 1000
    assert consistency(0.0) == pytest.approx(deepest / 2, rel=1e-2)
    assert consistency(0.5) == pytest.approx(deepest * exp(0.5) / (1 + exp(0.5)), rel=1e-2)
    assert consistency(-1000.0) < deepest / 100

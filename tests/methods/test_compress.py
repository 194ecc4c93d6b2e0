"""Compressed uploads: error feedback by hand, neutral value, bytes, order of plug-ins."""

from __future__ import annotations

import pytest

from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.testing.small_world import trace, usual

W, B = "body.value", "head.value"


def test_what_was_left_out_comes_later(parabolas) -> None:
    """Both numbers feel the gradient w + b - 4, so each update is (0.4, 0.4) at first.

    One of the two is sent, the other one kept. In the second round the gradient is -3.6, and the
    kept number, 0.4 + 0.36, is the larger one.
    """
    world = parabolas([4], [1])
    server, states = world.run(make("fedavg+topk", {"top_share": 0.5}), 0.0, lr=0.1, steps=1, b=0.0)
    moved = server.tree("model")
    assert sorted([moved[W].item(), moved[B].item()]) == pytest.approx([0.0, 0.4], abs=1e-6)
    assert sorted(states[0].tensor("left_out").tolist()) == pytest.approx([0.0, 0.4], abs=1e-6)
    server, states = world.run(
        make("fedavg+topk", {"top_share": 0.5}), 0.0, lr=0.1, steps=1, b=0.0, rounds=2
    )
    moved = server.tree("model")
    assert sorted([moved[W].item(), moved[B].item()]) == pytest.approx([0.4, 0.76], abs=1e-6)
    assert sorted(states[0].tensor("left_out").tolist()) == pytest.approx([0.0, 0.36], abs=1e-6)


def test_without_feedback_nothing_is_remembered(parabolas) -> None:
    method = make("fedavg+topk", {"top_share": 0.5, "feedback": False})
    server, states = parabolas([4], [1]).run(method, 0.0, lr=0.1, steps=1, b=0.0, rounds=2)
    assert "left_out" not in states[0]
    moved = server.tree("model")
    assert sorted([moved[W].item(), moved[B].item()]) == pytest.approx([0.0, 0.76], abs=1e-6)


def test_everything_sent_is_fedavg() -> None:
    ours = trace(make("fedavg+topk", {"top_share": 1.0})).server.tree("model")
    plain = usual(make("fedavg")).server.tree("model")
    assert max(float((ours[n] - plain[n]).abs().max()) for n in plain) < 1e-6


def test_bytes_fall() -> None:
    whole = usual(make("fedavg")).metrics[-1]["bytes"]["up"]
    for spec, params in (
        ("fedavg+topk", {"top_share": 0.05}),
        ("fedavg+quantise", {"level_bits": 4}),
    ):
        seen = trace(make(spec, params), rounds=1)
        assert seen.metrics[0]["bytes"]["up"] < whole, spec
        assert seen.server.tree("model").keys() == usual(make("fedavg")).server.tree("model").keys()


def test_the_plug_in_comes_last() -> None:
    for other in ("median", "fednova", "fedadam", "attack"):
        with pytest.raises(FedloomError, match="name that plug-in last"):
            make(f"fedavg+topk+{other}")
    seen = trace(make("fedavg+median+topk", {"top_share": 0.5}), rounds=2)
    assert seen.metrics[-1]["personal"]["accuracy_mean"] > 0.3
    with pytest.raises(FedloomError, match="no models"):
        make("scaffold+topk")


def test_batchnorm_travels_as_it_is() -> None:
    ours = trace(make("fedavg+topk"), rounds=1).server.tree("model")
    plain = trace(make("fedavg"), rounds=1).server.tree("model")
    for name in ("body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"):
        assert ours.only([name]).equal(plain.only([name]))


def test_an_update_that_does_not_fit_is_refused(place) -> None:
    import torch

    method = make("fedavg+topk")
    server = method.init(place(method)).replace(round=1, seed=0)
    wrong = Payload(packed=Payload(values=torch.ones(1), places=torch.tensor([10**6])))
    with pytest.raises(FedloomError, match="do not fit"):
        method.aggregate(server, iter([(0, wrong)]))

"""FedNova: unequal work by hand, equal work is FedAvg, momentum's factors."""

from __future__ import annotations

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.methods.plugins.fednova import work
from fedloom.testing.small_world import federation, trace

W = "body.value"


def test_unequal_work(parabolas) -> None:
    """One step to 0.9 and two to 1.57: 1 + 1.75 (0.25 (-0.1) + 0.75 (0.57 / 2))."""
    world = parabolas([0, 4], [1, 3])
    options = {"lr": 0.1, "steps": 2, "stragglers": {1: [0]}, "straggler_work": 0.5}
    nova, _ = world.run(make("fedavg+fednova"), 1.0, **options)
    plain, _ = world.run(make("fedavg"), 1.0, **options)
    assert nova.tree("model")[W].item() == pytest.approx(1.3303125, abs=1e-6)
    assert plain.tree("model")[W].item() == pytest.approx(1 + 0.25 * -0.1 + 0.75 * 0.57, abs=1e-6)


def test_the_order_of_weights_and_work_does_not_matter(parabolas) -> None:
    world = parabolas([0, 4], [1, 3])
    options = {"lr": 0.1, "steps": 2, "stragglers": {1: [0]}, "straggler_work": 0.5}
    first, _ = world.run(make("fedavg+fednova+daa"), 1.0, **options)
    second, _ = world.run(make("fedavg+daa+fednova"), 1.0, **options)
    assert first.tree("model")[W].item() == pytest.approx(second.tree("model")[W].item(), abs=1e-6)


def test_equal_steps_are_fedavg() -> None:
    world = federation(sizes=(24, 24, 24, 24))
    nova = trace(make("fedavg+fednova"), world)
    plain = trace(make("fedavg"), world)
    assert [m["clients"] for m in nova.metrics] == [m["clients"] for m in plain.metrics]
    ours, theirs = nova.server.tree("model"), plain.server.tree("model")
    assert max(float((ours[n] - theirs[n]).abs().max()) for n in theirs) < 1e-6


def test_the_work_of_momentum() -> None:
    """The closed form of the paper, (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)."""
    assert work(5, 0.0) == 5
    assert work(5, 0.9) == pytest.approx((5 - 0.9 * (1 - 0.9**5) / 0.1) / 0.1)
    buffer = total = 0.0
    for _ in range(5):  # as the optimiser adds it up
        buffer = 0.9 * buffer + 1
        total += buffer
    assert work(5, 0.9) == pytest.approx(total)


def test_refusals(place) -> None:
    with pytest.raises(FedloomError, match=r"scaffold upload changes of weights \(c/\*\)"):
        make("scaffold+fednova")
    with pytest.raises(FedloomError, match="SGD"):
        make("fedavg+fednova").init(place(make("fedavg+fednova"), optimizer="adam"))
    with pytest.raises(FedloomError, match="one local training per round, there are 2"):
        trace(make("ditto+fednova"), rounds=1)


def test_uploads_of_a_stranger_without_work_are_refused() -> None:
    from fedloom.core.claims import About, flaw
    from fedloom.core.payload import Payload

    about = About(10, 10, 3)
    kind = type(make("fedavg+fednova"))
    assert flaw(kind, Payload(work=0.0), about) is not None
    assert flaw(kind, Payload(work=torch.inf), about) is not None
    assert flaw(kind, Payload(work=3.0), about) is None

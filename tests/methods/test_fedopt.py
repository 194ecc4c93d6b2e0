"""Server optimisers: two rounds worked out by hand, FedAvg as the neutral value, lost rounds.

In the world of the first tests, a round from w ends at w - 0.1 (w - 3): clients move by a tenth of
their distance to 0 and 4, and count 1 and 3.
"""

from __future__ import annotations

import math

import pytest

from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.testing.small_world import trace, usual

W = "body.value"


def after(parabolas, spec: str, rounds: int = 1, **params: float) -> float:
    server, _ = parabolas([0, 4], [1, 3]).run(
        make(spec, params), 1.0, lr=0.1, steps=1, rounds=rounds
    )
    return server.tree("model")[W].item()


def test_momentum(parabolas) -> None:
    """1 + 0.2, then the step 0.9 * 0.2 + 0.18."""
    assert after(parabolas, "fedavg+fedavgm") == pytest.approx(1.2, abs=1e-6)
    assert after(parabolas, "fedavg+fedavgm", rounds=2) == pytest.approx(1.56, abs=1e-6)


def test_a_step_size_of_the_server(parabolas) -> None:
    """1 + 0.1, then the step 0.5 (0.9 * 0.2 + 0.19)."""
    assert after(parabolas, "fedavg+fedavgm", rounds=2, outer_lr=0.5) == pytest.approx(
        1.1 + 0.185, abs=1e-6
    )


@pytest.mark.parametrize(
    ("name", "mean", "square"),
    [
        ("fedadagrad", 0.2, 1e-6 + 0.04),
        ("fedadam", 0.02, 0.99 * 1e-6 + 0.01 * 0.04),
        ("fedyogi", 0.02, 1e-6 + 0.01 * 0.04),
    ],
)
def test_first_step(parabolas, name: str, mean: float, square: float) -> None:
    """v starts at tau^2 = 1e-6, and there is no bias correction."""
    expected = 1 + 0.01 * mean / (math.sqrt(square) + 1e-3)
    assert after(parabolas, f"fedavg+{name}") == pytest.approx(expected, abs=1e-6)


def test_yogi_lets_the_square_fall_slowly(parabolas) -> None:
    """With large steps at first, Adam forgets by factors, Yogi by amounts."""
    server, _ = parabolas([0, 4], [1, 3]).run(
        make("fedavg+fedyogi", {"outer_lr": 1.0}), 1.0, lr=0.1, steps=1, rounds=2
    )
    first = 1e-6 + 0.01 * 0.04
    w = 1 + 0.02 / (math.sqrt(first) + 1e-3)
    delta = 0.1 * (3 - w)
    second = first - 0.01 * delta**2 * math.copysign(1, first - delta**2)
    assert server.tree("outer_square")[W].item() == pytest.approx(second, rel=1e-4)


def test_neutral_values_are_fedavg_to_the_last_bit() -> None:
    quiet = trace(make("fedavg+fedavgm", {"outer_momentum": 0.0}))
    assert quiet.metrics == usual(make("fedavg")).metrics
    assert quiet.server.tree("model").equal(usual(make("fedavg")).server.tree("model"))


def test_a_round_in_which_everybody_is_lost_changes_nothing(parabolas) -> None:
    world = parabolas([0, 4], [1, 3])
    lost, _ = world.run(
        make("fedavg+fedavgm"), 1.0, lr=0.1, steps=1, rounds=2, dropouts={2: [0, 1]}
    )
    assert lost.tree("model")[W].item() == pytest.approx(1.2, abs=1e-6)


def test_statistics_of_batchnorm_are_no_gradients() -> None:
    """They are the clients' mean whatever the optimiser does, so round one gives FedAvg's."""
    ours = trace(make("fedavg+fedadam"), rounds=1).server.tree("model")
    plain = trace(make("fedavg"), rounds=1).server.tree("model")
    buffers = [name for name in plain if "running" in name]
    assert len(buffers) == 2
    assert ours.only(buffers).equal(plain.only(buffers))
    assert not ours.only(["head.weight"]).equal(plain.only(["head.weight"]))


def test_two_optimisers_are_refused() -> None:
    with pytest.raises(FedloomError, match="outer_lr"):
        make("fedavg+fedavgm+fedadam")

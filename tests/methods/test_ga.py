"""FedDG-GA: weights by hand, how its gap is measured, absent clients."""

from __future__ import annotations

import pytest
import torch

from fedloom.core.lookup import make
from fedloom.core.payload import Payload


def weights(gaps: dict[int, float], round: int = 1, **params: object) -> list[float]:
    method = make("fedavg+ga", {"ga_step": 0.3, **params})
    server = Payload(
        ga_shares=torch.full((3,), 1 / 3, dtype=torch.float64),
        sizes=torch.tensor([5, 6, 7]),
        round=round,
        seed=0,
    )
    after = method.reweigh(server, {k: Payload(gap=gap) for k, gap in gaps.items()})
    return after.tensor("ga_shares").tolist()


def test_weights_by_hand() -> None:
    """Mean 2, differences -1, -1, 2: shares move by 0.1 times -1/2, -1/2, 1."""
    third = 1 / 3
    assert weights({0: 1.0, 1: 1.0, 2: 4.0}) == pytest.approx(
        [third - 0.05, third - 0.05, third + 0.1]
    )
    later = weights({0: 1.0, 1: 1.0, 2: 4.0}, round=21)
    assert later == pytest.approx([third - 0.025, third - 0.025, third + 0.05]), (
        "half of it is left"
    )
    plain = [third + 0.025, third + 0.025, third + 0.1]
    assert weights({0: 1.0, 1: 1.0, 2: 4.0}, ga_centred=False) == pytest.approx(
        [p / sum(plain) for p in plain]
    )


def test_equal_gaps_and_one_client_move_nothing() -> None:
    assert weights({0: 2.0, 1: 2.0, 2: 2.0}) == pytest.approx([1 / 3] * 3)
    assert weights({1: 2.0}) == pytest.approx([1 / 3] * 3)


def test_the_gap_is_between_the_received_and_the_last_own_model(parabolas) -> None:
    """From 1, clients of 0 and 4 end at 0.9 and 1.3; the common model is 1.1.

    Their losses are 0.9^2 / 2 and 2.7^2 / 2, those of the common model 1.1^2 / 2 and 2.9^2 / 2.
    """
    world = parabolas([0, 4], [1, 1])
    first, states = world.run(make("fedavg+ga"), 1.0, lr=0.1, steps=1)
    assert [s.number("own_loss") for s in states] == pytest.approx([0.405, 3.645], abs=1e-5)
    assert first.tensor("ga_shares").tolist() == [0.5, 0.5], "there is no gap yet"
    second, _ = world.run(make("fedavg+ga"), 1.0, lr=0.1, steps=1, rounds=2)
    # Gaps 0.2 and 0.56; 0.2 (1 - 1 / 40) / 2 for the larger one.
    move = 0.2 * (1 - 1 / 40) / 2
    assert second.tensor("ga_shares").tolist() == pytest.approx([0.5 - move, 0.5 + move], abs=1e-6)


def test_an_absent_client_keeps_its_weight(parabolas) -> None:
    server, _ = parabolas([0, 4, 4], [1, 1, 1]).run(
        make("fedavg+ga"), 1.0, lr=0.1, steps=1, rounds=2, dropouts={2: [0]}
    )
    shares = server.tensor("ga_shares").tolist()
    assert shares[0] == pytest.approx(1 / 3) and sum(shares) == pytest.approx(1)
    assert server.tensor("shares")[0] == 0, "and counts for nothing while it is away"

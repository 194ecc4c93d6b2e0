"""Who gains over training alone, and the worst tenth of the clients."""

from __future__ import annotations

import pytest

from fedloom.metrics.fairness import compared, worst_share


def test_compared_with_training_alone() -> None:
    own, alone = [0.9, 0.5, 0.4, 0.7], [0.6, 0.5, 0.6, 0.6]  # better, equal, worse, better
    assert compared(own, alone) == pytest.approx(
        {"share": 0.5, "mean_gain": (0.3 + 0 - 0.2 + 0.1) / 4}
    )


def test_compared_leaves_out_clients_without_a_number() -> None:
    assert compared([0.9, None, 0.4, None], [0.6, 0.5, None, None]) == pytest.approx(
        {"share": 1.0, "mean_gain": 0.3}
    )
    assert compared([0.0, 0.2], [0.0, 0.0]) == pytest.approx(
        {"share": 0.5, "mean_gain": 0.1}
    )  # 0 is a number
    assert compared([None], [0.5]) is None
    assert compared([], []) is None


def test_compared_wants_the_same_clients() -> None:
    with pytest.raises(ValueError, match="same clients"):
        compared([0.5], [0.5, 0.6])


def test_the_worst_tenth_of_the_clients() -> None:
    assert worst_share([0.5, None, 0.3]) == 0.3  # at least one
    assert worst_share([i / 20 for i in range(20)]) == pytest.approx((0 + 1 / 20) / 2)
    assert worst_share([i / 21 for i in range(21)]) == pytest.approx((0 + 1 / 21 + 2 / 21) / 3)
    assert worst_share([None]) is None

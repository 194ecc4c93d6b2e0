"""The gain of one method over another: its mean, its interval, and who has it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from fedloom.metrics.gains import gain

HALF = {0: [0.5, 0.5], 1: [0.5, 0.5], 2: [0.5, 0.5]}


def test_the_interval_is_students_over_the_means_of_seeds() -> None:
    ours = {0: [0.62, 0.58], 1: [0.66, 0.62], 2: [0.58, 0.54]}
    found = gain(ours, HALF)
    means = [np.mean(accuracies) - 0.5 for accuracies in ours.values()]
    expected = ttest_1samp(means, 0)
    interval = expected.confidence_interval(0.95)
    assert found is not None
    assert found.mean == pytest.approx(np.mean(means))
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.clients == pytest.approx((0.12, 0.08))
    assert (found.seeds, found.pairs) == (3, 6)


def test_many_clients_of_few_seeds_are_not_many_observations() -> None:
    """Fifty clients that rise and fall together with the seed count as one."""
    shift = {0: 0.1, 1: -0.08, 2: 0.06}
    ours = {seed: [0.5 + value] * 50 for seed, value in shift.items()}
    alone = {seed: [0.5] * 50 for seed in shift}
    found = gain(ours, alone)
    assert found is not None and found.p is not None
    assert found.p > 0.5
    assert not found.won


def test_seeds_that_agree_by_chance_do_not_make_sure() -> None:
    ours = {0: [0.9, 0.11], 1: [0.11, 0.9], 2: [0.5, 0.51]}
    found = gain(ours, HALF)
    assert found is not None and found.p is not None
    assert found.mean == pytest.approx(0.005)
    assert found.p > 0.9


def test_clients_that_differ_are_no_doubt() -> None:
    """One client gains much and one loses a little, with every seed alike: the mean is sure."""
    ours = {seed: [0.8, 0.45 + 0.001 * seed] for seed in range(3)}
    found = gain(ours, HALF)
    assert found is not None
    assert found.won


def test_one_seed_proves_nothing() -> None:
    found = gain({0: [0.9, 0.9]}, {0: [0.1, 0.1]})
    assert found is not None
    assert (found.low, found.high, found.p) == (None, None, None)
    assert not found.won and not found.lost


def test_clients_without_a_value_and_unshared_seeds_do_not_count() -> None:
    found = gain({0: [0.7, None], 1: [0.9, 0.9]}, {0: [0.5, 0.5], 2: [0.1, 0.1]})
    assert found is not None
    assert (found.seeds, found.pairs) == (1, 1)
    assert found.clients == (pytest.approx(0.2), None)
    assert gain({0: [0.5]}, {1: [0.5]}) is None


def test_equal_methods_differ_in_nothing() -> None:
    found = gain(HALF, HALF)
    assert found is not None
    assert (found.mean, found.p) == (0.0, 1.0)
    assert not found.won and not found.lost

"""Paired tests on made-up results whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.metrics.registry import METRICS
from fedloom.report.statistics import holm, paired_tests, sentence, wilcoxon_p


def results(**methods: float) -> dict[str, dict[int, list[float | None]]]:
    """Three seeds of eight clients; each method lies a constant above the same noise."""
    rng = np.random.default_rng(0)
    noise = {seed: rng.uniform(0.4, 0.6, 8) for seed in (0, 1, 2)}
    return {
        name: {s: (n + gain).tolist() for s, n in noise.items()} for name, gain in methods.items()
    }


def test_wilcoxon_by_hand() -> None:
    # Eight gains of different size, all positive: of the 2^8 signs two are as extreme.
    assert wilcoxon_p(np.arange(1, 9) / 100) == pytest.approx(2 / 2**8)
    # The smallest of the eight is negative: rank sums 1 and 35; 2 subsets have sum <= 1, on both
    # sides.
    assert wilcoxon_p(np.array([-1, 2, 3, 4, 5, 6, 7, 8]) / 100) == pytest.approx(4 / 2**8)
    assert wilcoxon_p(np.zeros(5)) == 1.0
    assert wilcoxon_p(np.array([0.1, -0.1])) == 1.0


def test_wilcoxon_with_ties_is_scipys() -> None:
    from scipy.stats import wilcoxon

    # Midranks 1.5, 1.5 and 3; signs with a rank sum of 1.5 or less at one end: none, one, other.
    assert wilcoxon_p(np.array([0.1, -0.1, 0.2])) == pytest.approx(2 * 3 / 2**3)
    rng = np.random.default_rng(0)
    for size in (3, 6, 9):
        differences = rng.integers(-3, 4, size) / 8
        expected = wilcoxon(differences, zero_method="pratt").pvalue
        assert wilcoxon_p(differences) == pytest.approx(expected, abs=1e-12)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx(
        [0.03, 0.06, 0.06]
    )  # the largest is lifted to the one before it
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_identical_methods_do_not_differ() -> None:
    (test,) = paired_tests(results(a=0.0, b=0.0))
    assert test["p"] == test["p_holm"] == 1.0 and (test["wins"], test["ties"], test["pairs"]) == (
        0,
        24,
        24,
    )
    assert test["sentence"] == "No significant difference between a and b: all 24 pairs are equal."


def test_noise_alone_is_not_significant() -> None:
    rng = np.random.default_rng(1)
    made = {name: {s: rng.uniform(0, 1, 10).tolist() for s in range(3)} for name in "abc"}
    tests = paired_tests(made)
    assert len(tests) == 3
    assert all(
        t["p_holm"] > 0.05 and t["sentence"].startswith("No significant difference between")
        for t in tests
    )


def test_a_clear_winner_is_named_first_whatever_the_order() -> None:
    for made in (results(loser=0.0, winner=0.1), results(winner=0.1, loser=0.0)):
        (test,) = paired_tests(made)
        assert (test["a"], test["b"], test["wins"]) == ("winner", "loser", 24)
        assert test["p_holm"] < 0.001 and test["gap"] == pytest.approx(0.1)
        assert test["sentence"].startswith(
            "winner beats loser by 10.0 points, better in 24 of 24 pairs"
        )


def test_holm_spans_all_pairs_of_methods() -> None:
    tests = paired_tests(results(a=0.0, b=0.02, c=0.05))
    assert [t["p_holm"] for t in tests] == pytest.approx(holm([t["p"] for t in tests]))
    assert all(t["p_holm"] > t["p"] for t in tests)


def test_one_seed_proves_nothing() -> None:
    made = {name: {0: own[0]} for name, own in results(a=0.0, b=0.1).items()}
    (test,) = paired_tests(made)
    assert test["p"] is None and test["p_holm"] is None and test["seeds"] == 1
    assert test["sentence"] == (
        "b is 10.0 points above a with one seed, better for 8 of 8 clients; "
        "one seed proves nothing."
    )


def test_only_what_both_have_is_paired() -> None:
    made = {
        "a": {0: [0.5, None, 0.6], 1: [0.5, 0.5, 0.5], 3: [0.1]},
        "b": {0: [0.4, 0.4, None], 1: [0.4, 0.4, 0.4]},
    }
    (test,) = paired_tests(made)
    assert (test["pairs"], test["seeds"]) == (4, 2)
    assert paired_tests({"a": {0: [0.5]}, "b": {1: [0.5]}}) == []
    assert paired_tests({"a": {0: [0.5]}, "b": {0: [0.5, 0.6]}}) == []  # other clients


def test_a_tie_with_one_seed_is_called_a_tie() -> None:
    equal = {"fedavg": {0: [0.5, 0.6]}, "fedprox": {0: [0.5, 0.6]}}
    (test,) = paired_tests(equal)
    assert test["sentence"] == (
        "fedavg and fedprox are equal for all 2 clients with one seed; one seed proves nothing."
    )
    level = {"fedavg": {0: [0.5, 0.6, 0.7]}, "fedprox": {0: [0.6, 0.5, 0.7001]}}
    (test,) = paired_tests(level)
    assert test["sentence"] == (
        "fedprox and fedavg are level with one seed, fedprox better for 2 of 3 clients and worse "
        "for 1; one seed proves nothing."
    )


def test_rounding_does_not_make_a_negative_lead() -> None:
    # The means are equal but for the last bit, and the mean of the gaps is below zero.
    test = {"a": "a", "b": "b", "pairs": 4, "wins": 2, "ties": 0, "gap": -1e-17, "p": None}
    assert sentence(test, METRICS.find("accuracy")) == (
        "a and b are level with one seed, a better for 2 of 4 clients and worse for 2; one seed "
        "proves nothing."
    )


def test_a_higher_mean_does_not_beat_what_wins_nearly_everywhere() -> None:
    # Two lucky clients lift the mean of a; b is better for all others.
    a = {seed: [0.9, *[0.5] * 11] for seed in (0, 1)}
    b = {seed: [0.5, *(0.501 + 0.001 * k for k in range(11))] for seed in (0, 1)}
    (test,) = paired_tests({"a": a, "b": b})
    assert (test["a"], test["wins"], test["pairs"]) == ("a", 2, 24) and test["p_holm"] < 0.05
    assert "beats" not in test["sentence"]
    assert test["sentence"].endswith(
        "without a clear winner: the mean of a is 2.8 points higher, and a is better in 2 of 24 "
        "pairs of seed and client and worse in 22."
    )


def test_a_significant_gap_that_prints_as_zero_is_no_win() -> None:
    low = {seed: [0.5 + 0.01 * k for k in range(12)] for seed in (0, 1)}
    high = {seed: [value + 1e-5 * (k + 1) for k, value in enumerate(low[seed])] for seed in low}
    (test,) = paired_tests({"low": low, "high": high})
    assert test["p_holm"] < 0.05 and test["wins"] == 24
    assert "their means are level" in test["sentence"] and "beats" not in test["sentence"]

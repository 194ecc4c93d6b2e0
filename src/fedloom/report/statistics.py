"""Tests between methods, paired by seed and client.

A pair is a client of one seed with its value of the headline metric under two methods. Wilcoxon's
signed-rank test asks whether the differences lie round zero; Holm's correction keeps the chance of
any false alarm among all tests below `ALPHA`. Clients of one seed share a model and a split, so
pairs are not quite independent and p is on the optimistic side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from ..metrics.gains import Accuracies, Pairs, pairs_of
from ..metrics.registry import DEFAULT, Metric, headline

ALPHA = 0.05
ENUMERATED = 13  # up to this many pairs, with ties, p comes from all combinations of signs


def wilcoxon_p(differences: np.ndarray) -> float:
    """The two-sided p of Wilcoxon's signed-rank test; 1 if nothing differs.

    Zeros take part in the ranking (Pratt).
    """
    if not np.any(differences):
        return 1.0
    from scipy.stats import wilcoxon  # takes half a second to import, and many pages have no test

    # Equal differences come from different divisions: without rounding they would not be ties.
    rounded = np.round(differences, 12)
    tied = len(np.unique(np.abs(rounded))) < len(rounded) or not rounded.all()
    if tied and len(rounded) <= ENUMERATED:
        return _p_of_all_signs(rounded)
    return float(wilcoxon(rounded, zero_method="pratt").pvalue)


def _p_of_all_signs(differences: np.ndarray) -> float:
    """What `wilcoxon` computes for few differences with ties, but for all signs at once.

    It calls Python for each of the 2^n combinations, which takes half a second for 13 pairs, and a
    page may have dozens of tests.
    """
    from scipy.stats import permutation_test, rankdata

    ranks = rankdata(np.abs(differences))

    def positive_ranks(values: np.ndarray, axis: int) -> np.ndarray:
        sums: np.ndarray = np.sum(ranks * (values > 0), axis=axis)
        return sums

    result = permutation_test(
        (differences,),
        positive_ranks,
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
        axis=-1,
    )
    return float(result.pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values that may be compared with the level as they are."""
    corrected = [0.0] * len(ps)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[i]))
        corrected[i] = largest
    return corrected


def paired_tests(results: Mapping[str, Accuracies], metric: str = DEFAULT) -> list[dict[str, Any]]:
    """Every two methods against each other, over the seeds and clients that both have.

    Each entry names the method with the better mean first, and `gap` is how much better it is,
    whether more or less of the metric is better. Pairs of one seed alone are counted but
    not tested: what a different seed would change cannot be seen in them.
    """
    judge = headline(metric)
    tests: list[dict[str, Any]] = []
    for a, b in combinations(results, 2):
        pairs = pairs_of(results[a], results[b])
        if pairs:
            tests.append(_compared(a, b, pairs, judge.higher))
    tested = [test for test in tests if test["p"] is not None]
    for test, p in zip(tested, holm([test["p"] for test in tested]), strict=True):
        test["p_holm"] = p
    for test in tests:
        test["sentence"] = sentence(test, judge)
    return tests


def _compared(a: str, b: str, pairs: Pairs, higher: bool) -> dict[str, Any]:
    """Two methods over their pairs, by seed; `p_holm` is filled in once all tests are known."""
    table = np.concatenate(list(pairs.values()))[:, 1:]  # without the clients' numbers
    if not higher:
        table = -table
    if table[:, 0].mean() < table[:, 1].mean():
        a, b = b, a
        table = table[:, ::-1]
    gaps = table[:, 0] - table[:, 1]
    p = None
    if len(pairs) > 1:
        p = wilcoxon_p(gaps)
    return {
        "a": a,
        "b": b,
        "seeds": len(pairs),
        "pairs": len(gaps),
        "wins": int((gaps > 0).sum()),
        "ties": int((gaps == 0).sum()),
        "gap": float(gaps.mean()),
        "p": p,
        "p_holm": None,
    }


def sentence(test: Mapping[str, Any], metric: Metric) -> str:
    """A test's outcome in words."""
    if test["p"] is None:
        return _untested(test, metric)
    a, b, pairs, wins = test["a"], test["b"], test["pairs"], test["wins"]
    losses = pairs - wins - test["ties"]
    p = f"p = {test['p_holm']:.2g} after Holm's correction"
    unit = "pairs of seed and client"
    if pairs == test["seeds"]:  # the means of clients that are not listed
        unit = "seeds"
    better = f"better in {wins} of {pairs} {unit}"
    if wins == losses == 0:
        return f"No significant difference between {a} and {b}: all {pairs} pairs are equal."
    if test["p_holm"] >= ALPHA:
        return f"No significant difference between {a} and {b} ({p}): {a} is {better}."
    # The test looks at ranks, so it may favour the method with the worse mean.
    if wins > losses and not level(test["gap"], metric):
        gap = amount(test["gap"], metric)
        return f"{a} beats {b} by {gap}{_named(metric)}, {better} ({p})."
    return (
        f"{a} and {b} differ significantly ({p}), without a clear winner: {_means(test, metric)}, "
        f"and {a} is {better} and worse in {losses}."
    )


def _untested(test: Mapping[str, Any], metric: Metric) -> str:
    """The outcome with one seed, in words."""
    a, b, pairs, wins = test["a"], test["b"], test["pairs"], test["wins"]
    losses = pairs - wins - test["ties"]
    if wins == losses == 0:
        outcome = f"{a} and {b} are equal for all {pairs} clients with one seed"
    elif level(test["gap"], metric):
        outcome = (
            f"{a} and {b} are level with one seed, {a} better for {wins} of {pairs} clients and "
            f"worse for {losses}"
        )
    else:
        gap = amount(test["gap"], metric)
        where = f"{a} is {gap} {side(metric)} {b}{_named(metric)} with one seed"
        outcome = f"{where}, better for {wins} of {pairs} clients"
    return f"{outcome}; one seed proves nothing."


def amount(gap: float, metric: Metric) -> str:
    """The size of a difference, in points if the metric is a share."""
    shown = metric.shown(abs(gap))
    if metric.unit == "percent":
        return f"{shown} points"
    return shown


def level(gap: float, metric: Metric) -> bool:
    """Whether a difference is none at the precision that is printed."""
    return metric.shown(abs(gap)) == metric.shown(0.0)


def side(metric: Metric) -> str:
    """On which side of a worse value a better one lies."""
    if metric.higher:
        return "above"
    return "below"


def _named(metric: Metric) -> str:
    """What a difference is in, unless it is accuracy."""
    if metric.name == DEFAULT:
        return ""
    return f" in {metric.in_a_sentence}"


def _means(test: Mapping[str, Any], metric: Metric) -> str:
    if level(test["gap"], metric):
        return "their means are level"
    way = "lower"
    if metric.higher:
        way = "higher"
    return f"the mean of {test['a']} is {amount(test['gap'], metric)} {way}{_named(metric)}"

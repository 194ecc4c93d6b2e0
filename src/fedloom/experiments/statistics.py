"""Tests between methods, paired by seed and client.

A pair is a client of one seed with its accuracy under two methods. Wilcoxon's signed-rank test asks
whether the differences lie round zero; Holm's correction keeps the chance of any false alarm among
all tests below `ALPHA`. Clients of one seed share a model and a split, so pairs are not quite
independent and p is on the optimistic side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

ALPHA = 0.05
Accuracies = Mapping[int, Sequence[float | None]]  # seed -> each client's accuracy


def wilcoxon_p(differences: np.ndarray) -> float:
    """The two-sided p of Wilcoxon's signed-rank test; 1 if nothing differs.

    Zeros take part in the ranking (Pratt).
    """
    if not np.any(differences):
        return 1.0
    # Equal differences come from different divisions: without rounding they would not be ties.
    return float(wilcoxon(np.round(differences, 12), zero_method="pratt").pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values that may be compared with the level as they are."""
    corrected = [0.0] * len(ps)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[i]))
        corrected[i] = largest
    return corrected


def paired_tests(results: Mapping[str, Accuracies]) -> list[dict[str, Any]]:
    """Every two methods against each other, over the seeds and clients that both have.

    Each entry names the method with the higher mean first. Pairs of one seed alone are counted but
    not tested: what a different seed would change cannot be seen in them.
    """
    tests: list[dict[str, Any]] = []
    for a, b in combinations(results, 2):
        pairs = _pairs(results[a], results[b])
        if pairs:
            tests.append(_compared(a, b, pairs))
    tested = [test for test in tests if test["p"] is not None]
    for test, p in zip(tested, holm([test["p"] for test in tested]), strict=True):
        test["p_holm"] = p
    for test in tests:
        test["sentence"] = sentence(test)
    return tests


def _compared(a: str, b: str, pairs: Mapping[int, list[tuple[float, float]]]) -> dict[str, Any]:
    """Two methods over their pairs, by seed; `p_holm` is filled in once all tests are known."""
    table = np.concatenate(list(pairs.values()))
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


def sentence(test: Mapping[str, Any]) -> str:
    """A test's outcome in words."""
    if test["p"] is None:
        return _untested(test)
    a, b, pairs, wins = test["a"], test["b"], test["pairs"], test["wins"]
    losses = pairs - wins - test["ties"]
    p = f"p = {test['p_holm']:.2g} after Holm's correction"
    better = f"better in {wins} of {pairs} pairs of seed and client"
    if wins == losses == 0:
        return f"No significant difference between {a} and {b}: all {pairs} pairs are equal."
    if test["p_holm"] >= ALPHA:
        return f"No significant difference between {a} and {b} ({p}): {a} is {better}."
    # The test looks at ranks, so it may favour the method with the lower mean.
    if wins > losses and not _level(test):
        return f"{a} beats {b} by {_points(test)}, {better} ({p})."
    return (
        f"{a} and {b} differ significantly ({p}), without a clear winner: {_means(test)}, "
        f"and {a} is {better} and worse in {losses}."
    )


def _untested(test: Mapping[str, Any]) -> str:
    """The outcome with one seed, in words."""
    a, b, pairs, wins = test["a"], test["b"], test["pairs"], test["wins"]
    losses = pairs - wins - test["ties"]
    if wins == losses == 0:
        outcome = f"{a} and {b} are equal for all {pairs} clients with one seed"
    elif _level(test):
        outcome = (
            f"{a} and {b} are level with one seed, {a} better for {wins} of {pairs} clients and "
            f"worse for {losses}"
        )
    else:
        above = f"{a} is {_points(test)} above {b} with one seed"
        outcome = f"{above}, better for {wins} of {pairs} clients"
    return f"{outcome}; one seed proves nothing."


def _points(test: Mapping[str, Any]) -> str:
    return f"{100 * test['gap']:.1f} points"


def _means(test: Mapping[str, Any]) -> str:
    if _level(test):
        return "their means are level"
    return f"the mean of {test['a']} is {_points(test)} higher"


def _level(test: Mapping[str, Any]) -> bool:
    """Whether the means are equal at the precision that is printed."""
    return f"{abs(100 * test['gap']):.1f}" == "0.0"


def _pairs(a: Accuracies, b: Accuracies) -> dict[int, list[tuple[float, float]]]:
    """By seed, the accuracies of the clients that have one under both methods."""
    pairs = {}
    for seed in a:
        if seed not in b or len(a[seed]) != len(b[seed]):
            continue
        rows = []
        for x, y in zip(a[seed], b[seed], strict=True):
            if x is not None and y is not None:
                rows.append((x, y))
        if rows:
            pairs[seed] = rows
    return pairs

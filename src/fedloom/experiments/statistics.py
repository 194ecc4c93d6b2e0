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
    corrected, largest = [0.0] * len(ps), 0.0
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
    for names in combinations(results, 2):
        pairs = _pairs(*(results[name] for name in names))
        if not pairs:
            continue
        table = np.array([pair for rows in pairs.values() for pair in rows])
        a, b = names
        if table[:, 0].mean() < table[:, 1].mean():
            a, b, table = b, a, table[:, ::-1]
        gaps = table[:, 0] - table[:, 1]
        tests.append(
            {
                "a": a,
                "b": b,
                "seeds": len(pairs),
                "pairs": len(gaps),
                "wins": int((gaps > 0).sum()),
                "ties": int((gaps == 0).sum()),
                "gap": float(gaps.mean()),
                "p": wilcoxon_p(gaps) if len(pairs) > 1 else None,
            }
        )
    tested = [t for t in tests if t["p"] is not None]
    for test, p in zip(tested, holm([t["p"] for t in tested]), strict=True):
        test["p_holm"] = p
    for test in tests:
        test.setdefault("p_holm", None)
        test["sentence"] = sentence(test)
    return tests


def sentence(test: Mapping[str, Any]) -> str:
    """A test's outcome in words."""
    a, b, points = test["a"], test["b"], f"{100 * test['gap']:.1f} points"
    better = f"better for {test['wins']} of {test['pairs']} clients"
    if test["p"] is None:
        return f"{a} is {points} above {b} with one seed, {better}; one seed proves nothing."
    p = f"p = {test['p_holm']:.2g} after Holm's correction"
    better = f"better in {test['wins']} of {test['pairs']} pairs of seed and client"
    if test["p_holm"] < ALPHA and test["gap"] > 0:
        return f"{a} beats {b} by {points}, {better} ({p})."
    if test["wins"] == test["pairs"] - test["wins"] - test["ties"] == 0:
        return (
            f"No significant difference between {a} and {b}: all {test['pairs']} pairs are equal."
        )
    return f"No significant difference between {a} and {b} ({p}): {a} is {better}."


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

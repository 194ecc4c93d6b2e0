"""How well a method's groups of clients match their domains, which only the evaluation sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .distribution import Coded


def clustering_accuracy(
    groups: Sequence[int] | np.ndarray, domains: Sequence[str | None]
) -> float | None:
    """The share of clients whose domain is the most frequent one in their group.

    A negative group is none: such clients, and those of several domains, do not count. None if
    nobody is left.
    """
    places = Coded.of(domains).places
    found = np.array(groups, dtype=np.int64)
    if len(found) != len(places):
        raise ValueError(f"{len(found)} groups for {len(places)} clients")
    counted = (found >= 0) & (places >= 0)
    if not counted.any():
        return None
    number = int(places.max()) + 1
    pairs, count = np.unique(found[counted] * number + places[counted], return_counts=True)
    _, starts = np.unique(pairs // number, return_index=True)
    right = int(np.maximum.reduceat(count, starts).sum())
    return right / int(counted.sum())

"""How well groups of clients that a method found fit their domains, which only the evaluation knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def clustering_accuracy(groups: Sequence[int], domains: Sequence[str | None]) -> float | None:
    """The share of clients whose domain is the most frequent one in their group.

    A negative group is none: such clients, and those of several domains, do not count. None if nobody is left.
    """
    known = [(g, d) for g, d in zip(groups, domains, strict=True) if g >= 0 and d is not None]
    if not known:
        return None
    right = sum(max(Counter(d for h, d in known if h == g).values()) for g in {g for g, _ in known})
    return right / len(known)

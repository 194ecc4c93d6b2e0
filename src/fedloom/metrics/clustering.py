"""How well a method's groups of clients match their domains, which only the evaluation sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def clustering_accuracy(groups: Sequence[int], domains: Sequence[str | None]) -> float | None:
    """The share of clients whose domain is the most frequent one in their group.

    A negative group is none: such clients, and those of several domains, do not count. None if
    nobody is left.
    """
    members: dict[int, Counter[str]] = {}
    for group, domain in zip(groups, domains, strict=True):
        if group >= 0 and domain is not None:
            members.setdefault(group, Counter())[domain] += 1
    if not members:
        return None
    clients, right = 0, 0
    for count in members.values():
        clients += count.total()
        right += max(count.values())
    return right / clients

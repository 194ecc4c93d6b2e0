"""Groups against domains."""

from __future__ import annotations

import pytest

from fedloom.metrics.clustering import clustering_accuracy

DOMAINS = ["m", "m", "m", "u", "u", "s"]


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        ([0, 0, 0, 1, 1, 2], 1.0),
        ([2, 2, 2, 0, 0, 1], 1.0),  # any numbering
        ([0, 1, 2, 3, 4, 5], 1.0),  # everybody alone
        ([0, 0, 3, 1, 1, 2], 1.0),  # a domain in two pure groups
        ([0, 0, 0, 0, 0, 0], 0.5),  # all together: the largest domain's share
        ([0, 0, 0, 1, 1, 1], 5 / 6),
        ([0, 0, 0, -1, -1, 0], 0.75),  # two were never heard of
    ],
)
def test_by_hand(groups: list[int], wanted: float) -> None:
    assert clustering_accuracy(groups, DOMAINS) == pytest.approx(wanted)


def test_the_papers_shares_for_digit_five() -> None:
    """With two clients of each of five types, three clusters fit six of ten at most, four eight."""
    domains = [d for d in "abcde" for _ in range(2)]
    assert clustering_accuracy([0, 0, 1, 1, 2, 2, 2, 2, 2, 2], domains) == pytest.approx(0.6)
    assert clustering_accuracy([0, 0, 1, 1, 2, 2, 3, 3, 3, 3], domains) == pytest.approx(0.8)


def test_nothing_to_compare() -> None:
    assert clustering_accuracy([-1, 0], ["a", None]) is None

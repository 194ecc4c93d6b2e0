"""FINCH on points whose clusters can be seen."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.parts.finch import cluster_means, finch


def at(*degrees: float) -> np.ndarray:
    """Unit vectors at these angles, at odd lengths: only directions count."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], 1) * np.arange(1, len(degrees) + 1)[:, None]


def sets(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == c).tolist()) for c in np.unique(labels)}


def test_two_tight_pairs() -> None:
    partitions = finch(at(0, 2, 90, 93))
    assert [sets(p) for p in partitions] == [
        {frozenset({0, 1}), frozenset({2, 3})}
    ]  # the single cluster is dropped


def test_two_or_three_points_are_one_cluster() -> None:
    for points in (at(0, 90), at(0, 5, 90)):
        assert [p.max() for p in finch(points)] == [0]


def test_points_that_share_a_neighbour_are_together() -> None:
    assert sets(finch(at(0, 10, 20.5, 90, 91))[0]) == {frozenset({0, 1, 2}), frozenset({3, 4})}


def test_partitions_get_coarser() -> None:
    """Four pairs in two groups: first four clusters, then two."""
    partitions = finch(at(0, 1, 10, 11.5, 90, 91, 100, 101.5))
    assert [len(np.unique(p)) for p in partitions] == [4, 2]
    assert sets(partitions[1]) == {frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})}


def test_one_point_and_equal_points() -> None:
    assert finch(at(30))[0].tolist() == [0]
    assert finch(np.ones((6, 3), dtype=np.float32))[0].max() < 3


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 15), st.integers(0, 1000))
def test_every_cluster_has_two_points_and_coarser_ones_are_unions(n: int, seed: int) -> None:
    partitions = finch(np.random.default_rng(seed).normal(size=(n, 3)))
    assert 1 <= len(np.unique(partitions[0])) <= n // 2
    for fine, coarse in pairwise(partitions):
        assert len(np.unique(coarse)) < len(np.unique(fine))
        assert all(any(a <= b for b in sets(coarse)) for a in sets(fine))


def test_cluster_means_are_plain_means() -> None:
    points = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 9.0]])
    rows = sorted(cluster_means(points).tolist())
    assert rows == [pytest.approx([0.0, 4.0]), pytest.approx([2.0, 0.0])]

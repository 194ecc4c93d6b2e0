"""The simplex: projections and least norms against brute force."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedloom.parts.simplex import least_norm, project

numbers = st.floats(-10, 10, allow_nan=False, width=32)


def test_projection_by_hand() -> None:
    assert project(torch.tensor([2.0, 0.9])).tolist() == [
        1.0,
        0.0,
    ]  # an off-by-one in the prefix sum gives 1.05
    assert project(torch.tensor([0.6, 0.8])).tolist() == pytest.approx([0.4, 0.6])
    assert project(torch.tensor([0.2, 0.8])).tolist() == pytest.approx([0.2, 0.8])
    assert project(torch.tensor([7.0])).tolist() == [1.0]


@given(st.lists(numbers, min_size=1, max_size=6))
def test_projection_is_the_nearest_point(values: list[float]) -> None:
    v = torch.tensor(values, dtype=torch.float64)
    p = project(v)
    assert p.sum().item() == pytest.approx(1, abs=1e-9) and (p >= 0).all()
    # the nearest point p of a convex set has (v - p) . (corner - p) <= 0 for all corners
    assert ((torch.eye(len(v), dtype=torch.float64) - p) @ (v - p) <= 1e-8).all()


def optimal(gram: Tensor, weights: Tensor) -> bool:
    """On the simplex, and the gradient is least, and equal, where there is weight."""
    gradient = gram.double() @ weights
    least = weights @ gradient - 1e-7 * max(1.0, gram.abs().max().item())
    inside = (weights >= 0).all() and abs(weights.sum().item() - 1) < 1e-9
    return bool(inside and (gradient >= least).all())


def test_least_norm_by_hand() -> None:
    assert least_norm(torch.eye(2)).tolist() == pytest.approx([0.5, 0.5])  # orthonormal directions
    assert least_norm(torch.tensor([[4.0, 0.0], [0.0, 1.0]])).tolist() == pytest.approx([0.2, 0.8])
    assert least_norm(torch.tensor([[1.0, -1.0], [-1.0, 1.0]])).tolist() == pytest.approx(
        [0.5, 0.5]
    )  # opposite
    assert least_norm(torch.tensor([[1.0, 2.0], [2.0, 4.0]])).tolist() == pytest.approx(
        [1.0, 0.0]
    )  # a corner
    assert least_norm(torch.ones(1, 1)).tolist() == [1.0]


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**20), st.booleans())
def test_least_norm_is_optimal(n: int, dims: int, seed: int, twins: bool) -> None:
    """So it is with more vectors than dimensions or equal vectors, where weights are not unique."""
    u = torch.randn(n, dims, generator=torch.Generator().manual_seed(seed))
    u = torch.cat([u, u[:3]]) if twins else u
    gram = u @ u.T
    assert optimal(gram, least_norm(gram))


def test_least_norm_of_equal_vectors_is_on_the_simplex() -> None:
    gram = torch.ones(20, 20)
    assert optimal(gram, least_norm(gram))

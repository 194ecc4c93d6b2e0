"""The maximum mean discrepancy."""

import pytest
import torch

from fedloom.parts.mmd import squared_mmd


def test_a_batch_with_itself_is_zero_and_apart_is_more() -> None:
    a = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    assert squared_mmd(a, a).item() == pytest.approx(0.0, abs=1e-6)
    assert 0 < squared_mmd(a, a + 0.5) < squared_mmd(a, a + 3.0)


def test_two_points_by_hand() -> None:
    """Points 2 apart: the mean squared distance is 4, the kernels are exp(-1/s), s = 1/4 ... 4."""
    kernels = sum(torch.tensor(-1 / s).exp().item() for s in (0.25, 0.5, 1.0, 2.0, 4.0))
    value = squared_mmd(torch.tensor([[0.0]]), torch.tensor([[2.0]]))
    assert value.item() == pytest.approx(2 * 5 - 2 * kernels, abs=1e-5)


def test_gradient_draws_batches_together_and_equal_points_are_harmless() -> None:
    a = torch.tensor([[0.0], [1.0]], requires_grad=True)
    squared_mmd(a, torch.tensor([[3.0], [4.0]])).backward()
    assert a.grad.sum() < 0
    same = torch.ones(3, 2, requires_grad=True)
    squared_mmd(same, torch.ones(3, 2)).backward()
    assert torch.isfinite(same.grad).all()

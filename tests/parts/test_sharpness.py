"""Sharpness: steps uphill, by hand."""

import pytest
import torch

from fedloom.core.tree import Tree
from fedloom.parts.sharpness import uphill, uphill_adaptive


def test_the_norm_is_over_all_tensors_together() -> None:
    g = Tree({"a.weight": torch.tensor([3.0]), "a.bias": torch.tensor([4.0])})
    up = uphill(g, 0.5)
    assert [up["a.weight"].item(), up["a.bias"].item()] == pytest.approx(
        [0.3, 0.4]
    )  # per tensor: 0.5 and 0.5


def test_no_gradient_no_step() -> None:
    up = uphill(Tree({"w": torch.zeros(3)}), 0.5)
    assert up["w"].tolist() == [0.0, 0.0, 0.0]


def test_adaptive_scales_weights_and_leaves_all_else() -> None:
    """T = (|-2| + 0.2, 1): T g = (6.6, 4), eps = rho T (T g) / |T g|."""
    g = Tree({"a.weight": torch.tensor([3.0]), "a.bias": torch.tensor([4.0])})
    w = Tree({"a.weight": torch.tensor([-2.0]), "a.bias": torch.tensor([50.0])})
    up = uphill_adaptive(g, w, rho=0.7, eta=0.2)
    norm = (6.6**2 + 4**2) ** 0.5
    assert up["a.weight"].item() == pytest.approx(0.7 * 2.2 * 6.6 / norm)
    assert up["a.bias"].item() == pytest.approx(0.7 * 4 / norm)

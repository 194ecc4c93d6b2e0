"""The server's descent against the plain loop."""

import pytest
import torch

from fedloom.parts.serverside import descend
from fedloom.tree import Tree


def test_descent_by_hand() -> None:
    """One sample a batch on (w - a)^2 / 2: two epochs of two steps, in an order that does not matter for equal a."""
    start = Tree({"w": torch.tensor(1.0), "idle": torch.tensor(7.0)})
    a, seen = torch.tensor([3.0, 3.0]), []

    def loss(w: Tree, chosen: torch.Tensor) -> torch.Tensor:
        seen.append(chosen.tolist())
        return ((w["w"] - a[chosen]) ** 2).mean() / 2

    end = descend(start, loss, 2, epochs=2, batch=1, lr=0.1, rng=torch.Generator().manual_seed(0))
    assert end["w"].item() == pytest.approx(3 - 2 * 0.9**4)
    assert end["idle"].item() == 7 and start["w"].item() == 1 and not end["w"].requires_grad
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == [0, 1]

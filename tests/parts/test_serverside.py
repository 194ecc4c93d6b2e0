"""The server's descent against the plain loop."""

import pytest
import torch

from fedloom.core.tree import Tree
from fedloom.parts.serverside import adamw, descend


def test_descent_by_hand() -> None:
    """With one sample a batch on (w - a)^2 / 2, two epochs have two steps each.

    Their order does not matter for equal a.
    """
    start = Tree({"w": torch.tensor(1.0), "idle": torch.tensor(7.0)})
    a, seen = torch.tensor([3.0, 3.0]), []

    def loss(w: Tree, chosen: torch.Tensor) -> torch.Tensor:
        seen.append(chosen.tolist())
        return ((w["w"] - a[chosen]) ** 2).mean() / 2

    end = descend(start, loss, 2, epochs=2, batch=1, lr=0.1, rng=torch.Generator().manual_seed(0))
    assert end["w"].item() == pytest.approx(3 - 2 * 0.9**4)
    assert end["idle"].item() == 7 and start["w"].item() == 1 and not end["w"].requires_grad
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == [0, 1]


def test_adamw_is_that_of_torch() -> None:
    """The same steps with torch's optimiser and autograd, on the same batches."""
    target = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    found = adamw(
        torch.zeros(4), lambda w, chosen: (w - chosen).mean(0), [target],
        epochs=5, batch=4, lr=0.1, decay=0.2, eps=1e-3, rng=torch.Generator().manual_seed(0),
    )  # fmt: skip
    free, rng = torch.zeros(4, requires_grad=True), torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW([free], lr=0.1, weight_decay=0.2, eps=1e-3)
    for _ in range(5):
        for chosen in torch.randperm(6, generator=rng).split(4):
            optimiser.zero_grad()
            ((free - target[chosen]) ** 2).sum(1).mean().div(2).backward()
            optimiser.step()
    assert torch.allclose(found, free, atol=1e-6) and found.abs().sum() > 0

"""Several models side by side: tensors with a first dimension that counts the models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.rng import torch_rng
from ..core.tree import Tree


def stacked(models: Sequence[Tree]) -> Tree:
    """The models as one tree."""
    return Tree((name, torch.stack([tree[name] for tree in models])) for name in models[0])


def model(models: Tree, number: int) -> Tree:
    """One model of a stack."""
    return models.map(lambda tensor: tensor[number])


def shuffled(first: Tree, moving: Tree, *key: int | str) -> Tree:
    """Another draw of first weights: those at hand, shuffled within each trainable tensor.

    Tensors of one value (biases of 0, scales of 1) stay what they are, as another draw of theirs
    would.
    """
    rng = torch_rng(*key)
    new = {}
    for name in sorted(first.keys() & moving.keys()):
        order = torch.randperm(first[name].numel(), generator=rng).to(first[name].device)
        new[name] = first[name].flatten()[order].view_as(first[name])
    return first | new


def cosines(updates: Sequence[Tree]) -> Tensor:
    """The cosines between updates, a row and a column for each."""
    rows = torch.stack([torch.cat([u[n].flatten() for n in sorted(u)]) for u in updates]).double()
    lengths = rows.norm(dim=1)
    return rows @ rows.T / (lengths[:, None] * lengths[None, :] + 1e-12)

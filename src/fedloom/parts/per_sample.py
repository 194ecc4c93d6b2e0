"""Gradients of single samples, cut to a length."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from ..core.private_torch import BATCHNORMS
from ..core.tree import Tree

AT_ONCE = 32  # samples whose gradients are held side by side


def clipped_sum(model: Any, w: Tree, x: Tensor, y: Tensor, bound: float) -> Tree:
    """The sum of the samples' gradients of the cross-entropy, each cut to length `bound`.

    BatchNorm uses its running statistics: with those of a batch no sample had a gradient of its
    own. Dropout drops other features for each sample.
    """
    for module in model.modules():
        if isinstance(module, BATCHNORMS):
            module.eval()

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        features = functional_call(model.body, _inside(weights, "body."), (x[None],))
        logits = functional_call(model.head, _inside(weights, "head."), (features,))
        return F.cross_entropy(logits, y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    total = w.zeros_like()
    for some_x, some_y in zip(x.split(AT_ONCE), y.split(AT_ONCE), strict=True):
        slopes = each(dict(w), some_x, some_y)
        squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in slopes.values()])
        factors = (bound / squares.sum(0).sqrt().clamp(min=1e-12)).clamp(max=1)
        total = total + Tree((n, torch.tensordot(factors, g, 1)) for n, g in slopes.items())
    return total


def _inside(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights of a part of the model, by their names in it."""
    return {n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)}

"""Which clients' models, or heads, a client should mix, and how much of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core.tree import Mean, Tree
from .simplex import least_norm

SMALLEST = 1e-3  # of a weight of FedPAC's; smaller ones are none


def mixed(models: Sequence[Tree], weights: Tensor) -> Tree:
    """The mean of models with these weights."""
    mean = Mean()
    for model, weight in zip(models, weights.tolist(), strict=True):
        mean.add(model, weight)
    return mean.value(default=models[0])


def head_statistics(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, float]:
    """The share of a class times its mean feature, a row per class, and the variance left over.

    The variance is that of an estimate from so many samples.
    """
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, y, features)
    moments = sums / len(y)
    left = features.square().sum(1).mean() - moments.square().sum()
    return moments, float(left.clamp(min=0)) / len(y)


def head_weights(moments: Tensor, variances: Tensor) -> Tensor:
    """A row of weights on the simplex for each client: how much it takes of every client's head.

    Weights a of client i minimise sum_j a_j^2 V_j + |sum_j a_j (h_i - h_j)|^2.
    """
    flat = moments.flatten(1).double()
    rows = []
    for own in flat:
        apart = own - flat
        problem = apart @ apart.T + variances.double().diag()
        scale = problem.diagonal().mean().clamp(min=torch.finfo(torch.float64).tiny)
        weights = least_norm(problem / scale)
        weights = torch.where(weights < SMALLEST, 0.0, weights)
        rows.append(weights / weights.sum())
    return torch.stack(rows)


def usefulness(before: float, losses: Tensor, distances: Tensor) -> Tensor:
    """How much each model lowers the loss per distance; 0 for one that is where we are."""
    return torch.where(distances > 0, (before - losses) / distances.clamp(min=1e-12), 0.0)


def distance(a: Tree, b: Tree, by: Literal["l2", "l1"]) -> float:
    """How far apart two models are: in a straight line, or by the sum of absolute differences."""
    if by == "l1":
        return sum(float(tensor.abs().sum()) for tensor in (a - b).values())
    return float((a - b).norm())

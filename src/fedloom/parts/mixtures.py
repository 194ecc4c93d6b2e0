"""Which clients' heads a client should mix, from what they know of their features (FedPAC)."""

from __future__ import annotations

import torch
from torch import Tensor

from .simplex import least_norm

SMALLEST = 1e-3  # of a weight; smaller ones are none


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

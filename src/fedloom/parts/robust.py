"""Means that a few liars cannot move far.

Two kinds. `median` and `trimmed_mean` look at one number of all clients at a time. The others
choose weights for whole clients, and need no more than the squared distances between them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.tree import Tree


def median(values: Tensor) -> Tensor:
    """The median over clients (the first dimension); of an even number, the middle of two."""
    ordered = values.sort(dim=0).values
    n = len(values)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def trimmed_mean(values: Tensor, weights: Tensor, cut: int) -> Tensor:
    """The weighted mean over clients without the `cut` largest and the `cut` smallest values."""
    ordered, who = values.sort(dim=0)
    rest = slice(cut, len(values) - cut)
    share = weights.to(values.dtype)[who[rest]]
    return (ordered[rest] * share).sum(0) / share.sum(0)


def distances(trees: Sequence[Tree]) -> Tensor:
    """The squared distances between trees, a row and a column for each."""
    total = torch.zeros(len(trees), len(trees), dtype=torch.float64)
    for name in trees[0]:
        rows = torch.stack([tree[name].flatten() for tree in trees]).double()
        # Not by products: what is nearly equal would get distances that are noise.
        apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        total += apart.square().cpu()
    return total


def krum_scores(apart: Tensor, liars: int) -> Tensor:
    """For each client the sum of its squared distances to its n - liars - 2 nearest others."""
    n = len(apart)
    nearest = min(max(1, n - liars - 2), n - 1)
    others = apart + torch.diag(torch.full((n,), torch.inf, dtype=apart.dtype))
    return others.sort(dim=1).values[:, :nearest].sum(1)


def geometric_median(apart: Tensor, weights: Tensor, steps: int, smooth: float) -> Tensor:
    """The clients' shares in their geometric median, by steps of Weiszfeld's algorithm.

    A mean with shares b is sum_j b_j d_kj - 1/2 sum_ij b_i b_j d_ij away from client k, squared.
    """
    alphas = weights.double() / weights.sum()
    shares = alphas
    for _ in range(steps):
        away = (apart @ shares - shares @ apart @ shares / 2).clamp(min=0).sqrt()
        shares = alphas / away.clamp(min=smooth)
        shares = shares / shares.sum()
    return shares

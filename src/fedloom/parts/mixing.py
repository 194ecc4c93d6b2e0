"""Means of groups of samples, which can be shared where single samples cannot."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.local import Local


def group_means(local: Local, size: int) -> tuple[Tensor, Tensor]:
    """Samples and labels (as shares of classes), averaged over random groups of at least `size`.

    A client with fewer samples makes one group of all of them; one with a single sample makes none.
    """
    shape = local.worker.data.x.shape[1:]
    if local.size < 2:
        return torch.zeros(0, *shape), torch.zeros(0, local.classes)
    groups = max(1, local.size // size)
    group_of = torch.randperm(local.size, generator=local.rng("groups")) % groups
    group_of = group_of.to(local.counts.device)
    means = torch.zeros(groups, *shape, device=group_of.device)
    labels = torch.zeros(groups, local.classes, device=group_of.device)
    share = 1 / torch.bincount(group_of, minlength=groups)
    start = 0
    for x, y in local.chunks():
        group = group_of[start : start + len(y)]
        weight = share[group]
        means.index_add_(0, group, (x * weight.view(-1, *[1] * len(shape))).float())
        labels.index_add_(0, group, F.one_hot(y, local.classes) * weight[:, None])
        start += len(y)
    return means, labels

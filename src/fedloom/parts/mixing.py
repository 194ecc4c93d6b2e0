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
    n = local.size
    groups = 0 if n < 2 else max(1, n // size)
    group = torch.randperm(n, generator=local.rng("groups")) % max(1, groups)
    shape = local.worker.data.x.shape[1:]
    means, labels = torch.zeros(groups, *shape), torch.zeros(groups, local.classes)
    share, at = 1 / torch.bincount(group, minlength=groups), 0
    for x, y in local.chunks() if groups else ():
        own = group[at : at + len(y)]
        weight = share[own]
        means.index_add_(0, own, (x * weight.view(-1, *[1] * len(shape))).float())
        labels.index_add_(0, own, F.one_hot(y, local.classes) * weight[:, None])
        at += len(y)
    return means, labels

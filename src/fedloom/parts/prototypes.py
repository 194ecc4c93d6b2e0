"""Class prototypes: means of features by class, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def class_means(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of every class (zero where there is no sample) and how many samples each class has."""
    counts = torch.bincount(y, minlength=classes)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, y, features)
    return sums / counts.clamp(min=1)[:, None], counts


def table(prototypes: Mapping[str, Tensor], classes: int) -> tuple[Tensor, Tensor]:
    """Prototypes named by class number as one row per class (zero where there is none), and which classes have one."""
    known = torch.tensor([str(c) in prototypes for c in range(classes)])
    rows = torch.zeros(classes, len(next(iter(prototypes.values()))) if prototypes else 0)
    for c in known.nonzero().flatten().tolist():
        rows[c] = prototypes[str(c)]
    return rows, known


def distance_to_own(features: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """The mean squared difference, per element, of features and the prototype of their class; 0 where there is none."""
    return ((features - prototypes[y]).square().mean(1) * known[y]).mean()


def nearest(features: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Scores of classes: the negative Euclidean distance to their prototype, minus infinity where there is none."""
    return (-torch.cdist(features, prototypes)).masked_fill(~known, -torch.inf)

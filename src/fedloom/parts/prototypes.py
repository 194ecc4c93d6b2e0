"""Class prototypes: means of features by class, and what is made of them."""

from __future__ import annotations

import torch
from torch import Tensor


def class_means(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of every class (zero where there is no sample) and how many samples each class has."""
    counts = torch.bincount(y, minlength=classes)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, y, features)
    return sums / counts.clamp(min=1)[:, None], counts

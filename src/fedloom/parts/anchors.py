"""Anchors: fixed targets in feature space, one per class."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.rng import torch_rng


def semantic_anchors(classes: int, width: int, seed: int) -> Tensor:
    """Random vectors through two untrained layers, each normalised over classes and rectified.

    Not negative, like features behind a ReLU, so that these can reach them; and well apart.
    """
    rng = torch_rng(seed, "anchors")
    bound = width**-0.5
    anchors = torch.randn(classes, width, generator=rng)
    for _ in range(2):
        weight = torch.empty(width, width).uniform_(-bound, bound, generator=rng)
        bias = torch.empty(width).uniform_(-bound, bound, generator=rng)
        raw = anchors @ weight.T + bias
        anchors = ((raw - raw.mean(0)) / (raw.var(0, correction=0) + 1e-5).sqrt()).relu()
    return anchors

"""Features that are drawn: a layer that gives a mean and a deviation for each number."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DrawnHead(nn.Module):
    """A linear head on features that are drawn: a layer in front of it gives mean and deviation.

    In training each sample is drawn once; in evaluation a feature is its mean.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        width = linear.in_features
        self.spread, self.linear = nn.Linear(width, 2 * width), linear

    def forward(self, features: Tensor) -> Tensor:
        mean, raw = self.spread(features).chunk(2, dim=1)
        if self.training:
            mean = mean + F.softplus(raw) * torch.randn_like(mean)
        logits: Tensor = self.linear(mean)
        return logits


class ByClass(nn.Module):
    """A normal distribution of features per class, and a scale for what is compared with it."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, width))
        self.raw = nn.Parameter(torch.ones(classes, width))
        self.scale = nn.Parameter(torch.ones(()))

    def divergence(self, spread: Tensor, y: Tensor) -> Tensor:
        """The mean Kullback-Leibler divergence of samples' features from those of their class."""
        mean, raw = spread.chunk(2, dim=1)
        ours, sigma = self.scale * mean, self.scale * F.softplus(raw)
        theirs = F.softplus(self.raw)[y]
        apart = (sigma.square() + (ours - self.mean[y]).square()) / (2 * theirs.square())
        return (theirs.log() - sigma.log() + apart - 0.5).sum(1).mean()

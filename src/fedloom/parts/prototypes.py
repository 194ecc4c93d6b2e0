"""Class prototypes: means of features by class, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import FedloomError


def class_means(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of every class (zero without samples) and the class's sample count."""
    if features.ndim != 2:
        raise FedloomError(
            "prototypes need one vector of features and one label per sample, the model gives maps."
        )
    counts = torch.bincount(y, minlength=classes)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, y, features)
    return sums / counts.clamp(min=1)[:, None], counts


def table(prototypes: Mapping[str, Tensor], classes: int) -> tuple[Tensor, Tensor]:
    """Prototypes by class number as a row per class (zero without one), and which there are."""
    known = torch.zeros(classes, dtype=torch.bool)
    if not prototypes:
        return torch.zeros(classes, 0), known
    some = next(iter(prototypes.values()))
    rows = some.new_zeros(classes, len(some))
    for number, prototype in prototypes.items():
        rows[int(number)] = prototype
        known[int(number)] = True
    return rows, known.to(some.device)


def distance_to_own(features: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """The mean squared difference of features and their class's prototype; 0 without one."""
    return ((features - prototypes[y]).square().mean(1) * known[y]).mean()


def nearest(features: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Scores of classes: minus the distance to their prototype, minus infinity without one."""
    return (-torch.cdist(features, prototypes)).masked_fill(~known, -torch.inf)


def squared_gap(features: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """The mean squared error, per element, between features and their class's prototype; samples of
    classes that are not `known` do not count.
    """
    there = known[y]
    targets = torch.where(there[:, None], prototypes[y], features.detach())
    return F.mse_loss(features, targets) * (len(y) / there.sum().clamp(min=1))


def row_numbers(rows: Tensor) -> Tensor:
    """0, 1, 2 ..., a number for each row, where the rows are."""
    return torch.arange(len(rows), device=rows.device)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances of the rows of `a` to the rows of `b`, with a gradient even at 0."""
    return (a[:, None] - b).pow(2).sum(2).clamp(min=1e-12).sqrt()


def nearest_other(points: Tensor) -> Tensor:
    """Each point's distance to the nearest of the others; nothing if there is only one."""
    if len(points) < 2:
        return points.new_zeros(0)
    between = distances(points, points)
    itself = torch.eye(len(points), dtype=torch.bool, device=points.device)
    return between.masked_fill(itself, torch.inf).min(1).values


def margin_loss(features: Tensor, y: Tensor, anchors: Tensor, margin: Tensor) -> Tensor:
    """Cross-entropy of minus distances to all anchors, the true one `margin` further away."""
    return F.cross_entropy(-(distances(features, anchors) + margin * F.one_hot(y, len(anchors))), y)

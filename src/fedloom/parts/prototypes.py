"""Class prototypes: means of features by class, and what is made of them.

Where labels are masks, a pixel takes the place of a sample: its features are what the body gives
there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.device import exact
from ..core.errors import FedloomError
from ..core.local import Local, Worker


def class_means(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of every class (zero without samples) and the class's sample count."""
    if features.ndim != 2:
        raise FedloomError(
            "prototypes need one vector of features and one label per sample, the model gives maps."
        )
    counts = torch.bincount(y, minlength=classes)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, y, features)
    return sums / counts.clamp(min=1)[:, None], counts


def mean_of_means(means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Each class's mean over clients (clients x classes x width), weighted by counts of samples.

    Also which classes there are; the row of another one is zero.
    """
    total = counts.sum(0)
    pooled = (means * counts[:, :, None]).sum(0) / total.clamp(min=1)[:, None]
    return pooled, total > 0


def own_means(local: Local) -> tuple[Tensor, Tensor]:
    """The mean feature of every class over a client's training samples, and the class's count.

    Pixels are added up a few images at a time: maps of all images would fill the memory.
    """
    if local.worker.data.kind != "segmentation":
        seen, labels = local.outputs()
        return class_means(seen.features, labels, local.classes)
    sums: Tensor | None = None
    counts = torch.zeros(local.classes, dtype=torch.int64)
    local.model.eval()
    with torch.no_grad():
        for x, masks in local.chunks():
            rows, y = by_label(local.model.body(x), masks)
            if sums is None:
                sums = exact(rows.new_zeros(local.classes, rows.shape[1]))
                counts = counts.to(y.device)
            sums.index_add_(0, y, exact(rows))
            counts += torch.bincount(y, minlength=local.classes)
    assert sums is not None  # a client without samples is never asked
    return (sums / counts.clamp(min=1)[:, None]).float(), counts


def by_label(features: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A row of features and a label for each sample or, where labels are masks, for each pixel."""
    if features.ndim == 2 or features.ndim != y.ndim + 1:
        return features, y
    return features.movedim(1, -1).flatten(0, -2), y.flatten()


def label_width(worker: Worker) -> int:
    """How many features a sample has or, where labels are masks, a pixel."""
    if worker.data.kind == "segmentation":
        return int(worker.model.head.weight.shape[1])
    return worker.width


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
    features, y = by_label(features, y)
    return ((features - prototypes[y]).square().mean(1) * known[y]).mean()


def nearest(features: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Scores of classes: minus the distance to their prototype, minus infinity without one.

    Maps of features get maps of scores.
    """
    rows = features
    if features.ndim > 2:
        rows = features.movedim(1, -1).flatten(0, -2)
    if torch.compiler.is_exporting():  # ONNX does not know `cdist`
        apart = distances(rows, prototypes)
    else:
        apart = torch.cdist(rows, prototypes)
    scores = (-apart).masked_fill(~known, -torch.inf)
    if features.ndim == 2:
        return scores
    return scores.view(len(features), *features.shape[2:], len(prototypes)).movedim(-1, 1)


def squared_gap(features: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """The mean squared error, per element, between features and their class's prototype; samples of
    classes that are not `known` do not count.
    """
    features, y = by_label(features, y)
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

"""Segmentation figures from confusion matrices: rows are the true classes, columns the predicted ones.

Every function takes ... x C x C, one matrix per client, say. Class 0 is the background and left out of means over
classes. A class that is neither there nor predicted has no Dice and no IoU: its figure is NaN and no mean counts it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError


def confusion(pred: Tensor, target: Tensor, classes: int) -> Tensor:
    """How often each true class (row) was predicted as each class (column): C x C counts over all pixels."""
    if pred.shape != target.shape:
        raise FedloomError(
            f"predictions of shape {tuple(pred.shape)} do not fit targets of shape {tuple(target.shape)}."
        )
    if any(m.numel() and not 0 <= int(m.min()) <= int(m.max()) < classes for m in (pred, target)):
        raise FedloomError(f"predicted and true classes must lie between 0 and {classes - 1}.")
    pairs = target.flatten().to(torch.int64) * classes + pred.flatten().to(torch.int64)
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def pixel_accuracy(matrix: Tensor) -> Tensor:
    """The share of pixels whose class is right (...); NaN without pixels."""
    return _right(matrix).sum(-1) / matrix.sum((-2, -1)).to(torch.float64)


def dice(matrix: Tensor) -> Tensor:
    """Twice the overlap over the sum of both areas, for each class (... x C)."""
    return 2 * _right(matrix) / (matrix.sum(-1) + matrix.sum(-2))


def iou(matrix: Tensor) -> Tensor:
    """Overlap over union, for each class (... x C)."""
    right = _right(matrix)
    return right / (matrix.sum(-1) + matrix.sum(-2) - right)


def foreground(figures: Tensor) -> Tensor:
    """The mean of a figure per class (... x C) over the classes but 0 that have it (...); NaN if none has."""
    return figures[..., 1:].nanmean(-1)


def overlap(matrices: Tensor | np.ndarray) -> dict[str, Any]:
    """The figures of K clients (K x C x C) as plain values, None where there is nothing to tell.

    `pixel_accuracy`, `dice` and `iou` are means over the clients that have the figure, each weighing the same;
    `dice_clients` and `iou_clients` have the entry of each client, its mean over foreground classes. `dice_pooled` and
    `iou_pooled` take all clients' pixels together, `dice_classes` and `iou_classes` do so for every class, 0 included.
    """
    each = torch.as_tensor(matrices)
    if each.ndim != 3 or each.shape[1] != each.shape[2]:
        raise FedloomError(f"one square matrix per client is needed, not {tuple(each.shape)}.")
    found: dict[str, Tensor] = {"pixel_accuracy": pixel_accuracy(each).nanmean()}
    for name, figure in (("dice", dice), ("iou", iou)):
        clients, classes = foreground(figure(each)), figure(each.sum(0))
        found |= {name: clients.nanmean(), f"{name}_pooled": foreground(classes)}
        found |= {f"{name}_clients": clients, f"{name}_classes": classes}
    return {name: _plain(value.tolist()) for name, value in found.items()}


def _right(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).to(torch.float64)


def _plain(value: Any) -> Any:
    """The same with None in place of NaN."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value if value == value else None

"""Segmentation figures from confusion matrices: rows are the true classes, columns the predicted ones.

Every function takes ... x C x C, one matrix per client, say. Class 0 is the background and left out of means over
classes. A class that is neither there nor predicted has no Dice and no IoU: its figure is NaN and no mean counts it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import FedloomError


def confusion(pred: Tensor, target: Tensor, classes: int) -> Tensor:
    """How often each true class (row) was predicted as each class (column): C x C counts over all pixels."""
    if pred.shape != target.shape:
        raise FedloomError(
            f"predictions of shape {tuple(pred.shape)} do not fit targets of shape {tuple(target.shape)}."
        )
    if pred.numel() and not 0 <= min(int(pred.min()), int(target.min())) <= max(
        int(pred.max()), int(target.max())
    ) < classes:
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


def summarise(matrices: Tensor) -> dict[str, Any]:
    """All the figures of K clients (K x C x C) as plain values, None where there is nothing to tell.

    `pixel_accuracy`, `dice` and `iou` have one entry per client, the latter two foreground means; `dice_classes` and
    `iou_classes` a list of all classes for each client. `mean` weighs the clients that have a figure equally;
    `pooled` takes all clients' pixels together.
    """
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2]:
        raise FedloomError(f"one square matrix per client is needed, not {tuple(matrices.shape)}.")
    per_class = {"dice": dice(matrices), "iou": iou(matrices)}
    per_client = {"pixel_accuracy": pixel_accuracy(matrices)} | {n: foreground(f) for n, f in per_class.items()}
    whole = matrices.sum(0)
    pooled = {
        "pixel_accuracy": pixel_accuracy(whole),
        "dice": foreground(dice(whole)),
        "iou": foreground(iou(whole)),
    }
    return {
        **{name: _plain(figures.tolist()) for name, figures in per_client.items()},
        **{f"{name}_classes": _plain(figures.tolist()) for name, figures in per_class.items()},
        "mean": {name: _plain(figures.nanmean().item()) for name, figures in per_client.items()},
        "pooled": {name: _plain(figure.item()) for name, figure in pooled.items()},
    }


def _right(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).to(torch.float64)


def _plain(value: Any) -> Any:
    """The same with None in place of NaN."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value if value == value else None

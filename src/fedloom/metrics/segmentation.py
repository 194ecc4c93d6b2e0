"""Metrics of maps, from confusion matrices: rows are true classes, columns predicted ones.

The functions take ... x C x C, one matrix per client, say. Class 0 is the background and left out
of means over classes. A class that is neither there nor predicted has no Dice and no IoU: its
figure is NaN, and no mean counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError
from .registry import Answers, Tally, metric, plain


def confusion(pred: Tensor, target: Tensor, classes: int) -> Tensor:
    """How often each true class (row) is predicted as each class (column), C x C."""
    if pred.shape != target.shape:
        raise FedloomError(
            f"predictions of shape {tuple(pred.shape)} do not fit targets of shape "
            f"{tuple(target.shape)}."
        )
    for labels in (pred, target):
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
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
    """The mean (...) of a figure per class (... x C) over the classes but 0; NaN if none has it."""
    return figures[..., 1:].nanmean(-1)


def overlap(matrices: Tensor | np.ndarray) -> dict[str, Any]:
    """The figures of K clients (K x C x C) as plain values, None where there is nothing to tell.

    `pixel_accuracy`, `dice` and `iou` are means over the clients that have the figure, each
    weighing the same; `dice_clients` and `iou_clients` have the entry of each client, its mean over
    foreground classes. `dice_pooled` and `iou_pooled` take all clients' pixels together,
    `dice_classes` and `iou_classes` do so for every class, 0 included.
    """
    each = torch.as_tensor(matrices)
    if each.ndim != 3 or each.shape[1] != each.shape[2]:
        raise FedloomError(f"one square matrix per client is needed, not {tuple(each.shape)}.")
    figures = {"pixel_accuracy": plain(pixel_accuracy(each).nanmean())}
    for name, figure in (("dice", dice), ("iou", iou)):
        figures |= _figures(name, figure, each)
    return figures


def _figures(name: str, figure: Callable[[Tensor], Tensor], each: Tensor) -> dict[str, Any]:
    clients = foreground(figure(each))
    classes = figure(each.sum(0))
    return {
        name: plain(clients.nanmean()),
        f"{name}_pooled": plain(foreground(classes)),
        f"{name}_clients": plain(clients.tolist()),
        f"{name}_classes": plain(classes.tolist()),
    }


def _count_pairs(answers: Answers) -> np.ndarray:
    classes = answers.classes
    return answers.count(answers.labels * classes + answers.predicted, classes**2)


# How often each true class is predicted as each class, over all pixels.
def _possible_pairs(row: np.ndarray, samples: int) -> bool:
    return bool((row >= 0).all() and (row % 1 == 0).all() and row.sum() == samples)


CONFUSION = Tally(
    "confusion", "predictions", lambda classes: classes**2, _count_pairs, _possible_pairs
)


def _matrices(rows: np.ndarray) -> Tensor:
    classes = math.isqrt(rows.shape[-1])
    return torch.from_numpy(rows.reshape(*rows.shape[:-1], classes, classes))


def _overlap_options(name: str, figure: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """What the metrics of overlap have in common."""
    return {
        "applies": ("segmentation",),
        "key": name,
        "figures": lambda rows, _: _figures(name, figure, _matrices(rows)),
    }


@metric(
    "pixel_accuracy",
    "Pixel accuracy",
    CONFUSION,
    "Share of the pixels whose class is right.",
    applies=("segmentation",),
    key="pixel_accuracy",
    figures=lambda rows, _: {"pixel_accuracy": plain(pixel_accuracy(_matrices(rows)).nanmean())},
)
def _pixel_accuracy(rows: np.ndarray) -> np.ndarray:
    return pixel_accuracy(_matrices(rows)).numpy()


@metric(
    "dice",
    "Dice",
    CONFUSION,
    "Twice the overlap of predicted and true areas over the sum of both, as a mean over the "
    "classes but the background.",
    **_overlap_options("dice", dice),
)
def _dice(rows: np.ndarray) -> np.ndarray:
    return foreground(dice(_matrices(rows))).numpy()


@metric(
    "iou",
    "IoU",
    CONFUSION,
    "Overlap of predicted and true areas over their union, as a mean over the classes but the "
    "background.",
    **_overlap_options("iou", iou),
)
def _iou(rows: np.ndarray) -> np.ndarray:
    return foreground(iou(_matrices(rows))).numpy()


def _right(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).to(torch.float64)

"""Metrics made from predicted classes.

Beside accuracy there is what it hides when classes are of unequal size, and the accuracy that needs
no model at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .fairness import spreads
from .registry import Answers, Domains, Tally, metric, side_metric


def _count_right(answers: Answers) -> np.ndarray:
    right = answers.count(np.zeros_like(answers.labels), 1, answers.right)
    return np.column_stack([right, answers.sizes])


def _count_by_class(answers: Answers) -> np.ndarray:
    classes = answers.classes
    actual = answers.count(answers.labels, classes)
    predicted = answers.count(answers.predicted, classes)
    right = answers.count(answers.labels, classes, answers.right)
    return np.concatenate([right, actual, predicted], axis=1)


def _possible_counts(row: np.ndarray, samples: int) -> bool:
    right, total = row.tolist()
    return total == samples and 0 <= right <= total and right % 1 == 0


def _possible_by_class(row: np.ndarray, samples: int) -> bool:
    right, actual, predicted = _by_class(row)
    counted = bool((row >= 0).all() and (row % 1 == 0).all())
    complete = actual.sum() == predicted.sum() == samples
    return bool(counted and complete and (right <= np.minimum(actual, predicted)).all())


# How many samples are right, and how many there are.
COUNTS = Tally("counts", "predictions", lambda classes: 2, _count_right, _possible_counts)
# For each class: how many of its samples are right, how many there are, how often it is predicted.
BY_CLASS = Tally(
    "by_class", "predictions", lambda classes: 3 * classes, _count_by_class, _possible_by_class
)


def _by_class(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, actual and predicted counts, each ... x C."""
    table = rows.reshape(*rows.shape[:-1], 3, -1)
    return table[..., 0, :], table[..., 1, :], table[..., 2, :]


def _mean_where(values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """The mean over the classes that count; NaN where none does."""
    return np.where(counted, values, 0.0).sum(-1) / counted.sum(-1)


def accuracies(scores: np.ndarray) -> np.ndarray:
    """Each client's accuracy from its (correct, total); NaN for a client without samples."""
    with np.errstate(all="ignore"):
        shares: np.ndarray = scores[:, 0] / scores[:, 1]
    return shares


def summarise(scores: np.ndarray, domains: Domains) -> dict[str, Any]:
    """All figures of accuracy for one predictor per client.

    `scores` is K x 2, (correct, total). `accuracy_mean`, `accuracy_std` (ddof 0) and `worst_client`
    weigh clients equally, `accuracy_weighted` weighs them by test samples. For the figures by
    domain see `spreads`.
    """
    each = accuracies(scores)
    per_client = each[~np.isnan(each)]
    if not len(per_client):
        return {}
    return {
        "accuracy_mean": float(per_client.mean()),
        "accuracy_weighted": float(scores[:, 0].sum() / scores[:, 1].sum()),
        "accuracy_std": float(per_client.std()),
        "worst_client": float(per_client.min()),
        **spreads(scores, each, domains),
    }


@metric(
    "accuracy",
    "Accuracy",
    COUNTS,
    "Share of the samples, or of a map's pixels, whose class is right.",
    applies=("classification", "segmentation"),
    figures=summarise,
)
def accuracy(rows: np.ndarray) -> np.ndarray:
    """Right over all."""
    return rows[..., 0] / rows[..., 1]


@metric(
    "balanced_accuracy",
    "Balanced accuracy",
    BY_CLASS,
    "Mean recall over the classes a client has, so that small classes count as much as large ones.",
)
def balanced_accuracy(rows: np.ndarray) -> np.ndarray:
    """The mean of the recalls of the classes that are there."""
    right, actual, _ = _by_class(rows)
    return _mean_where(right / actual, actual > 0)


@metric(
    "macro_f1",
    "Macro F1",
    BY_CLASS,
    "Mean over classes of the harmonic mean of precision and recall; a class counts if it is there "
    "or is predicted.",
)
def macro_f1(rows: np.ndarray) -> np.ndarray:
    """Twice the right over the sum of actual and predicted, as a mean over classes."""
    right, actual, predicted = _by_class(rows)
    both = actual + predicted
    return _mean_where(2 * right / both, both > 0)


@side_metric(
    "recall",
    "Recall by class",
    BY_CLASS,
    "For each class, the share of all clients' samples of it that is predicted right.",
    per_class=True,
)
def recall(rows: np.ndarray) -> np.ndarray:
    """For each class, the share of its samples that is right; NaN for a class that is not there."""
    right, actual, _ = _by_class(rows)
    return right / actual


@side_metric(
    "majority",
    "Majority class",
    BY_CLASS,
    "Accuracy of always naming the most frequent class of a client's test samples; a model that "
    "stays below it is worse than no model.",
    reference=True,
)
def majority(rows: np.ndarray) -> np.ndarray:
    """The share of the most frequent class."""
    _, actual, _ = _by_class(rows)
    return actual.max(-1) / actual.sum(-1)


def _one_class_sentence(flags: np.ndarray) -> str | None:
    judged = int((~np.isnan(flags)).sum())
    stuck = int(np.nansum(flags))
    if not stuck:
        return None
    return f"predicts one class at {stuck} of {judged} clients"


@side_metric(
    "one_class",
    "One class",
    BY_CLASS,
    "Whether a client whose samples have several classes is always given the same one.",
    higher=False,
    remark=_one_class_sentence,
)
def one_class(rows: np.ndarray) -> np.ndarray:
    """1 where one class alone is predicted, 0 elsewhere, NaN for clients of one class or none."""
    _, actual, predicted = _by_class(rows)
    flags = ((predicted > 0).sum(-1) == 1).astype(float)
    return np.where((actual > 0).sum(-1) > 1, flags, np.nan)

"""Metrics made from scores: how good the probabilities are, not only the largest of them.

Probabilities are the softmax of what a predictor returns. Methods that compare distances or
similarities are judged by the softmax of those.
"""

from __future__ import annotations

import numpy as np

from .registry import Answers, Tally, metric

LEAST = 1e-12  # a probability below this counts as this much, so that one sample cannot decide all
BINS = 15  # of equal width, for the calibration error
ROUNDED = 1 + 1e-6  # by so much a sum may exceed what it can be


def _add_log_loss(answers: Answers) -> np.ndarray:
    chosen = answers.probabilities[np.arange(len(answers.labels)), answers.labels]
    losses = -np.log(np.maximum(chosen, LEAST, dtype=np.float64))
    sums = answers.count(np.zeros_like(answers.labels), 1, losses)
    return np.column_stack([sums, answers.sizes])


def _add_gaps(answers: Answers) -> np.ndarray:
    """By bin, confidence minus right as a sum; then the number of samples."""
    confidence = answers.probabilities.max(1).astype(np.float64)
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = answers.count(bins, BINS, confidence - answers.right)
    return np.column_stack([gaps, answers.sizes])


def _add_auc(answers: Answers) -> np.ndarray:
    """The client's AUC times its samples, and its samples; zeros where no class has an AUC.

    A sample's own class decides in which column its probability is ranked among those of all
    samples of its client. All columns are ranked by one sort: the bits of a number that is not
    negative are in the order of the numbers, so client, class and bits make one integer.
    """
    samples, classes = len(answers.labels), answers.classes
    bits = np.ascontiguousarray(answers.probabilities, dtype=np.float32).view(np.int32)
    group = answers.owner[:, None] * classes + np.arange(classes)
    keys = (group << 32) + bits
    wanted = keys[np.arange(samples), answers.labels]
    ranked = np.sort(keys, axis=None)
    below = np.searchsorted(ranked, wanted, "left")
    not_above = np.searchsorted(ranked, wanted, "right")
    # A group has as many entries as its client has samples; count from where the group begins.
    sizes = answers.sizes
    starts = (np.cumsum(sizes) - sizes) * classes
    begins = starts[answers.owner] + answers.labels * sizes[answers.owner]
    ranks = (below + not_above) / 2 - begins
    positives = answers.count(answers.labels, classes)
    negatives = sizes[:, None] - positives
    # Pairs of two samples of the class itself come to half of their number, whatever their order.
    won = answers.count(answers.labels, classes, ranks) - positives**2 / 2
    pairs = positives * negatives
    counted = pairs > 0
    by_class = np.where(counted, won / np.maximum(pairs, 1), 0.0)
    has = counted.any(1)
    auc = by_class.sum(1) / np.maximum(counted.sum(1), 1)
    return np.stack([auc * sizes * has, sizes * has], axis=1)


def _possible_log_loss(row: np.ndarray, samples: int) -> bool:
    loss, total = row.tolist()
    return total == samples and 0 <= loss <= -np.log(LEAST) * samples * ROUNDED


def _possible_gaps(row: np.ndarray, samples: int) -> bool:
    return bool(row[-1] == samples and np.abs(row[:-1]).sum() <= samples * ROUNDED)


def _possible_auc(row: np.ndarray, samples: int) -> bool:
    won, total = row.tolist()
    return total in (0, samples) and 0 <= won <= total * ROUNDED


LOG_LOSS = Tally("log_loss", "scores", lambda classes: 2, _add_log_loss, _possible_log_loss)
GAPS = Tally("gaps", "scores", lambda classes: BINS + 1, _add_gaps, _possible_gaps)
AUC = Tally("auc", "scores", lambda classes: 2, _add_auc, _possible_auc)


@metric(
    "nll",
    "Negative log-likelihood",
    LOG_LOSS,
    "Mean of minus the logarithm of the true class's probability; a probability below 1e-12 counts "
    "as 1e-12.",
    higher=False,
    unit="number",
)
def nll(rows: np.ndarray) -> np.ndarray:
    """Sum over number."""
    return rows[..., 0] / rows[..., 1]


@metric(
    "ece",
    "Calibration error",
    GAPS,
    "Expected calibration error: mean distance between confidence and accuracy over 15 bins of "
    "equal width; a client with few samples has a large one by chance.",
    higher=False,
)
def ece(rows: np.ndarray) -> np.ndarray:
    """The bins' distances over the number of samples."""
    return np.abs(rows[..., :-1]).sum(-1) / rows[..., -1]


@metric(
    "auc",
    "AUC",
    AUC,
    "Area under the ROC curve, one class against the rest, exact at each client as a mean over the "
    "classes that have one; pooled, clients weigh by samples, since their models share no scale.",
)
def auc(rows: np.ndarray) -> np.ndarray:
    """The weighted sum over the weights."""
    return rows[..., 0] / rows[..., 1]

"""Types of clients: clusters of the vectors that clients send, and weights that heed them."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .finch import finch
from .prototypes import class_means

Clusterer = Literal["gmm", "kmeans", "finch"]
Covariance = Literal["full", "diag", "spherical", "tied"]


def cluster(
    points: Tensor, count: int, by: Clusterer, seed: int, covariance: Covariance = "full"
) -> Tensor:
    """Labels 0, 1 ... of the points in `count` clusters, at most one for each different point.

    A cluster that ends up empty is left out. FINCH chooses its own numbers of clusters, so we take
    its coarsest partition with at least `count` of them and join the nearest two until `count` are
    left.
    """
    rows = points.double().numpy()
    _, inverse = np.unique(rows, axis=0, return_inverse=True)
    different = int(inverse.max()) + 1
    if count > different:
        warnings.warn(
            f"{different} different clients to cluster, so {count} types become {different}.",
            stacklevel=2,
        )
    if count >= different:
        labels = inverse.reshape(-1)
    elif by == "finch":
        labels = _joined(rows, count)
    else:
        labels = _fitted(rows, count, by, seed % 2**32, covariance)
    return torch.from_numpy(np.unique(labels, return_inverse=True)[1].reshape(-1)).long()


def _fitted(
    rows: np.ndarray, count: int, by: Clusterer, seed: int, covariance: Covariance
) -> np.ndarray:
    from sklearn.cluster import KMeans  # imported here because it takes a while
    from sklearn.mixture import GaussianMixture

    if by == "kmeans":
        return np.asarray(KMeans(count, n_init=10, random_state=seed).fit_predict(rows))
    return np.asarray(
        GaussianMixture(count, covariance_type=covariance, random_state=seed).fit_predict(rows)
    )


def _joined(rows: np.ndarray, count: int) -> np.ndarray:
    """FINCH's labels, with the nearest clusters joined until there are `count`."""
    labels = np.arange(len(rows))
    for partition in finch(rows):  # each is coarser than the one before
        if partition.max() + 1 >= count:
            labels = partition
    while (clusters := int(labels.max()) + 1) > count:
        means = np.stack([rows[labels == c].mean(0) for c in range(clusters)])
        means = means / np.linalg.norm(means, axis=1, keepdims=True).clip(1e-12)
        near = np.where(np.eye(clusters, dtype=bool), -np.inf, means @ means.T)
        a, b = sorted(np.unravel_index(near.argmax(), near.shape))
        labels = np.where(labels == b, a, labels)
        labels = np.unique(labels, return_inverse=True)[1].reshape(-1)
    return labels


def centres(points: Tensor, labels: Tensor) -> Tensor:
    """The mean of each cluster."""
    return class_means(points, labels, int(labels.max()) + 1)[0]


def schedule(round: int, delta: float, gamma: float, lag: int = 1) -> float:
    """beta = delta (1 - gamma^(round - lag)): how much the group counts beside the client."""
    return delta * (1.0 - gamma ** (round - lag))


def noted(loss: float, round: int, coarse: bool) -> float:
    """A loss as it enters the weights; a coarse one as FedGCR's authors' code rounds it."""
    if not coarse:
        return loss
    if round == 1:
        return 1.0
    return 100 / max(1, int(100 / max(loss, 1e-12)))


def group_losses(losses: Tensor, labels: Tensor, sizes: Tensor | None = None) -> Tensor:
    """For each client the mean loss of its group, plain or weighted by `sizes`."""
    weights = torch.ones_like(losses)
    if sizes is not None:
        weights = sizes.double()
    zeros = torch.zeros(int(labels.max()) + 1, dtype=torch.float64)
    totals = zeros.index_add(0, labels, weights * losses)
    counts = zeros.index_add(0, labels, weights)
    return (totals / counts)[labels]


def fair_weights(sizes: Tensor, losses: Tensor, group: Tensor, beta: float, q: float) -> Tensor:
    """n_k (L_k^(1-beta) G_k^beta)^(q+1) for each client, with its group's loss G."""
    own_log = losses.double().clamp(min=1e-12).log()
    group_log = group.double().clamp(min=1e-12).log()
    raised = (1 - beta) * own_log + beta * group_log
    return sizes.double() * ((q + 1) * (raised - raised.max())).exp()

"""FINCH: clusters from first neighbours, without a number of clusters or a threshold.

Sarfraz, Sharma, Stiefelhagen, "Efficient parameter-free clustering using first neighbor relations",
CVPR 2019.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .prototypes import class_means


def finch(points: np.ndarray) -> list[np.ndarray]:
    """Labels of the points in ever coarser partitions, finest first; distances are cosines.

    Every point is linked to its nearest neighbour, and connected points form a cluster (points that
    share a neighbour are thereby connected); then the same with the clusters' means, until one
    cluster is left or nothing changes. A last partition into one cluster is dropped, unless it is
    the first.
    """
    partitions: list[np.ndarray] = []
    labels = np.arange(len(points))
    while (count := len(np.unique(labels))) > 1:
        means = np.stack([points[labels == c].mean(0) for c in range(count)])
        labels = _linked(means)[labels]
        partitions.append(labels)
        if labels.max() + 1 == count:
            break
    if len(partitions) > 1 and partitions[-1].max() == 0:
        partitions.pop()
    return partitions or [labels]


def cluster_means(points: Tensor) -> Tensor:
    """The means of the clusters in the coarsest partition that has more than one, if any has."""
    labels = torch.from_numpy(finch(points.numpy())[-1]).long()
    return class_means(points, labels, int(labels.max()) + 1)[0]


def _linked(points: np.ndarray) -> np.ndarray:
    """Labels of the points that nearest neighbours connect."""
    from scipy.sparse import coo_array  # imported here because these take a while
    from scipy.sparse.csgraph import connected_components
    from sklearn.neighbors import NearestNeighbors

    n = len(points)
    nearest = NearestNeighbors(n_neighbors=1, metric="cosine", algorithm="brute").fit(points)
    # Without points to ask about, no point counts as its own neighbour.
    neighbours = nearest.kneighbors(return_distance=False)[:, 0]
    links = coo_array((np.ones(n), (np.arange(n), neighbours)), shape=(n, n))
    labels: np.ndarray = connected_components(links, directed=False)[1]
    return labels

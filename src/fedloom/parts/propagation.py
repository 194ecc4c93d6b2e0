"""Label propagation over class texts, labelled images and a stream of test images (ECALP)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def similarity(
    queries: Tensor, nodes: Tensor, most: int, gamma: float, weights: Tensor | None = None
) -> Tensor:
    """cos^gamma of queries (reweighted by dimension, then scaled to length one) with nodes; for
    every query only the `most` largest are kept, the rest is 0. A negative cosine counts as 0:
    an even power would make it positive.
    """
    if weights is not None:
        queries = F.normalize(queries * weights, dim=1)
    near = (queries @ nodes.T).clamp(min=0) ** gamma
    if near.shape[1] <= most:
        return near
    best = near.topk(most, dim=1)
    return torch.zeros_like(near).scatter(1, best.indices, best.values)


def spread(rows: Tensor) -> Tensor:
    """The variance of every dimension over rows, as shares that sum to one; equal if all are 0."""
    var = rows.var(0, correction=0)
    return var / var.sum() if var.sum() > 0 else torch.full_like(var, 1 / len(var))


def propagate(
    tests: Tensor,
    text: Tensor,
    shots: Tensor,
    y: Tensor,
    *,
    nearest_texts: int,
    nearest_images: int,
    nearest_shots: int,
    gamma: float,
    share: float,
    steps: int,
) -> Tensor:
    """One row of class scores per test image, as they stood when it came; the images come in order.

    Texts and shots have fixed labels. An image is joined to its nearest texts, shots and earlier
    images; then labels flow `steps` times over the normalised graph. An image that came before
    starts from a fifth of its best score.
    """
    n, classes = len(tests), len(text)
    to_text = similarity(tests, text, nearest_texts, gamma)
    # Dimensions in which shots of all classes differ much tell little: they weigh less.
    weigh = 1 / spread(shots).clamp(min=1e-12) if len(shots) else None
    to_shots = similarity(tests, shots, nearest_shots, gamma, weigh)
    between = similarity_earlier(tests, spread(text), nearest_images, gamma)
    labels = F.one_hot(y, classes).to(tests.dtype)
    start = tests.new_zeros(n, classes)
    scores = tests.new_zeros(n, classes)
    degree = (
        to_text.sum(1) + to_shots.sum(1) + between.sum(1)
    )  # grows when later images are joined to it
    text_degree, shot_degree = tests.new_zeros(classes), tests.new_zeros(len(shots))
    source, target = between.nonzero(
        as_tuple=True
    )  # in the order of arrival: the first `seen[i]` are there with i
    weight, seen = between[source, target], torch.bincount(source, minlength=n).cumsum(0).tolist()
    for i in range(n):
        text_degree += to_text[i]
        shot_degree += to_shots[i]
        degree[:i] += between[i, :i]
        s, t = source[: seen[i]], target[: seen[i]]
        root = _root(degree[: i + 1])
        fixed = (
            to_text[: i + 1] * _root(text_degree)
            + (to_shots[: i + 1] * _root(shot_degree)) @ labels
        )
        fixed *= root[:, None]
        flow = (weight[: seen[i]] * root[s] * root[t])[:, None]
        now = start[: i + 1]
        for _ in range(steps):
            moved = fixed.index_add(0, s, flow * now[t]).index_add_(0, t, flow * now[s])
            now = share * moved + (1 - share) * start[: i + 1]
        scores[i] = now[i]
        best = int(now[i].argmax())
        start[i, best] = now[i, best] / 5
    return scores


def similarity_earlier(tests: Tensor, weights: Tensor, most: int, gamma: float) -> Tensor:
    """As `similarity` of all images with those that came before them."""
    near = (F.normalize(tests * weights, dim=1) @ tests.T).clamp(min=0) ** gamma
    near = near.tril(-1)
    best = near.topk(min(most, len(near)), dim=1) if len(near) else None
    return near if best is None else torch.zeros_like(near).scatter(1, best.indices, best.values)


def _root(degree: Tensor) -> Tensor:
    """degree ** -1/2, and 0 for a node without edges."""
    return torch.where(degree > 0, degree.clamp(min=1e-30).rsqrt(), torch.zeros_like(degree))

"""Label propagation over class texts, labelled images and a stream of test images (ECALP)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def similarity(
    queries: Tensor, nodes: Tensor, most: int, gamma: float, weights: Tensor | None = None
) -> Tensor:
    """cos^gamma of queries with nodes; for every query only the `most` largest are kept.

    With `weights`, one per dimension, queries are multiplied by them and scaled to length one. A
    negative cosine counts as 0, because an even power would make it positive.
    """
    if weights is not None:
        queries = F.normalize(queries * weights, dim=1)
    near = (queries @ nodes.T).clamp(min=0) ** gamma
    return _largest(near, most)


def _largest(rows: Tensor, most: int) -> Tensor:
    """Each row with all but its `most` largest entries set to 0."""
    if rows.shape[1] <= most:
        return rows
    best = rows.topk(most, dim=1)
    return torch.zeros_like(rows).scatter(1, best.indices, best.values)


def spread(rows: Tensor) -> Tensor:
    """The variance of every dimension over rows, as shares that sum to one; equal if all are 0."""
    var = rows.var(0, correction=0)
    if var.sum() > 0:
        return var / var.sum()
    return torch.full_like(var, 1 / len(var))


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

    Texts and shots have fixed labels. Each image is linked to its nearest texts, shots and earlier
    images; then labels flow `steps` times over the normalised graph. An image that came before
    starts from a fifth of its best score.
    """
    home = tests.device
    # Thousands of small steps, one image after another: an accelerator would wait for most of them.
    tests, text, shots, y = tests.cpu(), text.cpu(), shots.cpu(), y.cpu()
    n, classes = len(tests), len(text)
    to_text = similarity(tests, text, nearest_texts, gamma)
    by_dimension = None
    if len(shots):  # a dimension in which shots of all classes differ much tells little
        by_dimension = 1 / spread(shots).clamp(min=1e-12)
    to_shots = similarity(tests, shots, nearest_shots, gamma, by_dimension)
    between = similarity_earlier(tests, spread(text), nearest_images, gamma)
    labels = F.one_hot(y, classes).to(tests.dtype)
    start = tests.new_zeros(n, classes)
    scores = tests.new_zeros(n, classes)
    # An image's degree grows when later images are linked to it.
    degree = to_text.sum(1) + to_shots.sum(1) + between.sum(1)
    text_degree = tests.new_zeros(classes)
    shot_degree = tests.new_zeros(len(shots))
    # Links between images are in the order of arrival: with image i the first `seen[i]` are there.
    source, target = between.nonzero(as_tuple=True)
    weight = between[source, target]
    seen = torch.bincount(source, minlength=n).cumsum(0).tolist()
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
    return scores.to(home)


def similarity_earlier(tests: Tensor, weights: Tensor, most: int, gamma: float) -> Tensor:
    """As `similarity` of all images with those that came before them."""
    near = (F.normalize(tests * weights, dim=1) @ tests.T).clamp(min=0) ** gamma
    return _largest(near.tril(-1), most)


def _root(degree: Tensor) -> Tensor:
    """degree ** -1/2, and 0 for a node without edges."""
    return torch.where(degree > 0, degree.clamp(min=1e-30).rsqrt(), torch.zeros_like(degree))

"""Prototype-text alignment (FedPACT): the server's loss, its gradient, margins and scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.device import exact
from .prototypes import row_numbers

Contrast = Literal["classes", "batch"]
Rows = Literal["residual", "free"]


def alignment_loss(
    head: Tensor, prototypes: Tensor, y: Tensor, weights: Tensor, tau: float
) -> Tensor:
    """The weighted sum of -log softmax_y(head . v / tau) over labelled prototypes v (Eq. 6)."""
    return (weights * F.cross_entropy(prototypes @ head.T / tau, y, reduction="none")).sum()


def stability_loss(head: Tensor, text: Tensor) -> Tensor:
    """Minus the mean inner product of a row and the row it started from (Eq. 7)."""
    return -(head * text).sum(1).mean()


def alignment_gradient(
    residual: Tensor,
    text: Tensor,
    prototypes: Tensor,
    targets: Tensor,
    weights: Tensor,
    tau: float,
    lam: float,
    unit: bool,
) -> Tensor:
    """The gradient of alignment_loss + lam * stability_loss at the residual, in closed form.

    The head is text + residual; with `unit` its rows h are scaled to length one. `targets` has a
    one-hot row for each prototype, `weights` is a column. The scaled rows are never computed:
    scores are divided by the rows' lengths instead, and the part of the gradient along h, which
    scaling removes, is summed over the scores, of which there are few.
    """
    head = text + residual
    pull = lam / len(text)
    scores = prototypes @ head.T
    if not unit:
        off = torch.softmax(scores.div_(tau), dim=1).sub_(targets).mul_(weights / tau)
        return torch.addmm(text, off.T, prototypes, beta=-pull)
    per = torch.linalg.vector_norm(head, dim=1).clamp_(min=1e-12).reciprocal_()  # 1 / length
    off = torch.softmax(scores * (per / tau), dim=1).sub_(targets).mul_(weights / tau)
    along = (off * scores).sum(0).sub_(torch.linalg.vecdot(text, head), alpha=pull)
    gradient = (head * along.mul_(per.pow(3).neg_())[:, None]).addcmul_(
        text, per[:, None], value=-pull
    )
    return gradient.addmm_(off.mul_(per).T, prototypes)


def in_batch_gradient(text: Tensor, tau: float, lam: float) -> Callable[..., Tensor]:
    """As `batch_gradient`, for a contrast within the batch: a function of the head itself.

    Each prototype is drawn to the row of its class and pushed from those of the batch's other
    prototypes, which may be the same row. Both are scaled to length one for that, but not in the
    stability loss. All prototypes count alike.
    """

    def gradient(head: Tensor, points: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        q = F.normalize(points, dim=1)
        rows = targets @ head
        per = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1e-12).reciprocal()
        unit = rows * per
        own = torch.eye(len(q), device=q.device)
        off = (torch.softmax(q @ unit.T / tau, dim=1) - own) / (tau * len(q))
        pushed = off.T @ q
        across = (pushed - unit * (unit * pushed).sum(1, keepdim=True)) * per
        return targets.T @ across - lam / len(text) * text

    return gradient


def batch_gradient(text: Tensor, tau: float, lam: float, unit: bool) -> Callable[..., Tensor]:
    """`alignment_gradient` as a function of the residual and a batch of what `samples` gives."""

    def gradient(residual: Tensor, points: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        mean = weights / len(weights)
        return alignment_gradient(residual, text, points, targets, mean, tau, lam, unit)

    return gradient


def server_gradient(
    text: Tensor, tau: float, lam: float, unit: bool, contrast: Contrast, rows: Rows
) -> Callable[..., Tensor]:
    """The gradient of the server's loss at what is trained: the head or its residual."""
    if contrast == "classes":
        of_residual = batch_gradient(text, tau, lam, unit)
        if rows == "residual":
            return of_residual
        return lambda head, *batch: of_residual(head - text, *batch)
    of_head = in_batch_gradient(text, tau, lam)
    if rows == "free":
        return of_head
    return lambda residual, *batch: of_head(text + residual, *batch)


def samples(caches: Tensor, sizes: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the server trains on: prototypes of these classes, targets, and weights by size.

    Weights are K pi_k, so that a batch's mean estimates Eq. 6.
    """
    points = caches[:, classes].flatten(0, 1)
    y = classes.repeat(len(caches))
    share = sizes.double()
    weights = (share / share.mean()).float().repeat_interleave(len(classes))
    return points, F.one_hot(y, caches.shape[1]).to(caches.dtype), weights[:, None]


def margins(features: Tensor, y: Tensor, head: Tensor) -> Tensor:
    """f . h_y minus the largest f . h_j of another class; infinite without another class."""
    scores = features @ head.T
    of_class = scores.gather(1, y[:, None])[:, 0]
    return of_class - scores.scatter(1, y[:, None], -torch.inf).max(1).values


def alignment(cache: Tensor, prototypes: Tensor) -> Tensor:
    """The mean cosine of a cache's rows (... x N x C) with their classes' global prototypes."""
    return F.cosine_similarity(cache, prototypes, dim=-1).mean(-1)


def gains(
    caches: Tensor,
    sizes: Tensor,
    prototypes: Tensor,
    head: Tensor,
    text: Tensor,
    features: Tensor,
    y: Tensor,
) -> dict[str, float]:
    """What FedPACT's paper measures about the server.

    `alignment_least` and `alignment_mean` say how near the clients' caches (K x N x C) are to the
    global prototypes. `margin` is M(H): the margins of the caches' rows, summed over classes and
    weighted by the clients' sizes; `local_margin_least` and `local_margin_mean` are over those
    rows, and `local_improved` is the share of them whose margin is larger with the head than with
    the text it started from (Theorem 3). `margin_improved` is that share of samples, `exp_margin`
    and `exp_margin_text` are E[exp(-m)] over samples, with the head and with the text: the term of
    Theorem 1 that a larger margin makes smaller. A figure that is not finite is left out.
    """
    nearness = alignment(caches, prototypes)
    classes = row_numbers(head)
    by_client, before = [], []
    for cache in caches:
        by_client.append(margins(cache, classes, head))
        before.append(margins(cache, classes, text))
    local, at_first = torch.stack(by_client), torch.stack(before)
    figures = {
        "alignment_least": nearness.min(),
        "alignment_mean": nearness.mean(),
        "margin": exact(torch.stack([each.sum() for each in by_client]))
        @ exact(sizes / sizes.sum()),
        "local_margin_least": local.min(),
        "local_margin_mean": local.mean(),
        "local_improved": exact(local > at_first).mean(),
    }
    if len(y):
        unit = F.normalize(features, dim=1)
        with_head, with_text = margins(unit, y, head), margins(unit, y, text)
        figures["margin_improved"] = exact(with_head > with_text).mean()
        figures["exp_margin"] = torch.exp(-exact(with_head)).mean()
        figures["exp_margin_text"] = torch.exp(-exact(with_text)).mean()
    return {name: float(value) for name, value in figures.items() if torch.isfinite(value)}

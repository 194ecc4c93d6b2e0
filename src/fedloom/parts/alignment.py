"""Prototype-text alignment (FedPACT): the server's loss and its gradient, margins and alignment scores."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def alignment_loss(head: Tensor, prototypes: Tensor, y: Tensor, weights: Tensor, tau: float) -> Tensor:
    """The weighted sum of -log softmax_y(head . v / tau) over labelled prototypes v (Eq. 6)."""
    return (weights * F.cross_entropy(prototypes @ head.T / tau, y, reduction="none")).sum()


def stability_loss(head: Tensor, text: Tensor) -> Tensor:
    """Minus the mean inner product of a row and the row it started from (Eq. 7)."""
    return -(head * text).sum(1).mean()


def alignment_gradient(
    head: Tensor, prototypes: Tensor, targets: Tensor, weights: Tensor, tau: float, text: Tensor, lam: float
) -> Tensor:
    """The gradient of alignment_loss + lam * stability_loss with respect to the head, in closed form.

    `targets` has the classes as rows with a single one.
    """
    off = torch.softmax((prototypes @ head.T).div_(tau), dim=1).sub_(targets).mul_((weights / tau)[:, None])
    return torch.addmm(text, off.T, prototypes, beta=-lam / len(head))


def unit_gradient(matrix: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient with respect to a matrix, from that with respect to its rows scaled to length one."""
    length = matrix.norm(dim=1, keepdim=True).clamp_(min=1e-12)
    unit = matrix / length
    g = gradient(unit)
    return g.addcmul_((g * unit).sum(1, keepdim=True), unit, value=-1).div_(length)


def margins(features: Tensor, y: Tensor, head: Tensor) -> Tensor:
    """f . h_y minus the largest f . h_j of another class; infinite where there is no other class."""
    scores = features @ head.T
    own = scores.gather(1, y[:, None])[:, 0]
    return own - scores.scatter(1, y[:, None], -torch.inf).max(1).values


def alignment(cache: Tensor, prototypes: Tensor) -> Tensor:
    """The mean cosine of a cache's rows (... x N x C) with the global prototypes of their classes."""
    return F.cosine_similarity(cache, prototypes, dim=-1).mean(-1)


def gains(
    caches: Tensor, sizes: Tensor, prototypes: Tensor, head: Tensor, text: Tensor, features: Tensor, y: Tensor
) -> dict[str, float]:
    """FedPACT's own figures: how near clients' caches (K x N x C) are to the global prototypes, the least near and on
    average; M(H), the margins of prototypes summed over classes and weighed by clients' sizes; and the share of samples
    whose margin is larger with the head than with the text it started from."""
    own = alignment(caches, prototypes)
    each = torch.stack([margins(cache, torch.arange(len(head)), head).sum() for cache in caches]).double()
    unit = F.normalize(features, dim=1)
    better = margins(unit, y, head) > margins(unit, y, text)
    found = {
        "alignment_least": own.min(),
        "alignment_mean": own.mean(),
        "margin": each @ (sizes / sizes.sum()).double(),
    }
    if len(y):
        found["margin_improved"] = better.double().mean()
    return {name: float(value) for name, value in found.items() if torch.isfinite(value)}

"""FedGC's network, which turns the look of an image into a prompt of its own, and its losses."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import FedloomError
from ..core.local import Local
from ..models.vpt import Prompted
from .prototypes import class_means

Similarity = Literal["cosine", "dot"]


class Customised(nn.Module):
    """A body whose prompts are moved by h = GC-Net(features of the image alone, held fixed).

    A body that takes no prompts gets h added to its features, and those features are what GC-Net
    sees. With `mixed`, a batch in training is dealt its h as in the authors' code: prompt j of
    sample b is moved by the h of sample (n b + j) mod the batch size.
    """

    def __init__(self, body: nn.Module, width: int, mixed: bool = False) -> None:
        super().__init__()
        self.body, self.mixed = body, mixed
        self.net = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def prompt(self, x: Tensor) -> Tensor:
        """The type-specific prompt h of each sample."""
        h: Tensor
        if isinstance(self.body, Prompted):
            h = self.net(self.body.first(x))
        else:
            h = self.net(self.body(x).detach())
        return h

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.body, Prompted):
            features: Tensor = self.body(x)
            return features + self.net(features.detach())
        h = self.prompt(x)
        shifts = h[:, None]
        if self.mixed and self.training:
            n = len(self.body.prompts)
            shifts = h.repeat(n, 1).reshape(len(h), n, -1)
        moved: Tensor = self.body(x, shifts)
        return moved


def customised(model: Any, mixed: bool) -> nn.Module:
    """The model with GC-Net in its body."""
    if not isinstance(model.head, nn.Linear):
        raise FedloomError(
            "GC-Net needs a model with one vector of features per sample and a linear head."
        )
    model.body = Customised(model.body, model.head.in_features, mixed)
    return model


def customiser(model: nn.Module) -> Customised:
    """The part of a model that has GC-Net in it."""
    return next(m for m in model.modules() if isinstance(m, Customised))


def group_contrast(
    h: Tensor,
    centres: Tensor,
    group: int,
    previous: Tensor,
    tau: float,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Mean -log share of the own group's centre among all centres and the client's previous h."""
    scores = alike(h, torch.cat([centres, previous[None]]), similarity) / tau
    return (scores.logsumexp(1) - scores[:, group]).mean()


def alignment(
    z: Tensor, received: Tensor, previous: Tensor, tau: float, similarity: Similarity = "cosine"
) -> Tensor:
    """Mean -log share of the received model's features against the client's previous model's."""
    if similarity == "cosine":
        z = F.normalize(z, dim=1)
        received = F.normalize(received, dim=1)
        previous = F.normalize(previous, dim=1)
    return F.softplus((z * (previous - received)).sum(1) / tau).mean()


def alike(a: Tensor, b: Tensor, similarity: Similarity) -> Tensor:
    """Inner products, or cosines, of the rows of `a` with those of `b`."""
    if similarity == "cosine":
        return F.normalize(a, dim=1) @ F.normalize(b, dim=1).T
    return a @ b.T


def balanced(features: Tensor, y: Tensor, classes: int) -> Tensor:
    """The mean of the class means, over the classes that have samples."""
    means, counts = class_means(features, y, classes)
    return means[counts > 0].mean(0)


@torch.no_grad()
def mean_prompt(local: Local, most: int | None = None) -> Tensor:
    """The mean h, balanced over classes, of the client's training samples or the first `most`."""
    part = customiser(local.model.eval())
    prompts, labels = [], []
    for x, y in local.chunks():
        prompts.append(part.prompt(x))
        labels.append(y)
    return balanced(torch.cat(prompts)[:most], torch.cat(labels)[:most], local.classes)

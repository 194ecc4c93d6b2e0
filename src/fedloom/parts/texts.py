"""Text anchors: vectors of class names that every client can make, and a network behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..encoders.hash import Hashed


class Texts(nn.Module):
    """The trained text side: class names -> one row of `width` numbers per class.

    `source` is "embedding" (a free vector per class, no text at all), "hash" (fixed pseudo-random
    word vectors) or a text encoder's name. Words and texts go through `depth` linear layers, or
    through one transformer layer over the classes; free vectors are used as they are.
    """

    rows: Tensor

    def __init__(
        self,
        source: str,
        classes: Sequence[str],
        width: int,
        depth: int = 1,
        shape: Literal["mlp", "transformer"] = "mlp",
    ) -> None:
        super().__init__()
        self.free: nn.Parameter | None = None
        self.layers = nn.Sequential()
        if source == "embedding":
            self.free = nn.Parameter(torch.randn(len(classes), width))
            return
        rows = fixed_rows(source, classes, width)
        # Everybody can make these rows, so they are never sent.
        self.register_buffer("rows", rows, persistent=False)
        if shape == "transformer":
            self.layers = _transformer(rows.shape[1], width)
        else:
            self.layers = _mlp(rows.shape[1], width, depth)

    def forward(self) -> Tensor:
        if self.free is not None:
            return self.free
        rows: Tensor = self.layers(self.rows)
        return rows


def _transformer(inputs: int, width: int) -> nn.Sequential:
    """A linear layer to the width, then a transformer layer with as many heads as divide it."""
    heads = math.gcd(8, width)
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True),
    )


def _mlp(inputs: int, width: int, depth: int) -> nn.Sequential:
    """`depth` linear layers with a ReLU between each two."""
    layers = nn.Sequential(nn.Linear(inputs, width))
    for _ in range(depth - 1):
        layers.append(nn.ReLU())
        layers.append(nn.Linear(width, width))
    return layers


def fixed_rows(source: str, classes: Sequence[str], width: int) -> Tensor:
    """One fixed row per class name, with entries of about 1, from hashed words or a text encoder.

    An encoder's rows are centred over the classes: what all names share tells none of them apart.
    """
    if source == "hash":
        return Hashed(width)([name.replace("_", " ") for name in classes])
    from ..encoders import text

    rows = text(source).encode(classes)
    if len(rows) > 1:
        rows = rows - rows.mean(0)
    return F.normalize(rows, dim=1) * rows.shape[1] ** 0.5


def similarities(features: Tensor, anchors: Tensor) -> Tensor:
    """The cosine of every feature vector (or of every pixel's, in a map) with every anchor."""
    return torch.einsum(
        "bd...,cd->bc...", F.normalize(features, dim=1), F.normalize(anchors, dim=1)
    )


def text_loss(features: Tensor, y: Tensor, anchors: Tensor, scale: float) -> Tensor:
    """The cross-entropy of `scale` times the cosines with the anchors."""
    return F.cross_entropy(scale * similarities(features, anchors), y)


def prior(anchors: Tensor, counts: Tensor) -> Tensor:
    """The mean of the anchors, weighted by how often a client meets their classes."""
    return (counts / counts.sum()).to(anchors.dtype) @ anchors

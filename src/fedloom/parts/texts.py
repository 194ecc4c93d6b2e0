"""Text anchors: vectors of class names that every client can make, and a network behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..encoders.hash import Hashed


class Texts(nn.Module):
    """The trained text side: class names -> one row of `width` numbers per class.

    `source` is "embedding" (a free vector per class, no text at all), "hash" (fixed pseudo-random
    word vectors) or a text encoder's name. All but the first go through `depth` linear layers, or
    one transformer layer over the classes.
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
        self.free = (
            nn.Parameter(torch.randn(len(classes), width)) if source == "embedding" else None
        )
        self.layers = nn.Sequential()
        if self.free is None:
            rows = fixed_rows(source, classes, width)
            self.register_buffer(
                "rows", rows, persistent=False
            )  # everybody can make them: they are never sent
            if shape == "transformer":
                heads = next(h for h in (8, 4, 2, 1) if width % h == 0)
                self.layers.append(nn.Linear(rows.shape[1], width))
                self.layers.append(
                    nn.TransformerEncoderLayer(
                        width, heads, 2 * width, dropout=0.0, batch_first=True
                    )
                )
            for i in range(depth if shape == "mlp" else 0):
                self.layers.append(nn.Linear(rows.shape[1] if i == 0 else width, width))
                if i < depth - 1:
                    self.layers.append(nn.ReLU())

    def forward(self) -> Tensor:
        if self.free is not None:
            return self.free
        made: Tensor = self.layers(self.rows)
        return made


def fixed_rows(source: str, classes: Sequence[str], width: int) -> Tensor:
    """One fixed row per class name, of about unit entries, from hashed words or a text encoder.

    An encoder's rows are centred over the classes: what all names share tells none of them apart.
    """
    if source == "hash":
        return Hashed(width)([name.replace("_", " ") for name in classes])
    from ..encoders import text

    rows = text(source).encode(classes)
    rows = rows - rows.mean(0) if len(rows) > 1 else rows
    return F.normalize(rows, dim=1) * rows.shape[1] ** 0.5


def similarities(features: Tensor, anchors: Tensor) -> Tensor:
    """The cosine of every feature vector (or of every pixel's, in a map) with every anchor."""
    return torch.einsum(
        "bd...,cd->bc...", F.normalize(features, dim=1), F.normalize(anchors, dim=1)
    )


def prior(anchors: Tensor, counts: Tensor) -> Tensor:
    """The mean of the anchors, weighted by how often a client meets their classes."""
    return (counts / counts.sum()).to(anchors.dtype) @ anchors

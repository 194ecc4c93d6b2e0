"""Text anchors: vectors of class names that every client can make, and a network behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import FedloomError
from ..encoders.hash import Hashed
from ..encoders.nets.attention import Transformer

Layers = Literal["mlp", "transformer", "transformer-tiny", "tower"]
TINY_WIDTH, TINY_LAYERS, TINY_HIDDEN = 512, 3, 2000  # 9.3 million parameters, as FedDTR's has


def refuse_layers_without_words(source: str, depth: int, shape: Layers) -> None:
    """Refuse layers for a text side that reads nothing."""
    if source in ("embedding", "none") and (depth > 1 or shape != "mlp"):
        raise FedloomError(
            "text_depth and text_layers need text=hash or a text encoder; "
            f"text={source} has no layers."
        )


class Texts(nn.Module):
    """The trained text side: class names -> one row of `width` numbers per class.

    `source` is "embedding" (a free vector per class, no text at all), "hash" (fixed pseudo-random
    word vectors) or a text encoder's name. Words and texts go through `depth` linear layers,
    through one transformer layer over the classes, or through a small transformer over the words;
    with "tower" the text encoder itself is trained. Free vectors are used as they are.
    """

    rows: Tensor

    def __init__(
        self,
        source: str,
        classes: Sequence[str],
        width: int,
        depth: int = 1,
        shape: Layers = "mlp",
    ) -> None:
        super().__init__()
        self.free: nn.Parameter | None = None
        self.reader: nn.Module | None = None
        self.layers = nn.Sequential()
        if source == "embedding":
            self.free = nn.Parameter(torch.randn(len(classes), width))
            return
        if shape in ("transformer-tiny", "tower"):
            self.reader, inputs = _reader(source, classes, shape)
            if inputs != width:
                self.layers = _mlp(inputs, width, 1)
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
        rows: Tensor = self.layers(self.reader() if self.reader is not None else self.rows)
        return rows


def _reader(source: str, classes: Sequence[str], shape: Layers) -> tuple[nn.Module, int]:
    """A network that reads the class names and is trained, and how wide its rows are."""
    names = [name.replace("_", " ") for name in classes]
    if shape == "transformer-tiny":
        if source != "hash":
            raise FedloomError("a transformer over words needs text=hash, which gives them.")
        return WordReader(names), TINY_WIDTH
    from ..encoders import text

    if source == "hash":
        raise FedloomError("text=hash has no network to train; text_layers=tower needs clip:PATH.")
    encoder = text(source)
    if encoder.tower is None:
        raise FedloomError(
            f"the network of text encoder {source} cannot be trained; clip:PATH can."
        )
    with torch.device("cpu"):  # weights from a file are there, also where sizes are only measured
        return encoder.tower([f"This is a {name}" for name in names]), encoder.dim


class WordReader(nn.Module):
    """A transformer over the words of "This is a NAME"; a text's row is the mean of its words'."""

    words: Tensor
    real: Tensor

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        hashed = Hashed(TINY_WIDTH)
        split = [hashed.words(f"This is a {name}") for name in names]
        longest = max(len(words) for words in split)
        rows = torch.zeros(len(split), longest, TINY_WIDTH)
        real = torch.zeros(len(split), longest, 1)
        for i, words in enumerate(split):
            rows[i, : len(words)] = torch.stack([hashed.word(word) for word in words])
            real[i, : len(words)] = 1
        self.register_buffer("words", rows + _places(longest), persistent=False)
        self.register_buffer("real", real, persistent=False)
        # A word sees those before it, so padding at the end of a text changes nothing.
        self.transformer = Transformer(TINY_WIDTH, TINY_LAYERS, TINY_HIDDEN, nn.GELU, causal=True)
        self.norm = nn.LayerNorm(TINY_WIDTH)

    def forward(self) -> Tensor:
        seen = self.norm(self.transformer(self.words)) * self.real
        return seen.sum(1) / self.real.sum(1)


def _places(length: int) -> Tensor:
    """A fixed vector for each place in a text: sines and cosines of ever longer waves."""
    place = torch.arange(length, dtype=torch.float32)[:, None]
    wave = torch.exp(torch.arange(0, TINY_WIDTH, 2) * (-math.log(10_000.0) / TINY_WIDTH))
    return torch.stack([(place * wave).sin(), (place * wave).cos()], dim=2).flatten(1)


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


def text_losses(
    features: Tensor, y: Tensor, received: Tensor, anchors: Tensor, scale: float, apart: bool
) -> dict[str, Tensor]:
    """L_img pulls features to the received anchors, L_txt the anchors to the features.

    If they are not held `apart`, one loss moves both towards each other.
    """
    if not apart:
        return {"both": text_loss(features, y, anchors, scale)}
    return {
        "image": text_loss(features, y, received, scale),
        "text": text_loss(features.detach(), y, anchors, scale),
    }


def text_rows(model: Any) -> Tensor:
    """T of a model with a text side, a row per class; zeros without one."""
    side = getattr(model, "text", None)
    if not isinstance(side, Texts):
        return torch.zeros(model.head.weight.shape[:2])
    rows: Tensor = side()
    return rows


def prior(anchors: Tensor, counts: Tensor) -> Tensor:
    """The mean of the anchors, weighted by how often a client meets their classes."""
    return (counts / counts.sum()).to(anchors.dtype) @ anchors

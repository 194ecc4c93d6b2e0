"""Dual encoders: images and class names as unit vectors in one space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from ..core.registry import Registry
from .base import make
from .encoder import Encoder
from .texts import TextEncoder


@dataclass(frozen=True)
class Context:
    """How a text encoder takes trained vectors in place of a template's words.

    `read(classes, context)` gives one row per class, with gradients to `context` (any number of
    rows of `width` numbers each).
    """

    width: int
    read: Callable[[Sequence[str], Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Dual:
    """An image and a text encoder with one space.

    `scale` turns cosines into logits and belongs to the pair. `context` is for prompt learning; it
    is None if the text side takes no trained vectors.
    """

    name: str
    image: Encoder
    text: TextEncoder
    scale_of: Callable[[], float]
    context: Context | None = None

    @property
    def dim(self) -> int:
        """The width of the common space."""
        return self.image.dim

    @property
    def scale(self) -> float:
        """The logit scale."""
        return self.scale_of()

    def head(self, classes: Sequence[str], templates: str | Sequence[str] | None = None) -> Tensor:
        """The zero-shot classifier: one unit vector per class name."""
        return self.text.encode(classes, templates)

    def logits(self, features: Tensor, head: Tensor) -> Tensor:
        """Logits of image features for the classes of a head: scaled cosines."""
        return self.scale * F.normalize(features, dim=1) @ F.normalize(head, dim=1).T


class Normalised(nn.Module):
    """A module whose output rows are scaled to length one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.inner(x), dim=1)


class Tower(nn.Module):
    """A trainable copy of a network that reads texts, with the tokens of some."""

    def __init__(self, network: nn.Module, **tokens: Tensor) -> None:
        super().__init__()
        self.network = network.requires_grad_(True)
        self.names = tuple(tokens)
        for name, tensor in tokens.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self) -> Tensor:
        rows: Tensor = self.network(**{name: getattr(self, name) for name in self.names})
        return rows


DUAL: Registry[Callable[..., Dual]] = Registry(
    "dual encoder", "fedloom.dual_encoders", "fedloom.encoders", decorator="DUAL.register"
)


def dual(name: str) -> Dual:
    """The dual encoder of that name: `lite-clip` or `clip:PATH`."""
    return make(DUAL, name)

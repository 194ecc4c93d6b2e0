"""Frozen vision models whose tokens prompts can stand beside."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError


@dataclass(frozen=True)
class Tokens:
    """What a ViT makes of a batch: one vector per image, one per patch, one per extra token."""

    cls: Tensor  # N x width
    patches: Tensor  # N x patches x width
    extra: Tensor  # N x extra x width


class Vision(nn.Module):
    """A frozen vision model that gives features; `tokens` gives a ViT's tokens, with extra ones.

    It stays in evaluation mode whatever mode the model around it is in.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Vision:
        """Always evaluation mode."""
        return super().train(False)

    @property
    @abstractmethod
    def size(self) -> int | None:
        """The side of the images it takes; None if it takes any."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers a token has."""

    @abstractmethod
    def tokens(self, pixels: Tensor, extra: Tensor | None = None) -> Tokens:
        """The tokens after the last layer, with `extra` ones behind the patches.

        `extra` is tokens x width for all images or N x tokens x width, gets no position embedding,
        and gradients reach it. Without extra tokens, `cls` is what calling the module gives, so
        that pass can be taken from the feature cache.
        """

    def expanded(self, n: int, extra: Tensor | None) -> Tensor:
        """Extra tokens for each of `n` images, N x tokens x width."""
        if extra is None:
            extra = torch.empty(0, self.width)
        if extra.ndim == 2:
            extra = extra.expand(n, -1, -1)
        if extra.ndim != 3 or extra.shape[0] != n or extra.shape[2] != self.width:
            raise FedloomError(
                f"extra tokens must be tokens x {self.width}, or {n} x tokens x {self.width} for "
                f"these images; got shape {tuple(extra.shape)}."
            )
        return extra

    def check(self, pixels: Tensor) -> None:
        """Refuse images of a shape that the model does not take."""
        fits = pixels.ndim == 4 and pixels.shape[1] == 3
        if fits and (not self.size or pixels.shape[2:] == (self.size, self.size)):
            return
        raise FedloomError(
            f"this {type(self.model).__name__} takes images of shape (samples, 3, "
            f"{self.size or 'height'}, {self.size or 'width'}), got {tuple(pixels.shape)}."
        )

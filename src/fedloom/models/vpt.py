"""Visual prompt tuning: a frozen ViT that is shown a few trainable tokens beside an image, and a linear head."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.errors import FedloomError
from ..data.views import split_pixels
from .base import Split, Task, positive, register


class Held:
    """A frozen ViT that a model uses but does not contain: it is no part of the model's tensors, is never sent, and
    copies of the model share it. Another process loads it anew, by its name."""

    def __init__(self, name: str) -> None:
        from ..encoders import image, vit  # here, for they take a while to import

        self.name, self.vit, self.preprocess = name, vit(name), image(name).preprocess

    def __deepcopy__(self, memo: Any) -> Held:
        return self

    def __reduce__(self) -> Any:
        return held, (self.name,)


@lru_cache(maxsize=2)
def held(name: str) -> Held:
    """The frozen ViT of that name, loaded once."""
    return Held(name)


class Prompted(nn.Module):
    """The class token of a frozen ViT that sees `prompts` behind the patches of an image.

    It takes images, or rows of pixels and features (`data.views.WithPixels`): then `first`, the ViT's features of the
    image without prompts, is read and not computed.
    """

    def __init__(self, frozen: Held, task: Task, prompts: int, dropout: float) -> None:
        super().__init__()
        self.frozen, self.width = frozen, frozen.vit.width
        self.mean, self.std = (torch.tensor(v)[:, None, None] for v in (task.mean, task.std))
        self.prompts = nn.Parameter(0.02 * torch.randn(prompts, self.width))
        self.dropout = nn.Dropout(dropout)

    def pixels(self, x: Tensor) -> Tensor:
        """What the ViT is shown."""
        if x.ndim == 2:
            return split_pixels(x, self.frozen.preprocess.size)[0]
        return self.frozen.preprocess.from_floats(x * self.std + self.mean)

    @torch.no_grad()
    def first(self, x: Tensor) -> Tensor:
        """The ViT's features of the image alone."""
        if x.ndim == 2:
            return split_pixels(x, self.frozen.preprocess.size)[1]
        features: Tensor = self.frozen.vit(self.pixels(x))
        return features

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        """Features, with prompts moved by `shift` (samples x 1 or prompts x width)."""
        pixels, extra = self.pixels(x), self.prompts if shift is None else self.prompts + shift
        # The fast kernels of attention have no second derivative; who wants the gradient in an image may want that too.
        with sdpa_kernel(
            SDPBackend.MATH if x.requires_grad else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        ):
            token = self.frozen.vit.tokens(pixels, extra).cls
        features: Tensor = self.dropout(token)
        return features


@register("vpt")
def vpt(task: Task, *, prompts: int = 4, dropout: float = 0.1, vit: str | None = None) -> Split:
    """Visual prompt tuning: `prompts` trainable tokens before a frozen ViT, and a linear head on its class token.

    `vit` is `vit-mini` or `hf:PATH`; by default the encoder that made the samples, else vit-mini. Samples are images,
    or what `--encoder vit-mini --set pixels=true` makes of them.
    """
    positive("vpt", prompts=prompts)
    if not 0 <= dropout < 1:
        raise FedloomError(
            f"option 'dropout' of model 'vpt' must be at least 0 and below 1, not {dropout!r}."
        )
    if task.encoder and vit and vit != task.encoder:
        raise FedloomError(
            f"model 'vpt' was given features of {task.encoder} and told to use {vit}."
        )
    frozen = held(vit or task.encoder or "vit-mini")
    row = 3 * frozen.preprocess.size**2 + frozen.vit.width
    if task.vocabulary is not None or not (len(task.shape) == 3 or task.shape == (row,)):
        raise FedloomError(
            "model 'vpt' needs images, or rows of pixels and features (--encoder vit-mini --set pixels=true), but the "
            f"task's samples have shape {task.shape}."
        )
    body = Prompted(frozen, task, prompts, dropout)
    return Split(body, nn.Linear(body.width, task.classes), body.width)

"""Visual prompt tuning: a frozen ViT sees a few trainable tokens beside an image."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.device import on_device
from ..core.errors import FedloomError
from ..core.user_files import allow
from ..data.views import split_pixels
from ..encoders import image, vit
from .base import Split, Task, positive, register


class Held:
    """A frozen ViT that a model uses but does not contain.

    It is not among the model's tensors, is never sent, and copies of the model share it. Another
    process loads it again by its name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.vit = vit(name)
        self.preprocess = image(name).preprocess

    def on(self, device: torch.device) -> Any:
        """The ViT on a device."""
        return on_device(self.vit, device)

    def __deepcopy__(self, memo: Any) -> Held:
        return self

    def __reduce__(self) -> Any:
        return _held_again, (self.name,)


def _held_again(name: str) -> Held:
    """The ViT of that name in another process of this run, which may do what the first may."""
    allow({"encoder": name})
    return held(name)


@lru_cache(maxsize=2)
def held(name: str) -> Held:
    """The frozen ViT of that name, loaded once."""
    return Held(name)


class Contained(nn.Module):
    """The ViT as a part of the model, in a model that leaves the engine."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self.vit = copy.deepcopy(held.vit)
        self.preprocess = held.preprocess

    def on(self, device: torch.device) -> Any:
        """The ViT, which is where the model is."""
        return self.vit


class Prompted(nn.Module):
    """The class token of a frozen ViT that sees `prompts` behind the patches of an image.

    It takes images, or rows of pixels and features (`data.views.WithPixels`): then `first`, the
    ViT's features of the image without prompts, is read and not computed.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, frozen: Held, task: Task, prompts: int, dropout: float) -> None:
        super().__init__()
        self.frozen: Held | Contained = frozen
        self.width = frozen.vit.width
        self.register_buffer("mean", torch.tensor(task.mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(task.std)[:, None, None], persistent=False)
        self.prompts = nn.Parameter(0.02 * torch.randn(prompts, self.width))
        self.dropout = nn.Dropout(dropout)

    def contain(self) -> None:
        """Make the ViT a part of this module: its tensors are then among the model's."""
        if isinstance(self.frozen, Held):
            self.frozen = Contained(self.frozen)

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
        features: Tensor = self.frozen.on(x.device)(self.pixels(x))
        return features

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        """Features, with prompts moved by `shift` (samples x 1 or prompts x width)."""
        pixels = self.pixels(x)
        extra: Tensor = self.prompts
        if shift is not None:
            extra = self.prompts + shift
        kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        if x.requires_grad:
            # The fast kernels of attention have no second derivative, which a caller who asks for
            # the gradient of an image may need as well.
            kernels = [SDPBackend.MATH]
        with sdpa_kernel(kernels):
            token = self.frozen.on(x.device).tokens(pixels, extra).cls
        features: Tensor = self.dropout(token)
        return features


@register("vpt")
def vpt(
    task: Task,
    *,
    prompts: Annotated[int, "Number of trainable tokens beside the image."] = 4,
    dropout: Annotated[float, "Share of the class token's numbers dropped in training."] = 0.1,
    vit: Annotated[
        str | None, "The frozen ViT: vit-mini, hf:PATH, or by default the data's encoder."
    ] = None,
) -> Split:
    """Visual prompt tuning: trainable tokens beside a frozen ViT's, and a linear head.

    Without `vit` it uses the encoder that made the samples, else vit-mini. Samples are images, or
    what `--encoder vit-mini --set pixels=true` makes of them.
    """
    positive("vpt", prompts=prompts)
    if not 0 <= dropout < 1:
        raise FedloomError(
            f"option 'dropout' of model 'vpt' must be at least 0 and below 1, not {dropout!r}."
        )
    if task.encoder and vit and vit != task.encoder:
        raise FedloomError(
            f"model 'vpt' has features of {task.encoder} and cannot use {vit} with them."
        )
    frozen = held(vit or task.encoder or "vit-mini")
    row = 3 * frozen.preprocess.size**2 + frozen.vit.width
    if task.vocabulary is not None or not (len(task.shape) == 3 or task.shape == (row,)):
        raise FedloomError(
            "model 'vpt' needs images, or rows of pixels and features (--encoder vit-mini "
            f"--set pixels=true), but the task's samples have shape {task.shape}."
        )
    body = Prompted(frozen, task, prompts, dropout)
    return Split(body, nn.Linear(body.width, task.classes), body.width)

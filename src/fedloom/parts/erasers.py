"""Layers split into a shared extractor and a client's own eraser of its domain (FDSE)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..models.base import layers


class Affine(nn.Module):
    """A factor and a shift per channel: the trained part of a BatchNorm without its statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.zeros(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *[1] * (x.ndim - 2))
        return x * self.weight.view(shape) + self.bias.view(shape)


class Statistics2d(nn.BatchNorm2d):
    """BatchNorm without trained parameters, as a type of its own with a role of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=False)


class Erasing(nn.Module):
    """A layer of which 1/ratio of the channels are computed (`extract`) and the others made from
    these by a cheap channel-wise convolution (`erase`) behind a normalisation; then a bias and,
    unless one follows, a BatchNorm.
    """

    def __init__(
        self, extract: nn.Module, channels: int, outputs: int, kernel: int, norm: nn.Module
    ) -> None:
        super().__init__()
        self.extract, self.statistics, self.affine = (
            extract,
            Statistics2d(channels),
            Affine(channels),
        )
        copies = math.ceil(outputs / channels) - 1
        self.erase = nn.Conv2d(
            channels, channels * copies, kernel, padding=kernel // 2, groups=channels, bias=False
        )
        self.bias, self.norm = nn.Parameter(torch.zeros(outputs)), norm

    def forward(self, x: Tensor) -> Tensor:
        kept = self.extract(x)
        flat = kept.ndim == 2
        kept = kept[:, :, None, None] if flat else kept
        made = self.erase(self.affine(self.statistics(kept)))
        both = torch.cat([kept, made], 1)[:, : len(self.bias)] + self.bias[:, None, None]
        result: Tensor = self.norm(both.flatten(1) if flat else both)
        return result


def with_erasers(body: nn.Module, ratio: int) -> nn.Module:
    """The body with its convolutions and linear layers split; `ratio` 1 leaves it as it is.

    A BatchNorm that is defined next after a layer, with as many channels, keeps its place; a layer
    without one gets one. Grouped convolutions and layers of fewer than `ratio` channels stay whole.
    """
    whole = nn.Sequential(body)  # the body may itself be a single layer
    leaves = [(name, m) for name, m in whole.named_modules() if not list(m.children())]
    for (name, layer), (_, after) in zip(leaves, [*leaves[1:], ("", nn.Identity())], strict=True):
        convolution = isinstance(layer, nn.Conv2d) and layer.groups == 1
        outputs = (
            layer.out_channels
            if convolution
            else layer.out_features
            if isinstance(layer, nn.Linear)
            else 0
        )
        if ratio == 1 or outputs < ratio:
            continue
        channels = math.ceil(outputs / ratio)
        normed = (
            isinstance(after, nn.BatchNorm1d | nn.BatchNorm2d) and after.num_features == outputs
        )
        kind: Any = nn.Identity if normed else nn.BatchNorm2d if convolution else nn.BatchNorm1d
        split = Erasing(
            _narrow(layer, channels), channels, outputs, 3 if convolution else 1, kind(outputs)
        )
        parent, _, own = name.rpartition(".")
        setattr(whole.get_submodule(parent), own, split)
    return whole[0]


def extractor_norms(body: nn.Module) -> list[_BatchNorm]:
    """The BatchNorms that are not part of an eraser, in order."""
    return [
        m for m in layers(body) if isinstance(m, _BatchNorm) and not isinstance(m, Statistics2d)
    ]


def eraser_names(model: nn.Module) -> list[str]:
    """The names of all parameters of erasers."""
    layers = [m for m in model.modules() if isinstance(m, Erasing)]
    own = {id(p) for m in layers for part in (m.affine, m.erase) for p in part.parameters()}
    return [n for n, p in model.named_parameters() if id(p) in own]


def _narrow(layer: Any, outputs: int) -> nn.Module:
    """A fresh layer like this one with fewer outputs and no bias."""
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, outputs, bias=False)
    return nn.Conv2d(
        layer.in_channels,
        outputs,
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
        bias=False,
        padding_mode=layer.padding_mode,
    )


def channel_gap(x: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """KL(N(mean, var) || N(a batch's mean and variance)) of each channel, averaged over channels; 0
    for a batch with a single value per channel, which has no variance.
    """
    values = x.transpose(0, 1).flatten(1)
    if values.shape[1] < 2:
        return x.sum() * 0
    own, spread, var = values.mean(1), values.var(1, correction=0) + eps, var + eps
    return 0.5 * ((spread / var).log() + (var + (mean - own) ** 2) / spread - 1).mean()

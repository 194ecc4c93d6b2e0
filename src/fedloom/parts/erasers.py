"""Layers split into a shared extractor and a client's own eraser of its domain (FDSE)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.private_torch import BATCHNORMS, BatchNorm
from ..core.tree import Tree
from ..models.base import layers
from .levels import leaves


class Affine(nn.Module):
    """A factor and a shift per channel: the trained part of a BatchNorm without its statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *[1] * (x.ndim - 2))
        return x * self.weight.view(shape) + self.bias.view(shape)


class Statistics2d(nn.BatchNorm2d):
    """BatchNorm without trained parameters, as a type of its own with a role of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=False)


class Erasing(nn.Module):
    """A layer that computes some of its channels and makes the others from them.

    `extract` computes a share of the channels; a normalisation and `erase`, a cheap channel-wise
    convolution, make the others. A bias follows and, unless the network has one there, a BatchNorm.
    """

    def __init__(
        self, extract: nn.Module, channels: int, outputs: int, kernel: int, norm: nn.Module
    ) -> None:
        super().__init__()
        self.extract = extract
        self.statistics = Statistics2d(channels)
        self.affine = Affine(channels)
        copies = math.ceil(outputs / channels) - 1
        self.erase = nn.Conv2d(
            channels, channels * copies, kernel, padding=kernel // 2, groups=channels, bias=False
        )
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        kept = self.extract(x)
        is_vector = kept.ndim == 2
        if is_vector:
            kept = kept[:, :, None, None]
        erased = self.erase(self.affine(self.statistics(kept)))
        both = torch.cat([kept, erased], 1)[:, : len(self.bias)] + self.bias[:, None, None]
        if is_vector:
            both = both.flatten(1)
        result: Tensor = self.norm(both)
        return result


def with_erasers(body: nn.Module, ratio: int) -> nn.Module:
    """The body with its convolutions and linear layers split; `ratio` 1 leaves it as it is.

    A BatchNorm that is defined next after a layer, with as many channels, keeps its place; a layer
    without one gets one. Grouped convolutions and layers of fewer than `ratio` channels stay whole,
    and so do frozen ones.
    """
    if ratio == 1:
        return body
    whole = nn.Sequential(body)  # the body may itself be a single layer
    every = [*leaves(whole), ("", nn.Identity())]
    for (name, layer), (_, after) in pairwise(every):
        split = _split(layer, after, ratio)
        if split is not None:
            parent, _, attribute = name.rpartition(".")
            setattr(whole.get_submodule(parent), attribute, split)
    return whole[0]


def _split(layer: nn.Module, after: nn.Module, ratio: int) -> Erasing | None:
    """The layer with an eraser in it; None for one that stays whole."""
    norm: nn.Module
    if not all(parameter.requires_grad for parameter in layer.parameters()):
        return None
    if isinstance(layer, nn.Conv2d) and layer.groups == 1:
        outputs, kernel = layer.out_channels, 3
        norm = nn.BatchNorm2d(outputs)
    elif isinstance(layer, nn.Linear):
        outputs, kernel = layer.out_features, 1
        norm = nn.BatchNorm1d(outputs)
    else:
        return None
    if outputs < ratio:
        return None
    if isinstance(after, nn.BatchNorm1d | nn.BatchNorm2d) and after.num_features == outputs:
        norm = nn.Identity()
    channels = math.ceil(outputs / ratio)
    return Erasing(_narrow(layer, channels), channels, outputs, kernel, norm)


def extractor_norms(body: nn.Module) -> list[BatchNorm]:
    """The BatchNorms that are not part of an eraser, in order."""
    return [
        m for m in layers(body) if isinstance(m, BATCHNORMS) and not isinstance(m, Statistics2d)
    ]


def eraser_names(model: nn.Module) -> list[str]:
    """The names of all parameters of erasers."""
    of_erasers: set[int] = set()
    for module in model.modules():
        if isinstance(module, Erasing):
            of_erasers.update(map(id, module.affine.parameters()))
            of_erasers.update(map(id, module.erase.parameters()))
    return [name for name, p in model.named_parameters() if id(p) in of_erasers]


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
    """KL(N(mean, var) || N(the batch's mean and variance)), averaged over channels.

    It is 0 for a batch with a single value per channel, which has no variance.
    """
    values = x.transpose(0, 1).flatten(1)
    if values.shape[1] < 2:
        return x.sum() * 0
    batch_mean = values.mean(1)
    batch_var = values.var(1, correction=0) + eps
    var = var + eps
    return 0.5 * ((batch_var / var).log() + (var + (mean - batch_mean) ** 2) / batch_var - 1).mean()


def mixed_by_similarity(erasers: Mapping[int, Tree], tau: float) -> dict[int, Tree]:
    """For each client a mean of all erasers, tensor by tensor, in which similar ones count more."""
    mixed: dict[int, dict[str, Tensor]] = {k: {} for k in erasers}
    for name in next(iter(erasers.values())):
        rows = mixtures(torch.stack([eraser[name] for eraser in erasers.values()]), tau)
        for k, row in zip(erasers, rows, strict=True):
            mixed[k][name] = row
    return {k: Tree(tensors) for k, tensors in mixed.items()}


def mixtures(rows: Tensor, tau: float) -> Tensor:
    """For each client's tensor the mean of all, weighted by softmax of cosines over tau."""
    flat = F.normalize(rows.flatten(1), dim=1)
    weights = torch.softmax(flat @ flat.T / tau, 1)
    return (weights @ rows.flatten(1)).view_as(rows)

"""Normalisation behind convolutions: what `norm` of a network can be."""

import math
from typing import Literal, get_args

from torch import nn

from ..core.errors import unknown

Norm = Literal["batch", "group", "layer", "none"]


def chosen(model: str, norm: bool | str) -> Norm:
    """The kind of norm; true is `batch`, false `none`."""
    if norm is True:
        return "batch"
    if norm is False:
        return "none"
    for kind in get_args(Norm):
        if norm == kind:
            found: Norm = kind
            return found
    raise unknown(f"norm of model '{model}'", str(norm), get_args(Norm))


def normalised(kind: Norm, channels: int) -> nn.Module:
    """The layer for maps of so many channels.

    `batch` takes its statistics over a batch, and in evaluation those it has kept; the others take
    them over each sample alone, `group` over eight groups of channels (fewer, where eight do not
    divide them), `layer` over all.
    """
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        return nn.GroupNorm(math.gcd(8, channels), channels)
    if kind == "layer":
        return nn.GroupNorm(1, channels)
    return nn.Identity()

"""What becomes of a sample before the network sees it, as a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .stages import Bytes, Standardised


def prepared(about: Mapping[str, Any], standard: tuple[Tensor, Tensor] | None = None) -> nn.Module:
    """The module from samples as they are read to samples as the network wants them.

    `about` is an exported model's description of its input; `standard` is the mean and the scale of
    its features, if it is known already.
    """
    if not about.get("standardised"):
        return _seen(about)
    last = Standardised(*about["features"])
    if standard is not None:
        last.load_state_dict({"mean": standard[0], "scale": standard[1]})
    return nn.Sequential(_seen(about), last)


def _seen(about: Mapping[str, Any]) -> nn.Module:
    """Images as features or as normalised pixels; other samples as they are."""
    if about["encoder"]:
        from ..encoders import images
        from ..encoders.frozen import Frozen

        return Frozen(images(about["encoder"]), tuple(about["shape"]), about["pixels"])
    if about["dtype"] == "uint8":
        return Bytes(about["mean"], about["std"])
    return nn.Identity()

"""`head`: the body stays as it is."""

from __future__ import annotations

from torch import nn

from .base import freeze_body, register


@register("head")
def head(model: nn.Module) -> nn.Module:
    """Only the head is trained, on the features of a body that stays as it is."""
    freeze_body(model)
    return model

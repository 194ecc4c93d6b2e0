"""Frozen pre-trained networks: image encoders, text encoders, dual encoders, and the cache of what they compute."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .known import (  # fmt: skip
        DUAL,
        IMAGE,
        TEXT,
        Cache,
        Context,
        Dual,
        Encoder,
        Preprocess,
        TextEncoder,
        Tokens,
        Vision,
        dual,
        encode,
        features,
        image,
        images,
        template_for,
        text,
        vit,
    )

__all__ = [
    "DUAL", "IMAGE", "TEXT", "Cache", "Context", "Dual", "Encoder", "Preprocess", "TextEncoder", "Tokens", "Vision",
    "dual", "encode", "features", "image", "images", "template_for", "text", "vit",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Loaded when first used, so that the command line's help does not wait for torch.
    if name not in __all__:
        raise AttributeError(f"module 'fedloom.encoders' has no attribute {name!r}")
    return getattr(import_module(".known", __name__), name)

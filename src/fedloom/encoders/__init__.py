"""Frozen pre-trained networks: encoders of images, of texts and of both, and a feature cache."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Preprocess
    from .cache import Cache
    from .duals import DUAL, Context, Dual, dual
    from .encoder import IMAGE, Encoder, encode, features, image, images
    from .huggingface import vit
    from .texts import TEXT, TextEncoder, template_for, text
    from .vision import Tokens, Vision

__all__ = [
    "DUAL",
    "IMAGE",
    "TEXT",
    "Cache",
    "Context",
    "Dual",
    "Encoder",
    "Preprocess",
    "TextEncoder",
    "Tokens",
    "Vision",
    "dual",
    "encode",
    "features",
    "image",
    "images",
    "template_for",
    "text",
    "vit",
]
_HOMES = {
    "base": ("Preprocess",),
    "cache": ("Cache",),
    "duals": ("DUAL", "Context", "Dual", "dual"),
    "huggingface": ("vit",),
    "encoder": ("IMAGE", "Encoder", "encode", "features", "image", "images"),
    "texts": ("TEXT", "TextEncoder", "template_for", "text"),
    "vision": ("Tokens", "Vision"),
}


def __getattr__(name: str) -> Any:
    # Loaded when first used, so that the command line's help does not wait for torch.
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module 'fedloom.encoders' has no attribute {name!r}")

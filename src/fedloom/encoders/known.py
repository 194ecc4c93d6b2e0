"""The encoders known by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core.errors import FedloomError
from .base import Encoder, Preprocess, Registry
from .cache import Cache
from .compute import encode, features
from .duals import DUAL, Context, Dual
from .efficientnet import efficientnet_lite
from .huggingface import Tokens, Vision, vision
from .lite_clip import lite_clip
from .texts import TEXT, TextEncoder, template_for

__all__ = [
    "DUAL", "IMAGE", "TEXT", "Cache", "Context", "Dual", "Encoder", "Preprocess", "TextEncoder", "Tokens", "Vision",
    "dual", "encode", "features", "image", "images", "template_for", "text", "vit",
]  # fmt: skip

IMAGE = Registry("encoder")


@IMAGE.register("efficientnet-lite0")
def _lite0() -> Encoder:
    """EfficientNet-Lite0, ImageNet weights, 224 px, 1280-d."""
    return efficientnet_lite(0)


@IMAGE.register("efficientnet-lite1")
def _lite1() -> Encoder:
    """EfficientNet-Lite1, ImageNet weights, 240 px, 1280-d."""
    return efficientnet_lite(1)


@IMAGE.register("efficientnet-lite2")
def _lite2() -> Encoder:
    """EfficientNet-Lite2, ImageNet weights, 260 px, 1280-d."""
    return efficientnet_lite(2)


@IMAGE.register("vit-mini")
def _vit_mini() -> Encoder:
    """A small ViT pre-trained on Tiny-ImageNet, inside the package, 64 px, 192-d."""
    return vision(Path(__file__).parent / "weights" / "vit-mini", "vit-mini")


IMAGE.register("hf:")(vision)
DUAL.register("lite-clip")(lite_clip)


@DUAL.register("checks")
def _checks() -> Dual:
    """The made-up pair of `fedloom check`, for methods that need a dual encoder; of no other use."""
    from ..testing.small_world import small_dual

    return small_dual()


@IMAGE.register("lite-clip")
def _lite_clip() -> Encoder:
    """The image side of the dual encoder lite-clip, 384-d."""
    return dual("lite-clip").image


@IMAGE.register("clip:")
def _clip(path: str) -> Encoder:
    """The image side of a CLIP or SigLIP folder, in the joint space: `clip:PATH`."""
    return dual(f"clip:{path}").image


@TEXT.register("lite-clip")
def _lite_clip_text() -> TextEncoder:
    """The text side of the dual encoder lite-clip, 384-d."""
    return dual("lite-clip").text


@TEXT.register("clip:")
def _clip_text(path: str) -> TextEncoder:
    """The text side of a CLIP or SigLIP folder, in the joint space: `clip:PATH`."""
    return dual(f"clip:{path}").text


def image(name: str) -> Encoder:
    """The image encoder of that name: `vit-mini`, `efficientnet-lite0`, `hf:PATH`, `clip:PATH` ..."""
    if name in TEXT.names() and name not in IMAGE.names():
        raise FedloomError(f"{name} encodes texts, not images; see `fedloom encoders`.")
    found: Encoder = IMAGE.make(name)
    return found


def images(names: str | Encoder | Sequence[str | Encoder]) -> list[Encoder]:
    """Several image encoders: a list, or names separated by commas."""
    parts = (
        names.split(",")
        if isinstance(names, str)
        else [names]
        if isinstance(names, Encoder)
        else names
    )
    return [image(part.strip()) if isinstance(part, str) else part for part in parts]


def text(name: str) -> TextEncoder:
    """The text encoder of that name: `hash`, `hash:DIM`, `minilm`, `glove`, `hf:PATH`, `clip:PATH`, `lite-clip`."""
    found: TextEncoder = TEXT.make(name)
    return found


def dual(name: str) -> Dual:
    """The dual encoder of that name: `lite-clip` or `clip:PATH`."""
    found: Dual = DUAL.make(name)
    return found


def vit(name: str = "vit-mini") -> Vision:
    """A frozen ViT that gives tokens and takes extra ones: `vit-mini`, or `hf:PATH`."""
    found = image(name).module
    if not isinstance(found, Vision):
        raise FedloomError(f"encoder {name} is no ViT; prompts need vit-mini or hf:PATH.")
    return found

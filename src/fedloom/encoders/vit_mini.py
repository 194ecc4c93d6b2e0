"""`vit-mini`: a small ViT whose weights are inside the package."""

from __future__ import annotations

from pathlib import Path

from .encoder import IMAGE, Encoder
from .huggingface import vision


@IMAGE.register("vit-mini")
def vit_mini() -> Encoder:
    """A small ViT pre-trained on Tiny-ImageNet, inside the package, 64 px, 192-d."""
    return vision(Path(__file__).parent / "weights" / "vit-mini", "vit-mini")

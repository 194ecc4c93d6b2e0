"""`hash`: pseudo-random word vectors that are the same everywhere, without a download."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..core.rng import numpy_rng
from .texts import TEXT, TextEncoder


@dataclass(frozen=True)
class Hashed:
    """Fixed pseudo-random word vectors; a text is the sum over its words.

    A word's vector is drawn from N(0, 1) by a key of the word, or with `trigrams` is the sum over
    its character trigrams', so that words that look alike are near. Texts that share the words of a
    template would share most of their vectors, so the template is the bare class name.
    """

    dim: int = 512
    trigrams: bool = False

    def __call__(self, texts: Sequence[str]) -> Tensor:
        rows = []
        for text in texts:
            rows.append(torch.stack([self.word(word) for word in self.words(text)]).sum(0))
        return torch.stack(rows)

    def words(self, text: str) -> list[str]:
        """The words of a text in lower case; a text without letters or digits is one word."""
        words = re.findall(r"[^\W_]+", text.lower()) or [text]
        if not self.trigrams:
            return words
        trigrams = []
        for word in words:
            trigrams += [f"<{word}>"[i : i + 3] for i in range(len(word))]
        return trigrams

    def word(self, word: str) -> Tensor:
        """The vector of a word."""
        vector = numpy_rng("word", word).standard_normal(self.dim)
        return torch.from_numpy(vector.astype(np.float32))


@TEXT.register("hash")
def hashed(dim: int = 512, trigrams: bool = False) -> TextEncoder:
    """Pseudo-random word vectors by hash, 512-d, no download."""
    name = "hash"
    if dim != 512:
        name = f"hash:{dim}"
    return TextEncoder(name, dim, Hashed(dim, trigrams), "{}", settings=f"hash {dim} {trigrams}")


@TEXT.register("hash:")
def hashed_of(dim: str) -> TextEncoder:
    """Pseudo-random word vectors of another width: `hash:256`."""
    if not re.fullmatch("[0-9]{1,5}", dim) or int(dim) < 1:
        raise FedloomError(
            f"hash:{dim[:20]} should say how wide the vectors are, as in hash:512, and at most "
            "99999."
        )
    return hashed(int(dim))

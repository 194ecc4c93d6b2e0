"""Texts as rows of token numbers: 0 is padding, 1 an unknown word, the rest are words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from ...core.errors import FedloomError

PADDING, UNKNOWN = 0, 1
RESERVED = 2  # numbers below this are not words

_WORD = re.compile(
    r"[^\W_]+(?:['’][^\W_]+)*"
)  # letters and digits of any script; an apostrophe inside a word stays


def tokenise(text: str) -> list[str]:
    """The words and numbers of a text, in lower case."""
    # Composed first: an accent written as a character of its own would otherwise cut its word in two.
    return _WORD.findall(unicodedata.normalize("NFC", text).lower().replace("’", "'"))


class _Encoder:
    """What every vocabulary can do, given the number of a word."""

    def number(self, word: str) -> int:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def encode(self, texts: Iterable[str], length: int = 200) -> Tensor:
        """One row of `length` token numbers per text (int64), cut or padded at the end."""
        if length < 1:
            raise FedloomError(f"the length of a text must be at least 1 token, got {length}.")
        rows = [[self.number(word) for word in tokenise(text)[:length]] for text in texts]
        out = np.full((len(rows), length), PADDING, dtype=np.int64)
        for filled, row in zip(out, rows, strict=True):
            filled[: len(row)] = row
        return torch.from_numpy(out)


class Vocabulary(_Encoder):
    """A word list; word `i` of it has the number `i + 2`. Build it from training texts only."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        self._numbers = {word: RESERVED + i for i, word in enumerate(self.words)}
        if len(self._numbers) != len(self.words):
            raise FedloomError("a vocabulary cannot hold the same word twice.")

    @classmethod
    def build(cls, texts: Iterable[str], most: int | None = None, least: int = 1) -> Vocabulary:
        """The words that occur at least `least` times, the `most` frequent of them (None: all).

        They are ordered by falling frequency, equally frequent ones alphabetically. Padding and the unknown word do
        not count towards `most`.
        """
        if most is not None and most < 1:
            raise FedloomError(f"a vocabulary needs at least 1 word, got most = {most}.")
        counts = Counter(word for text in texts for word in tokenise(text))
        kept = sorted(
            (word for word, n in counts.items() if n >= least),
            key=lambda word: (-counts[word], word),
        )
        return cls(kept[:most])

    def number(self, word: str) -> int:
        return self._numbers.get(word, UNKNOWN)

    def __len__(self) -> int:
        return RESERVED + len(self.words)


class HashVocabulary(_Encoder):
    """Words numbered by a hash, so that clients need no common word list; different words may share a number."""

    def __init__(self, size: int) -> None:
        if size <= RESERVED:
            raise FedloomError(
                f"a hashed vocabulary needs a size of at least {RESERVED + 1}, got {size}."
            )
        self.size = size
        self._numbers: dict[str, int] = {}  # hashes already worked out

    def number(self, word: str) -> int:
        found = self._numbers.get(word)
        if found is None:
            digest = int.from_bytes(
                blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
            )
            found = self._numbers[word] = RESERVED + digest % (self.size - RESERVED)
        return found

    def __len__(self) -> int:
        return self.size


def encode_texts(
    texts: list[str], test: Tensor, *, length: int, vocabulary: int | None, hashed: bool
) -> tuple[Tensor, int]:
    """Token rows of `texts`, and how many token numbers there are, at most `vocabulary`, padding and unknown included.

    The word list comes from the texts that are not `test`; a hashed one has 32768 numbers unless said otherwise.
    """
    if vocabulary is not None and vocabulary <= RESERVED:
        raise FedloomError(
            f"words, the size of the vocabulary, must be at least {RESERVED + 1} (padding, unknown, one word), "
            f"got {vocabulary}."
        )
    coder: _Encoder
    if hashed:
        coder = HashVocabulary(vocabulary or 2**15)
    else:
        learnt = (text for text, held in zip(texts, test.tolist(), strict=True) if not held)
        coder = Vocabulary.build(learnt, None if vocabulary is None else vocabulary - RESERVED)
    return coder.encode(texts, length), len(coder)

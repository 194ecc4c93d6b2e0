"""Texts as rows of token numbers: 0 is padding, 1 an unknown word, the rest are words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.errors import FedloomError

PADDING, UNKNOWN = 0, 1
RESERVED = 2  # numbers below this are not words

# Letters and digits of any script; an apostrophe inside a word stays.
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def tokenise(text: str) -> list[str]:
    """The words and numbers of a text, in lower case."""
    # Composed first: an accent written as a character of its own would otherwise cut its word in
    # two.
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
        lines = list(texts)
        rows = np.full((len(lines), length), PADDING, dtype=np.int64)
        for row, text in zip(rows, lines, strict=True):
            words = tokenise(text)[:length]
            row[: len(words)] = [self.number(word) for word in words]
        return torch.from_numpy(rows)


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

        They are ordered by falling frequency, equally frequent ones alphabetically. Padding and the
        unknown word do not count towards `most`.
        """
        if most is not None and most < 1:
            raise FedloomError(f"a vocabulary needs at least 1 word, got most = {most}.")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(tokenise(text))
        kept = [word for word, count in counts.items() if count >= least]
        kept.sort(key=lambda word: (-counts[word], word))
        return cls(kept[:most])

    def number(self, word: str) -> int:
        return self._numbers.get(word, UNKNOWN)

    def __len__(self) -> int:
        return RESERVED + len(self.words)


class HashVocabulary(_Encoder):
    """Words numbered by a hash, so that clients need no common word list.

    Different words may share a number.
    """

    def __init__(self, size: int) -> None:
        if size <= RESERVED:
            raise FedloomError(
                f"a hashed vocabulary needs a size of at least {RESERVED + 1}, got {size}."
            )
        self.size = size
        self._numbers: dict[str, int] = {}  # hashes that are computed already

    def number(self, word: str) -> int:
        if word not in self._numbers:
            digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            hashed = int.from_bytes(digest, "little")
            self._numbers[word] = RESERVED + hashed % (self.size - RESERVED)
        return self._numbers[word]

    def __len__(self) -> int:
        return self.size


class Encoded(NamedTuple):
    """Texts as rows of tokens."""

    rows: Tensor
    size: int  # number of different tokens
    words: tuple[str, ...] | None  # the word list; None if words are hashed


def encode_texts(
    texts: list[str], test: Tensor, *, length: int, vocabulary: int | None, hashed: bool
) -> Encoded:
    """`texts` as rows of tokens.

    There are at most `vocabulary` tokens, padding and the unknown word included. The word list
    comes from the texts that are not in the `test` part; by default a hashed vocabulary has 32768
    tokens.
    """
    if vocabulary is not None and vocabulary <= RESERVED:
        raise FedloomError(
            f"words, the size of the vocabulary, must be at least {RESERVED + 1} (padding, "
            f"unknown, one word), got {vocabulary}."
        )
    if hashed:
        numbers = HashVocabulary(vocabulary or 2**15)
        return Encoded(numbers.encode(texts, length), len(numbers), None)
    training = [texts[i] for i in (~test).nonzero().flatten().tolist()]
    most = None
    if vocabulary is not None:
        most = vocabulary - RESERVED
    word_list = Vocabulary.build(training, most)
    return Encoded(word_list.encode(texts, length), len(word_list), word_list.words)

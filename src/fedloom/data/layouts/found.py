"""What a layout has found: image files, arrays, texts or bags of words, and how many of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

Tally = dict[str, dict[str, int]]  # domain -> part -> samples; a part without a name is ""


@dataclass(frozen=True)
class Found(ABC):
    """Samples of a published set; `where` is the folder they lie in.

    `classes` tell the classes apart. Where they are only codes, `names` has what they mean.
    """

    where: Path
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    names: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def class_names(self) -> tuple[str, ...]:
        """What people call the classes; two may have the same name."""
        return self.names or self.classes

    @abstractmethod
    def tally(self) -> Tally:
        """How many samples each part of each domain has."""


@dataclass(frozen=True)
class ImageItem:
    """One image file."""

    file: Path
    domain: str
    cls: str
    part: str = ""  # train, val, test, or nothing where the set has no parts
    mask: Path | None = None


@dataclass(frozen=True)
class Images(Found):
    """Image files, each with its class; or, for segmentation, each with its mask."""

    items: Sequence[ImageItem]

    def tally(self) -> Tally:
        return _counted((item.domain, item.part, 1) for item in self.items)


@dataclass(frozen=True)
class Block:
    """Images of one domain and part: uint8, N x height x width or N x height x width x 3."""

    domain: str
    part: str
    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Arrays(Found):
    """Images as arrays of bytes."""

    blocks: Sequence[Block]

    def tally(self) -> Tally:
        return _counted((block.domain, block.part, len(block.y)) for block in self.blocks)


@dataclass(frozen=True)
class TextItem:
    """One text; its class is a number."""

    domain: str
    part: str
    y: int
    text: str


@dataclass(frozen=True)
class Texts(Found):
    """Texts."""

    items: Sequence[TextItem]

    def tally(self) -> Tally:
        return _counted((item.domain, item.part, 1) for item in self.items)


@dataclass(frozen=True)
class Bag:
    """Sparse rows of one domain and part."""

    domain: str
    part: str
    x: csr_matrix
    y: np.ndarray


@dataclass(frozen=True)
class Bags(Found):
    """Bags of words."""

    bags: Sequence[Bag]

    def tally(self) -> Tally:
        return _counted((bag.domain, bag.part, len(bag.y)) for bag in self.bags)


def _counted(samples: Iterable[tuple[str, str, int]]) -> Tally:
    counter: Counter[tuple[str, str]] = Counter()
    for domain, part, number in samples:
        counter[domain, part] += number
    tally: Tally = {}
    for (domain, part), number in counter.items():
        tally.setdefault(domain, {})[part] = number
    return tally

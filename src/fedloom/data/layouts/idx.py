"""MNIST's idx files: a header with the sizes, then bytes. Packed with gzip or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from ...core.errors import FedloomError
from ..published import Published
from ..readers.archives import gunzipped
from ..readers.naming import plain_names
from .base import LAYOUTS, LayoutReader, Options
from .found import Arrays, Block, Found

BYTES = 8  # the code for unsigned bytes in the header
STEMS = {"train": "train", "test": "t10k"}


@LAYOUTS.register("idx")
class Idx(LayoutReader):
    """Images and labels of both parts, in four files."""

    def needs(self, options: Options) -> list[str]:
        patterns = []
        for stem in STEMS.values():
            # The separator is a point in some copies.
            patterns += [f"{stem}-images?idx3-ubyte*", f"{stem}-labels?idx1-ubyte*"]
        return patterns

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        blocks = []
        for part, stem in STEMS.items():
            x = read_idx(_first(base, f"{stem}-images?idx3-ubyte*"), 3)
            y = read_idx(_first(base, f"{stem}-labels?idx1-ubyte*"), 1)
            if len(x) != len(y):
                raise FedloomError(f"{base}: {part} has {len(x)} images but {len(y)} labels.")
            blocks.append(Block(entry.name, part, x, y.astype(np.int64)))
        classes = entry.classes or plain_names(entry.class_count)
        return Arrays(base, classes, (entry.name,), blocks)


def _first(base: Path, pattern: str) -> Path:
    """The file that fits; a plain one rather than its packed copy."""
    return min(base.glob(pattern), key=lambda file: (file.suffix == ".gz", file.name))


def read_idx(file: Path, dimensions: int) -> np.ndarray:
    """The array of bytes in an idx file with this many dimensions."""
    try:
        data = gunzipped(file) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FedloomError(f"{file}: damaged or cut short ({error}).") from error
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes([0, 0, BYTES, dimensions]):
        raise FedloomError(f"{file}: is no idx file of bytes with {dimensions} dimensions.")
    shape = tuple(np.frombuffer(data[4:start], ">u4").tolist())
    if math.prod(shape) != len(data) - start:
        raise FedloomError(
            f"{file}: says that it holds {' x '.join(map(str, shape))} bytes, but has "
            f"{len(data) - start}."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)

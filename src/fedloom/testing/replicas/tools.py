"""What all replicas are made with: scaled counts, tiny pictures, archives."""

from __future__ import annotations

import math
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from ...data.counting import Expected
from ...data.published import Counts, Layout, Published

Parts = Mapping[str, int]
SMALLEST, LARGEST = 9, 14  # sides of pictures that differ in size


def scaled(entry: Published, layout: Layout, factor: int, classes: tuple[str, ...]) -> Expected:
    """The catalogue's counts divided by a factor; every class stays in every part."""
    counts: dict[str, dict[str, int]] = {}
    for domain, parts in (layout.counts or entry.counts).items():
        counts[domain] = {}
        for part, number in parts.items():
            counts[domain][part] = max(math.ceil(number / factor), 2 * len(classes))
    return Expected(counts, len(classes), classes, entry.pixels)


def same(entry: Published, parts: Parts) -> Counts:
    """The same counts for every domain."""
    return {domain: dict(parts) for domain in entry.counts}


def with_counts(expected: Expected, counts: Counts) -> Expected:
    """The same, where the form of the files asks for other counts."""
    return replace(expected, counts=counts)


def dealt(number: int, classes: tuple[str, ...]) -> Iterator[tuple[int, str, int]]:
    """Samples in turn to each class: number, class, and number within the class from 1."""
    for i in range(number):
        yield i, classes[i % len(classes)], i // len(classes) + 1


def pixels(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes without meaning, the same for the same seed."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def picture(file: Path, seed: int, side: int | None = None, grey: bool = False) -> None:
    """A picture file; without a side its width and height are its own."""
    width, height = side, side
    if width is None or height is None:
        width = SMALLEST + seed % (LARGEST - SMALLEST + 1)
        height = SMALLEST + (seed // 3) % (LARGEST - SMALLEST + 1)
    shape = (height, width) if grey else (height, width, 3)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(seed, shape)).save(file)


def mask(file: Path, seed: int) -> None:
    """A mask for the picture of the same seed: white in the middle."""
    width = SMALLEST + seed % (LARGEST - SMALLEST + 1)
    height = SMALLEST + (seed // 3) % (LARGEST - SMALLEST + 1)
    values = np.zeros((height, width), np.uint8)
    values[2:-2, 2:-2] = 255
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(file)


def packed(folder: Path, archive: Path) -> Path:
    """Everything in a folder as an archive, zip or tar by its name."""
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive, "w") as zipped:
            for file in sorted(folder.rglob("*")):
                zipped.write(file, file.relative_to(folder))
        return archive
    with tarfile.open(archive, "w:" if archive.name.endswith(".tar") else "w:gz") as tape:
        for file in sorted(folder.iterdir()):
            tape.add(file, file.name)
    return archive

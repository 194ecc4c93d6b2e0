"""Parquet files as the Hugging Face hub has them: images or texts, labels and domains."""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...core.errors import FedloomError
from ..published import Published
from ..readers.huggingface import ALSO, SPLITS
from ..readers.pixels import FORMATS, decoded_image
from .base import LAYOUTS, LayoutReader, Options, in_order
from .found import Arrays, Block, Found, ImageItem, Images, TextItem, Texts

MANY = 500  # rows read at once
Row = tuple[str, dict[str, Any]]  # its part, and its cells


@LAYOUTS.register("parquet")
class Parquet(LayoutReader):
    """Files whose names, or whose folders' names, begin with their split.

    Option `domains` maps the names in the column of domains to ours. A set whose only split is
    `train` has no official parts.
    """

    def needs(self, options: Options) -> list[str]:
        return ["*.parquet"]

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        files = _splits(base)
        _refuse_incomplete(base, files, entry)
        names = _class_names(files[0][1], entry)
        if entry.kind == "text":
            return _texts(base, files, names, entry)
        if entry.pixels is not None and entry.pixels <= 64 and "domains" not in options:
            return _arrays(base, files, names, entry)
        return self._images(base, files, names, entry, options.get("domains", {}))

    def _images(
        self,
        base: Path,
        files: list[tuple[str, Path]],
        names: tuple[str, ...],
        entry: Published,
        domains: dict[str, str],
    ) -> Found:
        """Images of several sizes, each as the file that it was."""
        items = []
        for i, (part, row) in enumerate(_rows(files)):
            image = _cell(row, "image", base)
            label = names[_cell(row, "label", base)]
            domain = entry.name
            if domains:
                domain = domains.get(str(_cell(row, "domain", base)), "")
            file = self.scratch / "images" / f"{i:07d}.{_ending(image['bytes'], base, i)}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(image["bytes"])
            items.append(ImageItem(file, domain, label, part))
        called = tuple(domains.values()) or (entry.name,)
        return Images(self.scratch, in_order(names, entry), called, items)


def _splits(base: Path) -> list[tuple[str, Path]]:
    """The files with their parts, in order: of the splits that stand for one part, the first."""
    by_split: dict[str, list[Path]] = {}
    for file in sorted(base.glob("*.parquet")):
        split = file.name.partition("-")[0].removesuffix(".parquet")
        by_split.setdefault(split, []).append(file)
    files = []
    taken = set()
    for split, part in SPLITS.items():
        if split in by_split and part not in taken:
            taken.add(part)
            files += [(part, file) for file in by_split[split]]
    if "train" not in taken:
        raise FedloomError(f"{base}: no file's name begins with train-.")
    if taken == {"train"}:
        files = [("", file) for _, file in files]
    return files


def _refuse_incomplete(base: Path, files: list[tuple[str, Path]], entry: Published) -> None:
    """Refuse files of which a part is missing, or one of several that make up a part."""
    official: set[str] = set()
    for parts in entry.counts.values():
        official.update(parts)
    if "test" in official and "test" not in {part for part, _ in files}:
        names = [f"{split}-" for split, part in SPLITS.items() if part == "test"]
        raise FedloomError(f"{base}: no file's name begins with {' or '.join(names)}.")
    for _, file in files:
        match = re.fullmatch(r"(.+)-\d+-of-(\d+)\.parquet", file.name)
        for number in range(int(match[2]) if match else 0):
            assert match
            name = f"{match[1]}-{number:0{len(match[2])}d}-of-{match[2]}.parquet"
            if not (base / name).is_file():
                raise FedloomError(f"{base}: {name} is missing.")


def _library() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise FedloomError("parquet files need the extra: pip install 'fedloom[hf]'") from None


def _class_names(file: Path, entry: Published) -> tuple[str, ...]:
    """The names of the classes, which the library `datasets` notes in each file."""
    metadata = _library().read_schema(file).metadata or {}
    features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    for column, feature in features.items():
        if ALSO.get(column, column) == "label" and feature.get("names"):
            return tuple(feature["names"])
    if entry.classes is None:
        raise FedloomError(f"{file}: does not say what its classes are called.")
    return entry.classes


def _rows(files: list[tuple[str, Path]]) -> Iterator[Row]:
    library = _library()
    for part, file in files:
        for batch in library.ParquetFile(file).iter_batches(MANY):
            for row in batch.to_pylist():
                yield part, row


def _cell(row: dict[str, Any], column: str, base: Path) -> Any:
    for name in (column, *ALSO):
        if name in row and ALSO.get(name, name) == column:
            return row[name]
    raise FedloomError(f"{base}: no column {column}; found {', '.join(row)}.")


def _ending(data: bytes, base: Path, row: int) -> str:
    try:
        with Image.open(io.BytesIO(data), "r", FORMATS) as image:
            return str(image.format).lower().replace("jpeg", "jpg")
    except Exception as error:  # Pillow's decoders raise nearly anything on broken bytes
        raise FedloomError(f"{base}: the image of row {row} is not readable ({error}).") from error


def _arrays(
    base: Path, files: list[tuple[str, Path]], names: tuple[str, ...], entry: Published
) -> Found:
    """Small images of one size."""
    images: dict[str, list[np.ndarray]] = {}
    labels: dict[str, list[int]] = {}
    for part, row in _rows(files):
        data = _cell(row, "image", base)["bytes"]
        images.setdefault(part, []).append(np.asarray(decoded_image(data, grey=True)))
        labels.setdefault(part, []).append(int(_cell(row, "label", base)))
    blocks = []
    for part, pictures in images.items():
        if max(picture.ndim for picture in pictures) == 3:
            pictures = [_coloured(picture) for picture in pictures]
        if len({picture.shape for picture in pictures}) > 1:
            raise FedloomError(f"{base}: the images of {part} have different sizes.")
        blocks.append(Block(entry.name, part, np.stack(pictures), np.array(labels[part])))
    return Arrays(base, names, (entry.name,), blocks)


def _coloured(picture: np.ndarray) -> np.ndarray:
    """A grey picture among coloured ones, with three equal colours."""
    if picture.ndim == 3:
        return picture
    return np.repeat(picture[..., None], 3, axis=2)


def _texts(
    base: Path, files: list[tuple[str, Path]], names: tuple[str, ...], entry: Published
) -> Found:
    items = []
    for part, row in _rows(files):
        y = int(_cell(row, "label", base))
        items.append(TextItem(entry.name, part, y, str(_cell(row, "text", base))))
    return Texts(base, names, (entry.name,), items)

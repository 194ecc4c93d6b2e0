"""Samples without labels, read the way a model wants them: for predictions."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from ...core.errors import FedloomError
from ...core.files import refuse_no_file
from .decoding import SUFFIXES
from .fitting import Cut
from .pixels import decoded_image
from .text import HashVocabulary, Vocabulary

Named = tuple[list[str], Tensor]  # what each sample is called, and the samples


def read_samples(path: Path, wanted: Mapping[str, Any]) -> Named:
    """The samples at a path; `wanted` is an exported model's description of its input.

    Images are a file, a folder (with all folders in it) or a CSV file with a column `path`; numbers
    are the rows of a CSV file, texts its column `text`.
    """
    if not path.exists():
        raise FedloomError(f"{path}: there is no such file or folder.")
    if wanted["dtype"] == "uint8" and len(wanted["shape"]) == 3:
        cut = Cut(**wanted["cut"]) if wanted.get("cut") else None
        return _images(path, tuple(wanted["shape"]), cut)
    if path.suffix != ".csv":
        raise FedloomError(f"{path}: this model takes {wanted['kind']} samples from a .csv file.")
    if wanted["kind"] == "text":
        return _texts(path, wanted)
    return _numbers(path, tuple(wanted["shape"]))


def _images(path: Path, shape: tuple[int, int, int], cut: Cut | None) -> Named:
    if path.is_dir():
        if (path / "metrics.jsonl").exists():
            raise FedloomError(f"{path} is a run, not a folder of images to predict.")
        files = sorted(f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES)
        if not files:
            raise FedloomError(f"{path}: holds no images ({', '.join(SUFFIXES)}).")
        names = [file.relative_to(path).as_posix() for file in files]
    elif path.suffix == ".csv":
        names = _column(path, "path")
        files = [path.parent / name for name in names]
    else:
        files, names = [path], [path.name]
    pixels = [_image(file, shape, cut) for file in files]
    return names, torch.from_numpy(np.stack(pixels))


def _image(file: Path, shape: tuple[int, int, int], cut: Cut | None) -> np.ndarray:
    """One image, channels first, scaled or cut as a folder of training images is."""
    channels, height, width = shape
    try:
        image = decoded_image(file, grey=channels == 1)
    except UnidentifiedImageError:  # its own words show an address in memory
        raise FedloomError(f"{file} is not an image, and this model takes images.") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on broken bytes
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise FedloomError(f"{file}: cannot be decoded ({why}).") from error
    if channels == 1:
        image = image.convert("L")
    if image.size != (width, height) and cut is not None:
        image = cut(image)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    values = np.asarray(image)
    return values[None] if channels == 1 else values.transpose(2, 0, 1)


def _texts(path: Path, wanted: Mapping[str, Any]) -> Named:
    numbers: HashVocabulary | Vocabulary
    if wanted["hashed"]:
        numbers = HashVocabulary(wanted["vocabulary"])
    elif wanted.get("words") is not None:
        numbers = Vocabulary(wanted["words"])
    else:
        raise FedloomError(
            "this model was trained on numbers of words, without the words; give its data set the "
            "`words` that they stand for, and it can read texts."
        )
    texts = _column(path, "text")
    return _numbered(texts), numbers.encode(texts, wanted["shape"][0])


def _numbers(path: Path, shape: Sequence[int]) -> Named:
    rows = _rows(path)
    if not _is_number(rows[0][0]):
        rows = rows[1:]  # a header
    width = math.prod(shape)
    values = []
    for i, row in enumerate(rows):
        if len(row) != width:
            raise FedloomError(
                f"{path}: row {i + 1} has {len(row)} numbers, this model takes {width}."
            )
        for cell in row:
            if not _is_number(cell):
                raise FedloomError(f"{path}: row {i + 1} has {cell!r} where a number is wanted.")
        values.append([float(cell) for cell in row])
    if not values:
        raise FedloomError(f"{path}: has a header but no samples.")
    return _numbered(values), torch.tensor(values, dtype=torch.float32).reshape(-1, *shape)


def _numbered(samples: Sequence[object]) -> list[str]:
    return [f"row {i + 1}" for i in range(len(samples))]


def _column(path: Path, name: str) -> list[str]:
    """The cells below this name in a CSV file."""
    rows = _rows(path)
    if name not in rows[0]:
        raise FedloomError(
            f"{path}: wants a column {name!r}; its first row is {', '.join(rows[0])}."
        )
    place = rows[0].index(name)
    cells = []
    for i, row in enumerate(rows[1:]):
        if len(row) <= place:
            raise FedloomError(f"{path}: row {i + 1} has no {name!r}.")
        cells.append(row[place])
    if not cells:
        raise FedloomError(f"{path}: has a header but no samples.")
    return cells


def _rows(path: Path) -> list[list[str]]:
    try:
        refuse_no_file(path)
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file, strict=True) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FedloomError(f"{path}: cannot be read as CSV ({error}).") from error
    if not rows:
        raise FedloomError(f"{path}: the file is empty.")
    return rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

"""Data sets of the Hugging Face `datasets` library, from a local folder or from the hub."""

from __future__ import annotations

import importlib
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ...core.errors import FedloomError
from ..federation import Dataset
from .tables import every_fifth, number_labels
from .text import encode_texts

INPUTS = ("image", "text", "features")
OWNERS = ("client", "owner")
_ENDINGS = ("parquet", "arrow")


def read_hf(
    path_or_name: str,
    *,
    name: str,
    cache: Path,
    config: str | None = None,
    size: int | None = None,
    length: int = 200,
    vocabulary: int | None = None,
    hashed: bool = False,
) -> Dataset:
    """A data set with a column `label` and one of `image`, `text` and `features` (lists of numbers).

    `path_or_name` is a folder written by `save_to_disk`, a folder of `.parquet` or `.arrow` files whose names (or
    folders) begin with the name of their split, a single such file, or a name on the hub (with its `config`, if it
    has several). What is downloaded or unpacked goes to `cache`. The split `test` is the test part, for want of it
    `validation`; without either, every fifth sample of each domain in stored order. Other splits than these and
    `train` are left out. A column `domain` gives the domains; a column `client` or `owner` gives each sample's client.
    Images are scaled to `size` x `size` pixels; without it they must all have one size. Texts are treated as
    `read_csv` treats them.
    """
    library = _library()
    with _quiet(library):
        splits = _load(library, path_or_name, config, cache)
        train, test = splits.get("train"), splits.get("test", splits.get("validation"))
        if train is None:
            raise FedloomError(f"{path_or_name}: no split called train; found {', '.join(splits)}.")
        parts = [train] if test is None else [train, test]
        for part in parts:
            _check(path_or_name, part)
        if any(set(part.column_names) != set(train.column_names) for part in parts):
            raise FedloomError(f"{path_or_name}: the columns of the train and test parts differ.")
        columns = train.column_names
        y, classes = _labels(library, path_or_name, parts)
        names = (
            _strings(library, path_or_name, parts, "domain")
            if "domain" in columns
            else [name] * len(y)
        )
        domains = tuple(dict.fromkeys(names))
        index = {domain: d for d, domain in enumerate(domains)}
        domain = torch.tensor([index[value] for value in names])
        held = every_fifth(domain) if test is None else torch.arange(len(y)) >= len(train)
        tokens = None
        kind = next(column for column in INPUTS if column in columns)
        if kind == "image":
            x = _images(library, path_or_name, parts, size)
        elif kind == "text":
            texts = _strings(library, path_or_name, parts, "text")
            x, tokens = encode_texts(
                texts, held, length=length, vocabulary=vocabulary, hashed=hashed
            )
        else:
            x = _features(path_or_name, parts)
        clients = next((column for column in OWNERS if column in columns), None)
        owner = _owners(path_or_name, parts, clients) if clients else None
    return Dataset(
        name=name,
        x=x,
        y=y,
        domain=domain,
        test=held,
        classes=classes,
        domains=domains,
        vocabulary=tokens,
        owner=owner,
    )


def hf_kind(path_or_name: str, cache: Path) -> Literal["image", "vector", "text"]:
    """What the samples are, from the names of the columns."""
    library = _library()
    with _quiet(library):
        columns = {
            column
            for part in _load(library, path_or_name, None, cache).values()
            for column in part.column_names
        }
    return "image" if "image" in columns else "text" if "text" in columns else "vector"


def is_hf(path: Path) -> bool:
    """Whether a file, or a folder or one of the folders in it, is or holds parquet or arrow files."""
    if path.is_file():
        return path.suffix[1:] in _ENDINGS
    return any(any(path.glob(f"{place}*.{ending}")) for ending in _ENDINGS for place in ("", "*/"))


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise FedloomError("hf: data need the extra: pip install 'fedloom[hf]'") from None


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Without the library's progress bars, which would run through ours, and without a line for every retry."""
    shown = not library.are_progress_bars_disabled()
    library.disable_progress_bars()
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub.setLevel(level)
        if shown:
            library.enable_progress_bars()


def _load(library: Any, source: str, config: str | None, cache: Path) -> dict[str, Any]:
    """The splits by name."""
    path = Path(source).expanduser()
    try:
        if path.is_dir() and any(
            (path / mark).is_file() for mark in ("dataset_dict.json", "state.json")
        ):
            loaded = library.load_from_disk(str(path))
        elif path.exists():
            ending, files = _files(path)
            loaded = library.load_dataset(ending, data_files=files, cache_dir=str(cache))
        elif path.is_absolute() or source.startswith((".", "~")) or path.suffix[1:] in _ENDINGS:
            raise FedloomError(f"{source}: there is no such file or folder.")
        else:
            loaded = library.load_dataset(source, config, cache_dir=str(cache))
    except FedloomError:
        raise
    except Exception as error:  # the library's errors are of many types
        cause = error.__cause__ or error
        raise FedloomError(
            f"{source}: the datasets library cannot load it ({type(cause).__name__}: {cause})."
        ) from error
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _files(path: Path) -> tuple[str, dict[str, list[str]]]:
    """The kind of the data files at `path`, and the files of each split."""
    if path.is_file():
        if path.suffix[1:] not in _ENDINGS:
            raise FedloomError(f"{path}: wants a .parquet or .arrow file.")
        return path.suffix[1:], {"train": [str(path)]}
    for ending in _ENDINGS:
        files = sorted(file for file in path.rglob(f"*.{ending}") if file.is_file())
        if not files:
            continue
        splits: dict[str, list[str]] = {}
        for file in files:
            split = _split(file.relative_to(path))
            if split is None and len(files) == 1:
                split = "train"
            if split is None:
                raise FedloomError(
                    f"{file}: its name does not begin with train, test or validation."
                )
            splits.setdefault(split, []).append(str(file))
        return ending, splits
    raise FedloomError(f"{path}: holds no .parquet or .arrow files.")


def _split(file: Path) -> str | None:
    for part in reversed(file.parts):
        for split in ("train", "test", "validation"):
            if part.startswith(split):
                return split
    return None


def _check(source: str, part: Any) -> None:
    """Refuse a part without the columns needed, or without samples."""
    found = part.column_names
    if "label" not in found or not set(INPUTS) & set(found):
        raise FedloomError(
            f"{source}: wants a column label and one of {', '.join(INPUTS)}; found {', '.join(found) or 'none'}."
        )
    if not len(part):
        raise FedloomError(f"{source}: a split has no samples.")


def _values(source: str, parts: list[Any], column: str) -> list[Any]:
    values = [value for part in parts for value in part[column]]
    for row, value in enumerate(values):
        if value is None:
            raise FedloomError(f"{source}: sample {row} has no {column}.")
    return values


def _strings(library: Any, source: str, parts: list[Any], column: str) -> list[str]:
    feature = parts[0].features[column]
    values = _values(source, parts, column)
    if isinstance(feature, library.ClassLabel):
        return [feature.names[value] for value in values]
    return [str(value) for value in values]


def _labels(library: Any, source: str, parts: list[Any]) -> tuple[Tensor, tuple[str, ...]]:
    features = [part.features["label"] for part in parts]
    values = _values(source, parts, "label")
    where = [f"{source}, sample {row}" for row in range(len(values))]
    if not all(isinstance(feature, library.ClassLabel) for feature in features):
        if any(not isinstance(value, (int, str)) for value in values):
            raise FedloomError(
                f"{source}: labels must be whole numbers or class names, found {features[0]}."
            )
        return number_labels(
            [str(int(value) if isinstance(value, bool) else value) for value in values], where
        )
    classes = tuple(features[0].names)
    if any(tuple(feature.names) != classes for feature in features):
        raise FedloomError(f"{source}: the train and test parts have different classes.")
    return number_labels(
        [str(value) for value in values], where, classes
    )  # -1 marks a sample without label


def _owners(source: str, parts: list[Any], column: str) -> Tensor:
    """Client numbers; names, or numbers with gaps, are numbered in sorted order."""
    values = _values(source, parts, column)
    if any(not isinstance(value, (int, str)) for value in values):
        raise FedloomError(f"{source}: {column} must hold whole numbers or names.")
    return torch.from_numpy(np.unique(np.array(values), return_inverse=True)[1].astype(np.int64))


def _features(source: str, parts: list[Any]) -> Tensor:
    try:
        rows = np.array(_values(source, parts, "features"), dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise FedloomError(
            f"{source}: features must be lists of numbers, all of one length ({error})."
        ) from error
    if rows.ndim < 2:
        raise FedloomError(f"{source}: features must be lists of numbers, found single numbers.")
    return torch.from_numpy(rows)


def _images(library: Any, source: str, parts: list[Any], size: int | None) -> Tensor:
    images: list[np.ndarray] = []
    for part in parts:
        try:
            stored = part.cast_column("image", library.Image(decode=False))
        except Exception as error:  # Arrow's errors are of many types
            raise FedloomError(f"{source}: the column image holds no images ({error}).") from error
        for value in _values(source, [stored], "image"):
            try:
                images.append(_pixels(value, size))
            except Exception as error:  # Pillow's too
                raise FedloomError(
                    f"{source}: the image of sample {len(images)} is not readable ({error})."
                ) from error
    if len(shapes := {image.shape[:2] for image in images}) > 1:
        some = ", ".join(f"{w}x{h}" for h, w in sorted(shapes)[:3])
        raise FedloomError(
            f"{source}: images have different sizes ({some}); give size to scale them."
        )
    if any(image.ndim == 3 for image in images):  # one in colour, all in colour
        images = [
            image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in images
        ]
        return torch.from_numpy(np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2)))
    return torch.from_numpy(np.stack(images)[:, None])


def _pixels(value: dict[str, Any], size: int | None) -> np.ndarray:
    """One image as bytes: height x width, or with three colours."""
    # A path is opened as a local file only: data must not make us fetch addresses.
    with Image.open(
        io.BytesIO(value["bytes"]) if value["bytes"] is not None else Path(value["path"])
    ) as opened:
        image: Image.Image = ImageOps.exif_transpose(opened)
        image = image.convert("L" if image.mode in ("1", "L") else "RGB")
        if size is not None:
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        return np.array(image)

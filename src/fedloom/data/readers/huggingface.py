"""Data sets of the Hugging Face `datasets` library, from a local folder or from the hub."""

from __future__ import annotations

import importlib
import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.errors import FedloomError
from ..cache import cache_folder
from ..dataset import Dataset
from .archives import ROOM, refuse_size
from .base import READERS, Kind, Progress, Reader, Source
from .fitting import Cut, Fit, fitted
from .naming import in_order_of_appearance, number_labels
from .pixels import decoded_image
from .splits import test_part
from .text import encode_texts

INPUTS = ("image", "text", "features")
OWNERS = ("client", "owner")
# What splits are called, and the part they stand for; the first that is there counts.
SPLITS = {"train": "train", "test": "test", "validation": "test", "valid": "test", "val": "test"}
ALSO = {"img": "image", "fine_label": "label"}  # other names of columns
_ENDINGS = ("parquet", "arrow")
CELL = 8  # bytes that an entry of a column takes at least, once it is read


def read_hf(
    path_or_name: str,
    *,
    name: str,
    cache: Path,
    config: str | None = None,
    size: Fit = None,
    length: int = 200,
    vocabulary: int | None = None,
    hashed: bool = False,
) -> Dataset:
    """A data set with a column `label` and a column `image`, `text` or `features`.

    The columns may also be called `fine_label` and `img`, as those of CIFAR are.

    `path_or_name` is a folder written by `save_to_disk`, a folder of `.parquet` or `.arrow` files
    whose names (or folders) begin with the name of their split, a single such file, or a name on
    the hub (with its `config`, if it has several). What is downloaded or unpacked goes to `cache`.
    The split `test` is the test part, for want of it `validation` (or `valid`, `val`); without
    any, every fifth sample of each domain in stored order. Other splits than these and `train` are
    left out. A column `domain` gives the domains, `client` or `owner` each sample's client.
    Images are scaled to `size` x `size` pixels; without it they must all have one size. Texts are
    treated as `read_csv` treats them.
    """
    library = _library()
    with _quiet(library):
        parts = _parts(library, path_or_name, config, cache)
        columns = parts[0].column_names
        y, classes = _labels(library, path_or_name, parts)
        names = [name] * len(y)
        if "domain" in columns:
            names = _strings(library, path_or_name, parts, "domain")
        domain, domains = in_order_of_appearance(names)
        training = None
        if len(parts) > 1:
            training = len(parts[0])
        test = test_part(domain, training)
        tokens, words = None, None
        if "image" in columns:
            x = _images(library, path_or_name, parts, size)
        elif "text" in columns:
            texts = _strings(library, path_or_name, parts, "text")
            x, tokens, words = encode_texts(
                texts, test, length=length, vocabulary=vocabulary, hashed=hashed
            )
        else:
            x = _features(path_or_name, parts)
        owner = _owners(path_or_name, parts)
    return Dataset(
        name=name,
        x=x,
        y=y,
        domain=domain,
        test=test,
        classes=classes,
        domains=domains,
        vocabulary=tokens,
        words=words,
        owner=owner,
    )


def _parts(library: Any, source: str, config: str | None, cache: Path) -> list[Any]:
    """The training split and, if there is one, the test split."""
    splits = _load(library, source, config, cache)
    if "train" not in splits:
        raise FedloomError(f"{source}: no split called train; found {', '.join(splits)}.")
    parts = [splits["train"]]
    for name, part in SPLITS.items():
        if part == "test" and name in splits and len(parts) == 1:
            parts.append(splits[name])
    for part in parts:
        _check(source, part)
    if set(parts[0].column_names) != set(parts[-1].column_names):
        raise FedloomError(f"{source}: the columns of the train and test parts differ.")
    return parts


def hf_kind(path_or_name: str, cache: Path) -> Kind:
    """What the samples are, from the names of the columns."""
    library = _library()
    with _quiet(library):
        columns: set[str] = set()
        for part in _load(library, path_or_name, None, cache).values():
            columns |= set(part.column_names)
    if "image" in columns:
        return "image"
    if "text" in columns:
        return "text"
    return "vector"


def is_hf(path: Path) -> bool:
    """Whether it is a parquet or arrow file, or a folder with some at most one level down."""
    if path.is_file():
        return path.suffix[1:] in _ENDINGS
    for ending in _ENDINGS:
        if any(path.glob(f"*.{ending}")) or any(path.glob(f"*/*.{ending}")):
            return True
    return False


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise FedloomError("hf: data need the extra: pip install 'fedloom[hf]'") from None


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Without the library's progress bars, and without a line for every retry."""
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
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            loaded = library.load_from_disk(str(path))
        elif path.exists():
            ending, files = _files(path)
            if ending == "parquet":
                for file in itertools.chain.from_iterable(files.values()):
                    _refuse_bomb(Path(file))
            loaded = library.load_dataset(ending, data_files=files, cache_dir=str(cache))
        elif path.is_absolute() or source.startswith((".", "~")) or path.suffix[1:] in _ENDINGS:
            raise FedloomError(f"{source}: there is no such file or folder.")
        else:
            loaded = library.load_dataset(source, config, cache_dir=str(cache))
    except FedloomError:
        raise
    except Exception as error:  # the library's errors are of many types
        cause = error.__cause__ or error
        why = " ".join(f"{type(cause).__name__}: {cause}".split())
        raise FedloomError(f"{source}: the datasets library cannot load it ({why}).") from error
    if not isinstance(loaded, dict):
        loaded = {"train": loaded}
    return {name: _renamed(part) for name, part in loaded.items()}


def _refuse_bomb(path: Path) -> None:
    """Refuse a file that unpacks to far more than it is: a few bytes can stand for a billion rows.

    First by what it says of itself, then by what it holds, a few rows at a time.
    """
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, memory_map=True) as file:
        about = file.metadata
        lengths = [about.row_group(i).total_byte_size for i in range(about.num_row_groups)]
        refuse_size(path, max(CELL * about.num_rows * about.num_columns, sum(lengths)))
        # One entry may be as long as its column, and stand in every row.
        rows = min(1000, max(10, (ROOM >> 3) // max([1, *lengths])))
        unpacked = 0
        for batch in file.iter_batches(batch_size=rows):
            unpacked += batch.nbytes
            refuse_size(path, unpacked)


def _renamed(part: Any) -> Any:
    """A split whose columns have the usual names."""
    for other, usual in ALSO.items():
        if other in part.column_names and usual not in part.column_names:
            part = part.rename_column(other, usual)
    return part


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
        for split in SPLITS:
            if part.startswith(split):
                return split
    return None


def _check(source: str, part: Any) -> None:
    """Refuse a part without the columns needed, or without samples."""
    present = part.column_names
    if "label" not in present or not set(INPUTS) & set(present):
        raise FedloomError(
            f"{source}: wants a column label and one of {', '.join(INPUTS)}; found "
            f"{', '.join(present) or 'none'}."
        )
    if not len(part):
        raise FedloomError(f"{source}: a split has no samples.")


def _values(source: str, parts: list[Any], column: str) -> list[Any]:
    values: list[Any] = []
    for part in parts:
        values += list(part[column])
    for row, value in enumerate(values):
        if value is None:
            raise FedloomError(f"{source}: sample {row} has no {column}.")
    return values


def _strings(library: Any, source: str, parts: list[Any], column: str) -> list[str]:
    feature = parts[0].features[column]
    values = _values(source, parts, column)
    if isinstance(feature, library.ClassLabel):
        return [feature.names[value] for value in values]
    return list(map(str, values))


def _labels(library: Any, source: str, parts: list[Any]) -> tuple[Tensor, tuple[str, ...]]:
    """The class of each sample; a sample without a label has the number -1, which is refused."""
    labels = []
    where = []
    for row, value in enumerate(_values(source, parts, "label")):
        if not isinstance(value, (int, str)):
            kind = parts[0].features["label"]
            raise FedloomError(
                f"{source}: labels must be whole numbers or class names, found {kind}."
            )
        if isinstance(value, bool):
            value = int(value)
        labels.append(str(value))
        where.append(f"{source}, sample {row}")
    return number_labels(labels, where, _class_names(library, source, parts))


def _class_names(library: Any, source: str, parts: list[Any]) -> tuple[str, ...] | None:
    """The names of the classes, if every part states them; they must then be the same."""
    named = []
    for part in parts:
        feature = part.features["label"]
        if not isinstance(feature, library.ClassLabel):
            return None
        named.append(tuple(feature.names))
    if len(set(named)) > 1:
        raise FedloomError(f"{source}: the train and test parts have different classes.")
    return named[0]


def _owners(source: str, parts: list[Any]) -> Tensor | None:
    """Client numbers, if a column has them; names or numbers with gaps are numbered in order."""
    present = [column for column in OWNERS if column in parts[0].column_names]
    if not present:
        return None
    column = present[0]
    values = _values(source, parts, column)
    for value in values:
        if not isinstance(value, (int, str)):
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


def _images(library: Any, source: str, parts: list[Any], fit: Fit) -> Tensor:
    """Images of one size, or as an encoder cuts them if they differ."""
    if not callable(fit):
        return _stacked(source, _decoded(library, source, parts, fit))
    images = _decoded(library, source, parts, None)
    if len({image.shape[:2] for image in images}) > 1:
        images = _decoded(library, source, parts, fit())
    return _stacked(source, images)


def _decoded(
    library: Any, source: str, parts: list[Any], size: int | Cut | None
) -> list[np.ndarray]:
    images: list[np.ndarray] = []
    folder = Path(source).expanduser()
    if folder.is_file():
        folder = folder.parent
    for part in parts:
        try:
            stored = part.cast_column("image", library.Image(decode=False))
        except Exception as error:  # Arrow's errors are of many types
            raise FedloomError(f"{source}: the column image holds no images ({error}).") from error
        for value in _values(source, [stored], "image"):
            try:
                images.append(_pixels(value, size, folder))
            except Exception as error:  # Pillow's too
                raise FedloomError(
                    f"{source}: the image of sample {len(images)} is not readable ({error})."
                ) from error
    return images


def _stacked(source: str, images: list[np.ndarray]) -> Tensor:
    """Images of one size as one tensor; if one of them is in colour, all are."""
    sizes = {image.shape[:2] for image in images}
    if len(sizes) > 1:
        some = ", ".join(f"{width}x{height}" for height, width in sorted(sizes)[:3])
        raise FedloomError(
            f"{source}: images have different sizes ({some}); give size to scale them."
        )
    if max(image.ndim for image in images) == 2:
        return torch.from_numpy(np.stack(images)[:, None])
    for i, image in enumerate(images):
        if image.ndim == 2:
            images[i] = np.repeat(image[..., None], 3, axis=2)
    return torch.from_numpy(np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2)))


def _pixels(value: dict[str, Any], size: int | Cut | None, folder: Path) -> np.ndarray:
    """One image as bytes: height x width, or with three colours."""
    data = value["bytes"]
    if data is None:
        data = _inside(folder, value["path"]).read_bytes()
    return np.array(fitted(decoded_image(data, grey=True), size))


def _inside(folder: Path, name: str) -> Path:
    """The file that a sample names, which must lie in the folder of its data set.

    Data must make us neither fetch addresses nor read other files of this machine.
    """
    for candidate in (folder / name, Path(name)):
        if candidate.is_file() and candidate.resolve().is_relative_to(folder.resolve()):
            return candidate
    raise FedloomError(f"{name!r} is no file in {folder}")


@READERS.register("hf:")
class HuggingFace(Reader):
    """A Hugging Face folder, .parquet or .arrow files, or hf:NAME from the hub."""

    order = 50

    def recognises(self, path: Path) -> bool:
        return is_hf(path)

    def kind(self, path: str) -> Kind:
        return hf_kind(path, cache_folder() / "hf")

    def read(self, path: str, name: str, source: Source, progress: Progress | None) -> Dataset:
        return read_hf(
            path,
            name=name,
            cache=cache_folder() / "hf",
            size=source.fit,
            length=source.length,
            vocabulary=source.words,
            hashed=source.hashed,
        )

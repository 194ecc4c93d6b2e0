"""Data sets stored as NumPy `.npz` files: images, feature vectors and masks.

Pickled objects are never loaded.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.errors import FedloomError, unknown
from ..dataset import Dataset
from ..finite import refuse_not_finite
from .archives import refuse_bombs
from .base import READERS, Kind, Progress, Reader, Source
from .naming import plain_names
from .splits import mod10

DIGITS5 = ("mnist", "usps", "mnist_m", "svhn", "chars74k_font")
SPARSE = tuple(map("_".join, product(("train", "test"), ("data", "indices", "indptr", "y"))))
LABELLED = ("x_train", "y_train", "x_test", "y_test")
MASKED = ("x_train", "mask_train", "x_test", "mask_test")
# What the mask values 0 and 1 mean unless the file says otherwise.
SEGMENTATION = ("background", "lesion")
CHUNK = 2048  # images resized at once


@dataclass(frozen=True)
class _Part:
    """Samples of one domain: all for training, all for testing, or (None) split by `mod10`."""

    x: Tensor
    y: Tensor
    where: str
    domain: int = 0
    test: bool | None = None


def is_sparse(keys: Iterable[str]) -> bool:
    """Whether these are the keys of CSR rows by domain and part.

    `<domain>_{train,test}_{data,indices,indptr,y}`.
    """
    names = set(keys)
    end = "_train_indptr"
    domains = {name.removesuffix(end) for name in names if name.endswith(end)}
    return bool(domains) and set(map("_".join, product(domains, SPARSE))) <= names


def npz_keys(path: Path) -> tuple[str, ...]:
    """The names of the arrays in a file, none of which is read."""
    try:
        refuse_bombs(path)
        with np.load(path, allow_pickle=False) as file:
            return tuple(file.files)
    except FedloomError:
        raise
    except Exception as error:  # damaged bytes may raise anything
        raise _unreadable(path, error) from error


def npz_kind(path: Path) -> Kind:
    """What a file holds, from the names and shapes of its arrays."""
    keys = npz_keys(path)
    if is_sparse(keys):
        return "sparse"
    if "mask_train" in keys:
        return "segmentation"
    samples = [key for key in keys if key == "x_train" or key.endswith("_x")]
    if not samples:
        return "vector"
    first = samples[0]
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{first}.npy") as stored:
            read = np.lib.format.read_array_header_2_0
            if np.lib.format.read_magic(stored) == (1, 0):
                read = np.lib.format.read_array_header_1_0
            shape, _, _ = read(stored)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, first, error) from error
    if len(shape) > 2:
        return "image"
    return "vector"


def count_classes(path: Path, y: Tensor) -> int:
    """How many classes the labels 0, 1, 2, ... are, which must all be there."""
    present = torch.unique(y)
    if len(present) <= int(present[-1]):
        gap = int((present != torch.arange(len(present))).nonzero()[0])
        raise FedloomError(
            f"{path}: no sample has the label {gap} although labels go up to {present[-1]}; "
            "store the class names as 'classes' if that is meant."
        )
    return len(present)


def read_npz(path: Path, *, name: str, size: int | None = None) -> Dataset:
    """A data set in one file, of one of three kinds.

    * `x_train y_train x_test y_test`: uint8 images (N x H x W, or N x H x W x 3) or vectors (which
      become float32).
    * `<domain>_x <domain>_y` for each domain, in stored order; in each domain the samples whose
      index ends in 8 or 9 are the test part.
    * `x_train mask_train x_test mask_test`: images and class maps, for segmentation.

    `classes` may hold the class names; without them the labels must be 0, 1, 2, ... with no gap.
    With `size`, images are scaled to size x size.
    """
    arrays = _load(path)
    classes = _classes(path, arrays)
    domains: tuple[str, ...] = (name,)
    if arrays.keys() & {*LABELLED, *MASKED}:
        parts = _two_parts(path, arrays)
        if _has_masks(arrays):
            classes = classes or SEGMENTATION
    elif is_sparse(arrays):
        raise FedloomError(f"{path}: holds sparse rows (..._indptr), not plain arrays.")
    else:
        domains, parts = _one_part_each(path, arrays)
    return _assemble(name, path, parts, classes, domains, size)


def _one_part_each(
    path: Path, arrays: dict[str, np.ndarray]
) -> tuple[tuple[str, ...], list[_Part]]:
    """The domains of a file with `<domain>_x` and `<domain>_y`, and their samples."""
    names = []
    for key in arrays:
        if key.endswith(("_x", "_y")) and len(key) > 2:
            names.append(key[:-2])
    domains = tuple(dict.fromkeys(names))
    if not domains:
        raise FedloomError(
            f"{path}: expected the arrays {', '.join(LABELLED)}, or <domain>_x and <domain>_y for "
            f"each domain; found {', '.join(arrays) or 'none'}."
        )
    parts = []
    for i, domain in enumerate(domains):
        _require(path, arrays, (f"{domain}_x", f"{domain}_y"))
        parts.append(_part(path, arrays, f"{domain}_x", f"{domain}_y", i, None))
    return domains, parts


def read_npz_folder(
    path: Path, *, name: str, size: int | None = None, domains: Sequence[str] | None = None
) -> Dataset:
    """A folder of files with `x_train y_train x_test y_test`, each of them one domain.

    Domains are in the order given by `domains` (which may leave some out), else in the order of
    `DIGITS5` if all are among these, else sorted. Where image sizes differ, all are scaled to
    `size` (default: the longest side of any); grey images are repeated over three channels if any
    domain is in colour.
    """
    if not path.is_dir():
        raise FedloomError(f"{path}: no such folder.")
    files = {}
    for file in sorted(path.glob("*.npz")):
        if not file.name.startswith("."):
            files[file.stem] = file
    if not files:
        raise FedloomError(f"{path}: holds no .npz files.")
    order = tuple(files)
    if domains is not None:
        order = tuple(domains)
    elif set(files) <= set(DIGITS5):
        order = tuple(domain for domain in DIGITS5 if domain in files)
    parts: list[_Part] = []
    classes: tuple[str, ...] | None = None
    for i, domain in enumerate(order):
        if domain not in files:
            raise unknown("domain", domain, files)
        arrays = _load(files[domain])
        _require(files[domain], arrays, LABELLED)
        named = _classes(files[domain], arrays)
        if named and classes and named != classes:
            raise FedloomError(f"{files[domain]}: its classes are not those of the other domains.")
        classes = named or classes
        for part in ("train", "test"):
            keys = f"x_{part}", f"y_{part}"
            parts.append(_part(files[domain], arrays, *keys, i, part == "test"))
    if size is None:
        size = _common_size(parts)
    return _assemble(name, path, parts, classes, order, size)


def _common_size(parts: Sequence[_Part]) -> int | None:
    """The longest side of any image, to which all are scaled; None if nothing need be scaled."""
    sizes = set()
    for part in parts:
        if part.x.ndim != 4:
            return None
        sizes.add(tuple(part.x.shape[2:]))
    if len(sizes) < 2:
        return None
    return max(map(max, sizes))


def resize(x: Tensor, size: int) -> Tensor:
    """Images (uint8) scaled to size x size: bilinear, antialiased, rounded."""
    if x.shape[2:] == (size, size):
        return x
    out = torch.empty(*x.shape[:2], size, size, dtype=torch.uint8)
    for start in range(0, len(x), CHUNK):
        floats = x[start : start + CHUNK].to(torch.float32)
        scaled = F.interpolate(floats, (size, size), mode="bilinear", antialias=True)
        out[start : start + CHUNK] = scaled.round_().clamp_(0, 255).to(torch.uint8)
    return out


def _begins_like_a_zip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"PK"


def _unreadable(path: Path, error: Exception) -> FedloomError:
    """The sentence for a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return FedloomError(f"{path}: no such file.")
    if isinstance(error, IsADirectoryError):
        return FedloomError(f"{path}: is a folder, not an .npz file.")
    # The first is what NumPy says of anything that it does not know.
    if "allow_pickle" in str(error) or not _begins_like_a_zip(path):
        return FedloomError(
            f"{path}: is not an .npz file (a pickle, perhaps, which would be refused)."
        )
    return FedloomError(f"{path}: is truncated or not an .npz file ({error}).")


def _damaged(path: Path, key: str, error: Exception) -> FedloomError:
    return FedloomError(f"{path}: is truncated or damaged at {key} ({error}).")


def _load(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file."""
    arrays = {}
    for key in npz_keys(path):
        try:
            with np.load(path, allow_pickle=False) as file:
                value = file[key]
        except Exception as error:  # here too
            if "allow_pickle" in str(error):
                raise FedloomError(
                    f"{path}: {key} holds pickled objects; pickles are refused."
                ) from error
            raise _damaged(path, key, error) from error
        if isinstance(value, np.ndarray):  # anything else in the archive comes as bytes
            arrays[key] = value
    return arrays


def _require(path: Path, arrays: Iterable[str], wanted: Sequence[str]) -> None:
    present = set(arrays)
    missing = [key for key in wanted if key not in present]
    if missing:
        raise FedloomError(f"{path}: lacks {', '.join(missing)}.")


def _classes(path: Path, arrays: dict[str, np.ndarray]) -> tuple[str, ...] | None:
    """The class names in the file, if it has any."""
    if "classes" not in arrays:
        return None
    names = arrays["classes"]
    if names.ndim != 1 or not len(names):
        raise FedloomError(f"{path}: classes must be a list of names, has shape {names.shape}.")
    texts = []
    for name in names.tolist():
        if isinstance(name, bytes):
            name = name.decode()
        texts.append(str(name))
    return tuple(texts)


def _has_masks(arrays: Iterable[str]) -> bool:
    return any(key.startswith("mask_") for key in arrays)


def _two_parts(path: Path, arrays: dict[str, np.ndarray]) -> list[_Part]:
    """The training and the test part of a file with one domain."""
    wanted = LABELLED
    if _has_masks(arrays):
        wanted = MASKED
    _require(path, arrays, wanted)
    x_train, y_train, x_test, y_test = wanted
    return [
        _part(path, arrays, x_train, y_train, 0, False),
        _part(path, arrays, x_test, y_test, 0, True),
    ]


def _part(
    path: Path,
    arrays: dict[str, np.ndarray],
    x_key: str,
    y_key: str,
    domain: int,
    test: bool | None,
) -> _Part:
    """Samples and targets under two keys, checked."""
    x, y = arrays[x_key], arrays[y_key]
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise FedloomError(
            f"{path}: {x_key} and {y_key} differ in length ({_length(x)} and {_length(y)})."
        )
    masks = y_key.startswith("mask_")
    samples = _samples(path, x_key, x)
    if y.dtype.kind not in ("iub" if masks else "iu"):
        raise FedloomError(f"{path}: {y_key} must hold whole numbers, holds {y.dtype}.")
    if masks and (samples.ndim != 4 or y.shape[1:] != tuple(samples.shape[2:])):
        raise FedloomError(
            f"{path}: {x_key} and {y_key} differ in height or width ({x.shape} and {y.shape})."
        )
    if not masks and y.ndim != 1:
        raise FedloomError(f"{path}: {y_key} must be one label per sample, has shape {y.shape}.")
    if y.size and y.min() < 0:
        raise FedloomError(f"{path}: {y_key} holds a negative label, {y.min()}.")
    if y.size and y.max() > np.iinfo(np.int64).max:
        raise FedloomError(f"{path}: {y_key} holds a label that is too large, {y.max()}.")
    return _Part(samples, torch.from_numpy(y.astype(np.int64)), f"{path}: {x_key}", domain, test)


def _length(array: np.ndarray) -> str:
    if array.ndim == 0:
        return "a single value"
    return str(len(array))


def _samples(path: Path, key: str, x: np.ndarray) -> Tensor:
    """Stored samples as a data set wants them.

    Images N x channels x height x width, vectors float32.
    """
    if x.ndim == 2 and x.dtype.kind in "iuf":
        with np.errstate(over="ignore"):
            values = torch.from_numpy(x.astype(np.float32))
        refuse_not_finite(values, f"{path}: {key}")
        return values
    if x.dtype == np.uint8 and x.ndim == 3:
        return torch.from_numpy(x[:, None])
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[3] in (1, 3):
        return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    raise FedloomError(
        f"{path}: {key} must hold uint8 images (N x H x W or N x H x W x 3) or vectors (N x D), "
        f"holds {x.dtype} of shape {x.shape}."
    )


def _assemble(
    name: str,
    path: Path,
    parts: Sequence[_Part],
    classes: tuple[str, ...] | None,
    domains: tuple[str, ...],
    size: int | None,
) -> Dataset:
    """The parts as one data set, with images of one size and labels that fit the classes."""
    y = torch.cat([part.y.flatten() for part in parts])
    if not len(y):
        raise FedloomError(f"{path}: holds no samples.")
    if classes is None:
        classes = plain_names(count_classes(path, y))
    elif int(y.max()) >= len(classes):
        raise FedloomError(
            f"{path}: a label is {int(y.max())}, but there are only {len(classes)} classes."
        )
    if size is not None and parts[0].x.ndim != 4:
        raise FedloomError(
            f"{parts[0].where} holds vectors; images, to be scaled to size={size}, are wanted."
        )
    _refuse_mixture(parts, size)
    channels = max(part.x.shape[1] for part in parts)
    xs, ys, of, tests = [], [], [], []
    for part in parts:
        x, target = part.x, part.y
        if size is not None:
            x = resize(x, size)
            target = _resized_target(target, size)
        if x.ndim == 4:
            x = x.expand(-1, channels, -1, -1)
        xs.append(x)
        ys.append(target)
        of.append(torch.full((len(target),), part.domain))
        if part.test is None:
            tests.append(mod10(len(target)))
        else:
            tests.append(torch.full((len(target),), part.test))
    return Dataset(
        name=name,
        x=torch.cat(xs),
        y=torch.cat(ys),
        domain=torch.cat(of),
        test=torch.cat(tests),
        classes=classes,
        domains=domains,
    )


def _refuse_mixture(parts: Sequence[_Part], size: int | None) -> None:
    """Stop if the samples of the parts are not all alike."""
    first = parts[0]
    for part in parts:
        x, other = part.x, first.x
        if x.ndim != other.ndim:
            raise FedloomError(
                f"{part.where} and {first.where} do not go together: images and vectors."
            )
        if x.ndim == 4 and size is None and x.shape[2:] != other.shape[2:]:
            raise FedloomError(
                f"{part.where} has images of another size than {first.where}; say size=... to "
                "scale them to one."
            )
        if x.ndim == 2 and x.shape[1] != other.shape[1]:
            raise FedloomError(
                f"{part.where} has vectors of {x.shape[1]} values, {first.where} of "
                f"{other.shape[1]}."
            )


def _resized_target(target: Tensor, size: int) -> Tensor:
    """Class maps at the size of their images; labels stay as they are."""
    if target.ndim != 3:
        return target
    maps = F.interpolate(target[:, None].float(), (size, size), mode="nearest-exact")
    return maps[:, 0].long()


@READERS.register("npz")
class Npz(Reader):
    """An .npz file of images, vectors or masks."""

    order = 10

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".npz" and path.is_file() and not is_sparse(npz_keys(path))

    def kind(self, path: str) -> Kind:
        return npz_kind(Path(path))

    def read(self, path: str, name: str, source: Source, progress: Progress | None) -> Dataset:
        return read_npz(Path(path), name=name, size=source.size)


@READERS.register("npz-folder")
class NpzFolder(Reader):
    """A folder of .npz files, one per domain."""

    order = 40

    def recognises(self, path: Path) -> bool:
        return path.is_dir() and any(path.glob("*.npz"))

    def kind(self, path: str) -> Kind:
        return npz_kind(min(Path(path).glob("*.npz")))

    def read(self, path: str, name: str, source: Source, progress: Progress | None) -> Dataset:
        return read_npz_folder(Path(path), name=name, size=source.size)

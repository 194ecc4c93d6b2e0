"""Data sets stored as NumPy `.npz` files: images, feature vectors and masks. Pickled objects are never loaded."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.errors import FedloomError, unknown
from ..federation import Dataset

DIGITS5 = ("mnist", "usps", "mnist_m", "svhn", "chars74k_font")
SPARSE = tuple(
    f"_{part}_{field}" for part in ("train", "test") for field in ("data", "indices", "indptr", "y")
)
LABELLED = ("x_train", "y_train", "x_test", "y_test")
MASKED = ("x_train", "mask_train", "x_test", "mask_test")
SEGMENTATION = (
    "background",
    "lesion",
)  # what mask values 0 and 1 mean unless the file says otherwise
CHUNK = 2048  # images resized at once


@dataclass(frozen=True)
class _Part:
    """Samples of one domain, all for training, all for testing or (`test` None) to be split by `mod10`."""

    x: Tensor
    y: Tensor
    where: str
    domain: int = 0
    test: bool | None = None


def mod10(n: int) -> Tensor:
    """The test part of `n` samples without an official one: counted from 0, those whose index ends in 8 or 9."""
    return torch.arange(n) % 10 > 7


def is_sparse(keys: Iterable[str]) -> bool:
    """Whether these are the keys of CSR rows by domain and part: `<domain>_{train,test}_{data,indices,indptr,y}`."""
    names = set(keys)
    domains = {k.removesuffix("_train_indptr") for k in names if k.endswith("_train_indptr")}
    return bool(domains) and all(f"{d}{end}" in names for d in domains for end in SPARSE)


def npz_keys(path: Path) -> tuple[str, ...]:
    """The names of the arrays in a file, none of which is read."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return tuple(file.files)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise _unreadable(path, error) from error


def npz_kind(path: Path) -> Literal["image", "vector", "sparse", "segmentation"]:
    """What a file holds, from the names and shapes of its arrays."""
    keys = npz_keys(path)
    if is_sparse(keys):
        return "sparse"
    if "mask_train" in keys:
        return "segmentation"
    first = next((k for k in keys if k == "x_train" or k.endswith("_x")), None)
    if first is None:
        return "vector"
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{first}.npy") as stored:
            version = np.lib.format.read_magic(stored)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, _ = read(stored)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, first, error) from error
    return "image" if len(shape) > 2 else "vector"


def count_classes(path: Path, y: Tensor) -> int:
    """How many classes the labels 0, 1, 2, ... are, which must all be there."""
    held = torch.unique(y)
    if len(held) <= int(held[-1]):
        gap = int((held != torch.arange(len(held))).nonzero()[0])
        raise FedloomError(
            f"{path}: no sample has the label {gap} although labels go up to {held[-1]}; "
            "store the class names as 'classes' if that is meant."
        )
    return len(held)


def read_npz(path: Path, *, name: str, size: int | None = None) -> Dataset:
    """A data set in one file, of one of three kinds.

    * `x_train y_train x_test y_test`: uint8 images (N x H x W, or N x H x W x 3) or vectors (which become float32).
    * `<domain>_x <domain>_y` for each domain, in stored order; in each domain the samples whose index ends in 8 or 9
      are the test part.
    * `x_train mask_train x_test mask_test`: images and class maps, for segmentation.

    `classes` may hold the class names; without them the labels must be 0, 1, 2, ... with no gap. With `size`, images
    are scaled to size x size.
    """
    arrays = _load(path)
    classes = _classes(path, arrays)
    domains: tuple[str, ...] = (name,)
    if any(k in arrays for k in (*LABELLED, *MASKED)):
        parts = _two_parts(path, arrays)
        if any(k.startswith("mask_") for k in arrays):
            classes = classes or SEGMENTATION
    elif is_sparse(arrays):
        raise FedloomError(f"{path}: holds sparse rows (..._indptr), not plain arrays.")
    else:
        ends = [k for k in arrays if k.endswith(("_x", "_y")) and len(k) > 2]
        domains = tuple(dict.fromkeys(k[:-2] for k in ends))
        if not domains:
            raise FedloomError(
                f"{path}: expected the arrays {', '.join(LABELLED)}, or <domain>_x and <domain>_y for each domain; "
                f"found {', '.join(arrays) or 'none'}."
            )
        _require(path, arrays, [f"{d}_{end}" for d in domains for end in "xy"])
        parts = [_part(path, arrays, f"{d}_x", f"{d}_y", i, None) for i, d in enumerate(domains)]
    return _assemble(name, path, parts, classes, domains, size)


def read_npz_folder(
    path: Path, *, name: str, size: int | None = None, domains: Sequence[str] | None = None
) -> Dataset:
    """A folder of files with `x_train y_train x_test y_test`, each of them one domain.

    Domains are in the order given by `domains` (which may leave some out), else in the order of `DIGITS5` if all are
    among these, else sorted. Where image sizes differ, all are scaled to `size` (default: the longest side of any);
    grey images are repeated over three channels if any domain is in colour.
    """
    if not path.is_dir():
        raise FedloomError(f"{path}: no such folder.")
    files = {f.stem: f for f in sorted(path.glob("*.npz")) if not f.name.startswith(".")}
    if not files:
        raise FedloomError(f"{path}: holds no .npz files.")
    if domains is not None:
        for d in domains:
            if d not in files:
                raise unknown("domain", d, files)
        order = tuple(domains)
    else:
        order = (
            tuple(d for d in DIGITS5 if d in files) if set(files) <= set(DIGITS5) else tuple(files)
        )
    parts: list[_Part] = []
    classes: tuple[str, ...] | None = None
    for i, d in enumerate(order):
        arrays = _load(files[d])
        _require(files[d], arrays, LABELLED)
        own = _classes(files[d], arrays)
        if own and classes and own != classes:
            raise FedloomError(f"{files[d]}: its classes are not those of the other domains.")
        classes = own or classes
        parts += [
            _part(files[d], arrays, f"x_{part}", f"y_{part}", i, part == "test")
            for part in ("train", "test")
        ]
    if (
        size is None
        and all(p.x.ndim == 4 for p in parts)
        and len({p.x.shape[2:] for p in parts}) > 1
    ):
        size = max(side for p in parts for side in p.x.shape[2:])
    return _assemble(name, path, parts, classes, order, size)


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


def _unreadable(path: Path, error: Exception) -> FedloomError:
    """The sentence for a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return FedloomError(f"{path}: no such file.")
    if isinstance(error, IsADirectoryError):
        return FedloomError(f"{path}: is a folder, not an .npz file.")
    if "allow_pickle" in str(error):  # what NumPy says of anything that it does not know
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
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            if "allow_pickle" in str(error):
                raise FedloomError(
                    f"{path}: {key} holds pickled objects; pickles are refused."
                ) from error
            raise _damaged(path, key, error) from error
        if isinstance(value, np.ndarray):  # anything else in the archive comes as bytes
            arrays[key] = value
    return arrays


def _require(path: Path, arrays: Iterable[str], wanted: Sequence[str]) -> None:
    held = set(arrays)
    missing = [k for k in wanted if k not in held]
    if missing:
        raise FedloomError(f"{path}: lacks {', '.join(missing)}.")


def _classes(path: Path, arrays: dict[str, np.ndarray]) -> tuple[str, ...] | None:
    """The class names in the file, if it has any."""
    if "classes" not in arrays:
        return None
    names = arrays["classes"]
    if names.ndim != 1 or not len(names):
        raise FedloomError(f"{path}: classes must be a list of names, has shape {names.shape}.")
    return tuple(n.decode() if isinstance(n, bytes) else str(n) for n in names.tolist())


def _two_parts(path: Path, arrays: dict[str, np.ndarray]) -> list[_Part]:
    """The training and the test part of a file with one domain."""
    masked = any(k.startswith("mask_") for k in arrays)
    _require(path, arrays, MASKED if masked else LABELLED)
    target = "mask" if masked else "y"
    return [
        _part(path, arrays, f"x_{p}", f"{target}_{p}", 0, p == "test") for p in ("train", "test")
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
    return str(len(array)) if array.ndim else "a single value"


def _samples(path: Path, key: str, x: np.ndarray) -> Tensor:
    """Stored samples as a data set wants them: images N x channels x height x width, vectors float32."""
    if x.ndim == 2 and x.dtype.kind in "iuf":
        values = x.astype(np.float32)
        if not np.isfinite(values).all():
            raise FedloomError(f"{path}: {key} holds values that are not finite.")
        return torch.from_numpy(values)
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
    """The parts as one data set: images of one size and one number of channels, labels that fit the classes."""
    y = torch.cat([p.y.flatten() for p in parts])
    if not len(y):
        raise FedloomError(f"{path}: holds no samples.")
    if classes is None:
        classes = tuple(str(c) for c in range(count_classes(path, y)))
    elif (top := int(y.max())) >= len(classes):
        raise FedloomError(f"{path}: a label is {top}, but there are only {len(classes)} classes.")

    first = parts[0]
    images = first.x.ndim == 4
    if size is not None and not images:
        raise FedloomError(
            f"{first.where} holds vectors; images, to be scaled to size={size}, are wanted."
        )
    channels = max(p.x.shape[1] for p in parts)
    xs, ys = [], []
    for p in parts:
        x, target = p.x, p.y
        if (x.ndim == 4) != images:
            raise FedloomError(
                f"{p.where} and {first.where} do not go together: images and vectors."
            )
        if images and size is not None:
            x = resize(x, size)
            if target.ndim == 3:
                target = F.interpolate(target[:, None].float(), (size, size), mode="nearest-exact")[
                    :, 0
                ].long()
        if x.shape[2:] != first.x.shape[2:] and size is None:
            raise FedloomError(
                f"{p.where} has images of another size than {first.where}; say size=... to scale them to one."
            )
        if images:
            x = x.expand(-1, channels, -1, -1)
        elif x.shape[1] != first.x.shape[1]:
            raise FedloomError(
                f"{p.where} has vectors of {x.shape[1]} values, {first.where} of {first.x.shape[1]}."
            )
        xs.append(x)
        ys.append(target)
    return Dataset(
        name=name,
        x=torch.cat(xs),
        y=torch.cat(ys),
        domain=torch.cat([torch.full((len(p.y),), p.domain) for p in parts]),
        test=torch.cat(
            [mod10(len(p.y)) if p.test is None else torch.full((len(p.y),), p.test) for p in parts]
        ),
        classes=classes,
        domains=domains,
    )

"""Folders of images: which files there are, and what their places say about them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ...core.errors import FedloomError
from ..cache import cache_folder
from ..dataset import Dataset
from ..recognise import misread_set
from .base import READERS, Kind, Progress, Reader, Source
from .decoding import SUFFIXES, ImageFile, decoded
from .fitting import Fit
from .lookalikes import refuse_masks, refuse_parts
from .naming import numbered
from .splits import mod10

PARTS = ("train", "val", "test")
CALLED = {  # in any case
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
Place = tuple[str, str | None, Path]  # domain, part if it has one, and a folder of class folders
LAYOUTS = "<domain>/<class>/*, {train,test}/<class>/* or <class>/*"


def read_folder(
    path: Path,
    *,
    size: Fit,
    on_bad_file: Literal["refuse", "skip"] = "refuse",
    name: str,
    cache: Path,
    progress: Progress | None = None,
    split: Literal["official", "mod10"] = "official",
) -> Dataset:
    """Read images in `<domain>/<class>/*`, `{train,test}/<class>/*` or `<class>/*`.

    `<domain>/{train,test}/<class>/*` is read too. The second layout (a `val` beside the two is
    allowed, and counts as training) and the third are one domain, named after the folder.
    `split="official"` takes the parts from the folders. A data set without them, and any with
    `split="mod10"`, is split by counting each domain's files in folder order (by class, then by
    file name): those whose index ends in 8 or 9 are the test part. Files left out as unreadable are
    counted too, so that the others do not change sides.

    Images become RGB and, given `size`, are scaled to size x size (bilinear, antialiased); without
    it they must all have one size already. They are decoded once, in parallel, into an array in the
    folder `cache`, and memory mapped from there; `progress(done, total)` is called while decoding.
    The cache is keyed by the files' content: a copy of a folder is not decoded again. Files whose
    names, sizes and times of change are those of an earlier load are taken to be the same without
    being read, which keeps the second load fast.

    A file that cannot be decoded is an error, or with `on_bad_file="skip"` left out with a warning.
    """
    if on_bad_file not in ("refuse", "skip"):
        raise FedloomError(f"on_bad_file must be 'refuse' or 'skip', got {on_bad_file!r}.")
    if split not in ("official", "mod10"):
        raise FedloomError(f"split must be 'official' or 'mod10', got {split!r}.")
    if isinstance(size, int) and size < 1:
        raise FedloomError(f"size must be at least 1, got {size}.")
    files = _scan(path, official=split == "official")
    official = split == "official" and files[0].part is not None
    domains_of_files = [file.domain for file in files]
    classes_of_files = [file.cls for file in files]
    domains = tuple(sorted(set(domains_of_files)))
    classes = tuple(sorted(set(classes_of_files)))
    refuse_masks(path, files)
    refuse_parts(path, files)
    _warn_of_gaps(name, files, classes, official)
    x, bad = decoded(path, files, size, on_bad_file == "refuse", name, cache, progress)
    if bad:
        warn_of_bad_files(name, bad, len(files))
    kept = torch.tensor([file.path not in bad for file in files])
    return Dataset(
        name=name,
        x=x,
        y=numbered(classes_of_files, classes)[kept],
        domain=numbered(domains_of_files, domains)[kept],
        test=_test_part(files, official)[kept],
        classes=classes,
        domains=domains,
    )


def _test_part(files: Sequence[ImageFile], official: bool) -> Tensor:
    """Which files are for testing."""
    if official:
        return torch.tensor([file.part == "test" for file in files])
    parts = []
    for _, group in groupby(files, key=lambda file: file.domain):
        parts.append(mod10(len(list(group))))
    return torch.cat(parts)


def warn_of_bad_files(name: str, bad: dict[str, str], total: int) -> None:
    shown = ", ".join(list(bad)[:10])
    if len(bad) > 10:
        shown += f" and {len(bad) - 10} more"
    warnings.warn(
        f"{name}: left out {len(bad)} of {total} images, unreadable: {shown}.", stacklevel=3
    )


def _folders(path: Path) -> list[str]:
    """Names of the folders in a folder, sorted, hidden ones left out."""
    try:
        with os.scandir(path) as entries:
            names = []
            for entry in entries:
                if entry.is_dir() and not entry.name.startswith("."):
                    _refuse_odd_name(path, entry.name)
                    names.append(entry.name)
            return sorted(names)
    except FileNotFoundError:
        raise FedloomError(f"{path}: no such folder.") from None
    except OSError as error:
        raise FedloomError(f"{path}: cannot be read as a folder ({error.strerror}).") from error


def _refuse_odd_name(path: Path, name: str) -> None:
    """Refuse a name that is not UTF-8: as a class or a domain it could not be written to a file."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise FedloomError(
            f"{path}: the name of the folder {os.fsencode(name)!r} is not UTF-8; rename it."
        ) from None


def _parts(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Which part each of these folders is, if they are parts at all."""
    parts = {}
    for name in names:
        if name.lower() in CALLED:
            parts[name] = CALLED[name.lower()]
    if len(parts) < len(names) or len(names) < 2:  # a class may be called train
        return {}
    if not {"train", "test"} <= set(parts.values()):
        raise FedloomError(
            f"{path}: wants a folder train and a folder test, found {', '.join(names)}."
        )
    return parts


def _scan(path: Path, official: bool) -> list[ImageFile]:
    """All image files, by domain, class and name."""
    tops = _folders(path)
    if not tops:
        raise FedloomError(f"{path}: holds no folders; expected {LAYOUTS}.")
    places = _places(path, tops)
    if official:
        _refuse_some_without_parts(path, places)
    files: list[ImageFile] = []
    for domain, part, place in places:
        files += _scan_place(path, place, domain, part)
    if not files:
        raise FedloomError(f"{path}: holds no images ({', '.join(SUFFIXES)}).")
    return sorted(files, key=_order)


def _refuse_some_without_parts(path: Path, places: Sequence[Place]) -> None:
    """Stop if some domains have train and test folders and others have not."""
    with_parts = []
    without = []
    for domain, part, _ in places:
        if part:
            with_parts.append(domain)
        else:
            without.append(domain)
    if with_parts and without:
        raise FedloomError(
            f"{path}: {min(with_parts)} has train and test folders but {without[0]} has not; give "
            "all domains both, or none: without, two of ten images are for testing."
        )


def _order(file: ImageFile) -> tuple[str, str, str, int]:
    """By domain, class, file name and part."""
    return file.domain, file.cls, file.path.rpartition("/")[2], PARTS.index(file.part or "train")


def _places(path: Path, tops: list[str]) -> list[Place]:
    """Where class folders are."""
    own_name = path.resolve().name
    if _parts(path, tops):
        return _places_in(path, own_name, tops)
    inner = {top: _folders(path / top) for top in tops}
    if not any(inner.values()):  # one level only: these are the classes
        return [(own_name, None, path)]
    places: list[Place] = []
    for domain in tops:
        places += _places_in(path / domain, domain, inner[domain])
    return places


def _places_in(path: Path, domain: str, folders: list[str]) -> list[Place]:
    """Where the class folders of one domain are."""
    parts = _parts(path, folders)
    if not parts:
        return [(domain, None, path)]
    places: list[Place] = []
    for folder, part in parts.items():
        places.append((domain, part, path / folder))
    return places


def _scan_place(root: Path, place: Path, domain: str, part: str | None) -> Iterator[ImageFile]:
    """The image files in one folder of class folders."""
    classes = _folders(place)
    if not classes:
        raise FedloomError(f"{place}: holds no class folders; expected {LAYOUTS}.")
    for cls in classes:
        relative = (place / cls).relative_to(root).as_posix()
        empty = True
        with os.scandir(place / cls) as entries:
            for entry in entries:
                if not _is_image(entry):
                    continue
                empty = False
                stat = entry.stat()
                file = f"{relative}/{entry.name}"
                yield ImageFile(file, domain, cls, part, stat.st_size, stat.st_mtime_ns)
        if empty:
            raise FedloomError(
                f"{place / cls}: this class folder holds no images ({', '.join(SUFFIXES)}); "
                "remove it."
            )


def _is_image(entry: os.DirEntry[str]) -> bool:
    name = entry.name.lower()
    return not name.startswith(".") and name.endswith(SUFFIXES) and entry.is_file()


def _warn_of_gaps(
    name: str, files: Sequence[ImageFile], classes: tuple[str, ...], official: bool
) -> None:
    """Say which classes a domain, or its training or test part, does not have."""
    seen: dict[str, set[str]] = {}
    for file in files:
        if not official:
            seen.setdefault(file.domain, set()).add(file.cls)
        elif file.part != "val":
            seen.setdefault(f"{file.domain}/{file.part}", set()).add(file.cls)
    for where, present in sorted(seen.items()):
        missing = [cls for cls in classes if cls not in present]
        if missing:
            warnings.warn(f"{name}: {where} has no images of {', '.join(missing)}.", stacklevel=3)


@READERS.register("images")
class Images(Reader):
    """A folder of images."""

    order = 100  # last: any folder may be one of images

    def recognises(self, path: Path) -> bool:
        return path.is_dir()

    def kind(self, path: str) -> Kind:
        return "image"

    def read(self, path: str, name: str, source: Source, progress: Progress | None) -> Dataset:
        entry = misread_set(Path(path))
        if entry is not None:
            raise FedloomError(
                f"{path}: this is {entry.title} as published, whose folders are not its classes; "
                f"`fedloom data import {entry.name} {path}` reads it."
            )
        return read_folder(
            Path(path),
            size=source.fit,
            on_bad_file=source.on_bad_file,
            name=name,
            cache=cache_folder(),
            progress=progress,
        )

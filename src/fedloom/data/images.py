"""Folders of image files, decoded once into a memory-mapped cache."""

from __future__ import annotations

import hashlib
import json
import multiprocessing as mp
import os
import re
import sys
import time
import uuid
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import FedloomError
from .arrays import mod10
from .federation import Dataset
from .mapped import mapped

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
PARTS = ("train", "val", "test")
MODE = "RGB"
RECIPE = 1  # raised whenever the same files would give other pixels
CHUNK = 64  # files decoded per task
MANY = 2000  # files from which on processes are worth starting
PROBES = 32  # rows whose checksum is kept
STALE = 86400  # seconds after which an unfinished cache file is taken for abandoned


@dataclass(frozen=True)
class _File:
    """An image file that was found, and what its place says about it."""

    path: str  # relative to the folder
    domain: str
    cls: str
    part: str | None  # train, val, test, or None where the domain has no parts
    size: int
    mtime: int


class _Decoded(NamedTuple):
    """What became of a file: the size of its image, or why there is none."""

    width: int
    height: int
    error: str = ""


class _Spoilt(Exception):
    """A cache that is there but cannot be used."""


def read_folder(
    path: Path,
    *,
    size: int | None,
    on_bad_file: Literal["refuse", "skip"] = "refuse",
    name: str,
    cache: Path,
    progress: Callable[[int, int], None] | None = None,
    split: Literal["official", "mod10"] = "official",
) -> Dataset:
    """Images in `<domain>/<class>/*`, `{train,test}/<class>/*` or `<domain>/{train,test}/<class>/*`.

    The second layout (a `val` beside the two is allowed, and counts as training) is one domain named after the folder.
    `split="official"` takes the parts from the folders; a data set without them, and any with `split="mod10"`, is split
    by counting each domain's files in folder order (by class, then by file name): those whose index ends in 8 or 9 are
    the test part. Files left out as unreadable are counted too, so that the others do not change sides.

    Images become RGB and, given `size`, are scaled to size x size (bilinear, antialiased); without it they must all
    have one size already. They are decoded once, in parallel, into an array in the folder `cache`, and memory
    mapped from there; `progress(done, total)` is called while decoding. The cache's key is made of the files' names,
    sizes and times of change, not of their bytes: that is what keeps the second load fast, and a file altered without
    a trace in any of the three will not be noticed.

    A file that cannot be decoded is an error, or with `on_bad_file="skip"` left out with a warning.
    """
    if on_bad_file not in ("refuse", "skip"):
        raise FedloomError(f"on_bad_file must be 'refuse' or 'skip', got {on_bad_file!r}.")
    if split not in ("official", "mod10"):
        raise FedloomError(f"split must be 'official' or 'mod10', got {split!r}.")
    if size is not None and size < 1:
        raise FedloomError(f"size must be at least 1, got {size}.")
    files = _scan(path, official=split == "official")
    official = split == "official" and files[0].part is not None
    domains = tuple(sorted({f.domain for f in files}))
    classes = tuple(sorted({f.cls for f in files}))
    _warn_of_gaps(name, files, classes, official)

    x, bad = _decoded(path, files, size, on_bad_file == "refuse", name, cache, progress, domains, classes)
    if bad:
        shown = ", ".join(list(bad)[:10]) + (f" and {len(bad) - 10} more" if len(bad) > 10 else "")
        warnings.warn(f"{name}: left out {len(bad)} of {len(files)} images, unreadable: {shown}.", stacklevel=2)

    if official:
        test = torch.tensor([f.part == "test" for f in files])
    else:
        test = torch.cat([mod10(len(list(own))) for _, own in groupby(files, key=lambda f: f.domain)])
    kept = torch.tensor([f.path not in bad for f in files])
    number, label = {d: i for i, d in enumerate(domains)}, {c: i for i, c in enumerate(classes)}
    return Dataset(
        name=name,
        x=x,
        y=torch.tensor([label[f.cls] for f in files])[kept],
        domain=torch.tensor([number[f.domain] for f in files])[kept],
        test=test[kept],
        classes=classes,
        domains=domains,
    )


def _folders(path: Path) -> list[str]:
    """Names of the folders in a folder, sorted, hidden ones left out."""
    try:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except FileNotFoundError:
        raise FedloomError(f"{path}: no such folder.") from None
    except OSError as error:
        raise FedloomError(f"{path}: cannot be read as a folder ({error.strerror}).") from error


def _are_parts(names: Sequence[str]) -> bool:
    return {"train", "test"} <= set(names) <= set(PARTS)


def _scan(path: Path, official: bool) -> list[_File]:
    """All image files, by domain, class and name."""
    tops = _folders(path)
    if not tops:
        raise FedloomError(f"{path}: holds no folders; expected <domain>/<class>/* or {{train,test}}/<class>/*.")
    places: list[tuple[str, str | None, Path]] = []  # domain, part, where its class folders are
    if _are_parts(tops):
        places = [(path.resolve().name, part, path / part) for part in tops]
    else:
        for domain in tops:
            inner = _folders(path / domain)
            places += (
                [(domain, part, path / domain / part) for part in inner]
                if _are_parts(inner)
                else [(domain, None, path / domain)]
            )
    with_parts = {d for d, part, _ in places if part}
    without = [d for d, part, _ in places if not part]
    if official and with_parts and without:
        raise FedloomError(
            f"{path}: {min(with_parts)} has train and test folders but {without[0]} has not; say split='mod10' to "
            "split all domains alike."
        )
    files = [f for domain, part, place in places for f in _scan_place(path, place, domain, part)]
    if not files:
        raise FedloomError(f"{path}: holds no images ({', '.join(SUFFIXES)}).")
    return sorted(files, key=lambda f: (f.domain, f.cls, f.path.rpartition("/")[2], PARTS.index(f.part or "train")))


def _scan_place(root: Path, place: Path, domain: str, part: str | None) -> Iterator[_File]:
    """The image files in one folder of class folders."""
    classes = _folders(place)
    if not classes:
        raise FedloomError(f"{place}: holds no class folders; expected <domain>/<class>/* or {{train,test}}/<class>/*.")
    for cls in classes:
        relative = (place / cls).relative_to(root).as_posix()
        found = False
        with os.scandir(place / cls) as entries:
            for e in entries:
                if e.name.startswith(".") or not e.name.lower().endswith(SUFFIXES) or not e.is_file():
                    continue
                found = True
                stat = e.stat()
                yield _File(f"{relative}/{e.name}", domain, cls, part, stat.st_size, stat.st_mtime_ns)
        if not found:
            raise FedloomError(f"{place / cls}: this class folder holds no images.")


def _warn_of_gaps(name: str, files: Sequence[_File], classes: tuple[str, ...], official: bool) -> None:
    """Say which classes a domain, or its training or test part, does not have."""
    seen: dict[str, set[str]] = {}
    for f in files:
        if not official:
            seen.setdefault(f.domain, set()).add(f.cls)
        elif f.part != "val":
            seen.setdefault(f"{f.domain}/{f.part}", set()).add(f.cls)
    for where, have in sorted(seen.items()):
        missing = [c for c in classes if c not in have]
        if missing:
            warnings.warn(f"{name}: {where} has no images of {', '.join(missing)}.", stacklevel=3)


def _key(files: Sequence[_File], size: int | None) -> str:
    """What the cached pixels depend on."""
    told = [RECIPE, MODE, size, sorted((f.path, f.size, f.mtime) for f in files)]
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()


def _decoded(
    path: Path,
    files: Sequence[_File],
    size: int | None,
    refuse: bool,
    name: str,
    cache: Path,
    progress: Callable[[int, int], None] | None,
    domains: tuple[str, ...],
    classes: tuple[str, ...],
) -> tuple[Tensor, dict[str, str]]:
    """The pixels of all readable files, from the cache or into it, and what is wrong with the others."""
    stem = f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name).strip('.') or 'images'}-{_key(files, size)}"
    array, notes = cache / f"{stem}.npy", cache / f"{stem}.json"
    try:
        found = _from_cache(array, notes, files)
    except _Spoilt as why:
        warnings.warn(f"{name}: the cache {array} is damaged ({why}) and is made anew.", stacklevel=3)
        found = None
    if found is None:
        try:
            _build(path, files, size, refuse, array, notes, progress, domains, classes)
            found = _from_cache(array, notes, files)
        except OSError as error:
            raise FedloomError(f"{name}: cannot write the cache in {cache}: {error.strerror or error}.") from error
        except _Spoilt as why:
            raise FedloomError(f"{name}: the cache {array} cannot be read back ({why}).") from why
        if found is None:
            raise FedloomError(f"{name}: the cache {array} was removed while it was in use.")
    x, bad = found
    if bad and refuse:
        raise _bad_file(path, *next(iter(bad.items())))
    return x, bad


def _bad_file(path: Path, file: str, why: str) -> FedloomError:
    return FedloomError(f"{path / file}: cannot be decoded ({why}); say on_bad_file='skip' to leave such files out.")


def _from_cache(array: Path, notes: Path, files: Sequence[_File]) -> tuple[Tensor, dict[str, str]] | None:
    """What was cached, mapped into memory; None if nothing was."""
    try:
        told = json.loads(notes.read_bytes())
        bad: dict[str, str] = {str(f): str(why) for f, why in told["bad"].items()}
        paths, probe = told["paths"], told["probe"]
    except OSError:
        return None  # notes are written last: no notes, no cache
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _Spoilt("its notes are not readable") from None
    if paths != [f.path for f in files if f.path not in bad]:
        raise _Spoilt("its notes name other files")
    try:
        # Copy on write: a tensor may be written to, the file may not.
        x = np.load(array, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _Spoilt(str(error)) from None
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:2] != (len(paths), 3):
        raise _Spoilt(f"{x.dtype} of shape {x.shape}")
    if _probe(x) != probe:
        raise _Spoilt("its checksum does not fit")
    return mapped(torch.from_numpy(x), array), bad


def _probe(x: np.ndarray) -> int:
    """A checksum of a few rows spread over the array: enough to catch blocks that never reached the disk."""
    value = 0
    for row in np.unique(np.linspace(0, len(x) - 1, min(len(x), PROBES)).astype(np.int64)):
        value = zlib.crc32(x[row].tobytes(), value)
    return value


def _build(
    path: Path,
    files: Sequence[_File],
    size: int | None,
    refuse: bool,
    array: Path,
    notes: Path,
    progress: Callable[[int, int], None] | None,
    domains: tuple[str, ...],
    classes: tuple[str, ...],
) -> None:
    """Decode everything into `array`, then write `notes`. Both are whole or absent, whoever else is at it."""
    array.parent.mkdir(parents=True, exist_ok=True)
    for left in array.parent.glob(f".{array.name}.*.tmp"):
        try:
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()
        except FileNotFoundError:
            continue
    # A name of its own: threads of one process may be at it too.
    temporary = array.with_name(f".{array.name}.{uuid.uuid4().hex}.tmp")
    try:
        bad = _write(path, files, size, refuse, temporary, progress)
        probe = _probe(np.load(temporary, mmap_mode="r", allow_pickle=False))
        kept = [f for f in files if f.path not in bad]
        told = {
            "probe": probe,
            "bad": bad,
            "classes": classes,
            "domains": domains,
            "labels": [classes.index(f.cls) for f in kept],
            "domain": [domains.index(f.domain) for f in kept],
            "paths": [f.path for f in kept],
        }
        os.replace(temporary, array)
        temporary.write_text(json.dumps(told), encoding="utf-8")
        os.replace(temporary, notes)
    finally:
        temporary.unlink(missing_ok=True)


def _write(
    path: Path,
    files: Sequence[_File],
    size: int | None,
    refuse: bool,
    out: Path,
    progress: Callable[[int, int], None] | None,
) -> dict[str, str]:
    """Decode the files into a new `.npy` file; returns the unreadable ones."""
    bad: dict[str, str] = {}
    for model in files:  # the first file that can be read says how large all are
        image, _ = _decode(str(path / model.path), size)
        if not image.error:
            break
        if refuse:
            raise _bad_file(path, model.path, image.error)
    else:
        raise FedloomError(f"{path}: none of its {len(files)} images can be decoded.")
    width, height = image.width, image.height
    with open(out, "xb") as file:
        _header(file, (len(files), 3, height, width))
        start = file.tell()
        file.truncate(start + len(files) * 3 * height * width)
    done = 0
    for chunk, images in _decode_all(path, files, size, out, start, 3 * height * width):
        for found, image in zip(chunk, images, strict=True):
            if image.error:
                if refuse:
                    raise _bad_file(path, found.path, image.error)
                bad[found.path] = image.error
            elif (image.width, image.height) != (width, height):
                raise FedloomError(
                    f"{path / found.path}: is {image.width}x{image.height}, but {model.path} is {width}x{height}; "
                    f"say size=... (size={max(width, height)}, perhaps) to scale all images to one size."
                )
        done += len(chunk)
        if progress:
            progress(done, len(files))
    if bad:  # close the gaps
        kept = [i for i, f in enumerate(files) if f.path not in bad]
        rows = np.load(out, mmap_mode="r+", allow_pickle=False)
        for to, row in enumerate(kept):
            if to != row:
                rows[to] = rows[row]
        del rows
        with open(out, "r+b") as file:
            _header(file, (len(kept), 3, height, width))
            file.truncate(start + len(kept) * 3 * height * width)
    return bad


def _header(out: BinaryIO, shape: tuple[int, ...]) -> None:
    """The head of an `.npy` file, of one length for any first number: NumPy leaves room for it to grow."""
    np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pool(workers: int, files: int) -> Executor:
    """Forked processes where that pays and is possible, else threads."""
    # Forked, not spawned: the others import torch and the user's script again, which takes longer than the decoding.
    # What runs in them is Pillow alone. A daemonic process, such as an executor's worker, may not have children.
    fork = sys.platform == "linux" and not mp.current_process().daemon
    if files < MANY or workers < 2 or not fork:
        return ThreadPoolExecutor(workers, thread_name_prefix="fedloom-decode")
    Image.init()  # in the parent, so that no child has to import anything
    return ProcessPoolExecutor(workers, mp_context=mp.get_context("fork"))


def _decode_all(
    path: Path, files: Sequence[_File], size: int | None, out: Path, start: int, row: int
) -> Iterator[tuple[Sequence[_File], list[_Decoded]]]:
    """Decode all files into `out`, from byte `start` on, `row` bytes each; yields what became of them, in order.

    Many files are decoded by processes, few by threads (quicker to start, but they share the interpreter's lock). They
    write to the file themselves: sending pixels from process to process would take longer than decoding them.
    """
    workers = min(_cores(), 16)
    pending: deque[tuple[Sequence[_File], Future[list[_Decoded]]]] = deque()
    with _pool(workers, len(files)) as pool:
        for first in range(0, len(files), CHUNK):
            chunk = files[first : first + CHUNK]
            paths = [str(path / f.path) for f in chunk]
            pending.append((chunk, pool.submit(_decode_chunk, paths, size, str(out), start + first * row, row)))
            if len(pending) > 4 * workers:  # a few chunks ahead, no more: an error ends it soon
                oldest, future = pending.popleft()
                yield oldest, future.result()
        for oldest, future in pending:
            yield oldest, future.result()


def _decode_chunk(paths: Sequence[str], size: int | None, out: str, start: int, row: int) -> list[_Decoded]:
    """Decode some files into their places; those that are unreadable or of another size leave a gap."""
    images = []
    with open(out, "r+b", buffering=0) as file:
        for i, path in enumerate(paths):
            image, pixels = _decode(path, size)
            images.append(image)
            if len(pixels) == row:
                file.seek(start + i * row)
                if file.write(pixels) != row:
                    raise OSError(f"no room for {path}")
    return images


def _decode(path: str, size: int | None) -> tuple[_Decoded, bytes]:
    """An image and its pixels, channel by channel."""
    try:
        with Image.open(path) as opened:
            image = opened.convert(MODE) if opened.mode != MODE else opened
            if size is not None and image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            # Band by band is the order we store, and quicker than transposing an array.
            return _Decoded(*image.size), b"".join([image.tobytes("raw", band) for band in MODE])
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on broken bytes
        return _Decoded(0, 0, " ".join(str(error).split()) or type(error).__name__), b""

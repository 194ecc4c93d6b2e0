"""Folders of image files, decoded once into a memory-mapped cache."""

from __future__ import annotations

import gc
import hashlib
import io
import json
import math
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
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from PIL import WebPImagePlugin as WebPImagePlugin  # the one kind that `preinit` leaves out
from torch import Tensor

from ...core.errors import FedloomError
from ..federation import Dataset
from ..mapped import mapped
from .arrays import mod10

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
PARTS = ("train", "val", "test")
CALLED = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}  # in any case
LAYOUTS = "<domain>/<class>/*, {train,test}/<class>/* or <class>/*"
MODE = "RGB"
RECIPE = 2  # raised whenever the same files would give other pixels, or pixels in another order
CHUNK = 64  # files decoded per task
MANY = 2000  # files from which on processes are worth starting
PROBES = 32  # rows whose checksum is kept
STALE = 86400  # seconds after which an unfinished cache file is taken for abandoned


class _File(NamedTuple):
    """An image file that was found, and what its place says about it."""

    path: str  # relative to the folder
    domain: str
    cls: str
    part: str | None  # train, val, test, or None where the domain has no parts
    size: int
    mtime: int


class _Odd(NamedTuple):
    """What is odd about a file: why there is no image, or the size of one that is not as large as the others."""

    error: str
    size: tuple[int, int] = (0, 0)


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
    """Images in `<domain>/<class>/*`, `{train,test}/<class>/*`, `<domain>/{train,test}/<class>/*` or `<class>/*`.

    The second layout (a `val` beside the two is allowed, and counts as training) and the last are one domain, named
    after the folder.
    `split="official"` takes the parts from the folders; a data set without them, and any with `split="mod10"`, is split
    by counting each domain's files in folder order (by class, then by file name): those whose index ends in 8 or 9 are
    the test part. Files left out as unreadable are counted too, so that the others do not change sides.

    Images become RGB and, given `size`, are scaled to size x size (bilinear, antialiased); without it they must all
    have one size already. They are decoded once, in parallel, into an array in the folder `cache`, and memory
    mapped from there; `progress(done, total)` is called while decoding. The cache is keyed by the files' content: a
    copy of a folder is not decoded again. Files whose names, sizes and times of change are those of an earlier load
    are taken to be the same without being read, which is what keeps the second load fast.

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

    x, bad = _decoded(path, files, size, on_bad_file == "refuse", name, cache, progress)
    if bad:
        shown = ", ".join(list(bad)[:10]) + (f" and {len(bad) - 10} more" if len(bad) > 10 else "")
        warnings.warn(
            f"{name}: left out {len(bad)} of {len(files)} images, unreadable: {shown}.",
            stacklevel=2,
        )

    if official:
        test = torch.tensor([f.part == "test" for f in files])
    else:
        test = torch.cat(
            [mod10(len(list(own))) for _, own in groupby(files, key=lambda f: f.domain)]
        )
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


def _parts(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Which part each of these folders is, if they are parts at all."""
    parts = {name: CALLED[name.lower()] for name in names if name.lower() in CALLED}
    if len(parts) < len(names) or len(names) < 2:  # a class may be called train
        return {}
    if not {"train", "test"} <= set(parts.values()):
        raise FedloomError(
            f"{path}: wants a folder train and a folder test, found {', '.join(names)}."
        )
    return parts


def _scan(path: Path, official: bool) -> list[_File]:
    """All image files, by domain, class and name."""
    tops = _folders(path)
    if not tops:
        raise FedloomError(f"{path}: holds no folders; expected {LAYOUTS}.")
    places: list[tuple[str, str | None, Path]] = []  # domain, part, where its class folders are
    inner = {top: _folders(path / top) for top in tops}
    if parts := _parts(path, tops):
        places = [(path.resolve().name, part, path / folder) for folder, part in parts.items()]
    elif not any(inner.values()):  # one level only: these are the classes
        places = [(path.resolve().name, None, path)]
    else:
        for domain in tops:
            own = _parts(path / domain, inner[domain])
            places += [(domain, part, path / domain / folder) for folder, part in own.items()]
            places += [] if own else [(domain, None, path / domain)]
    with_parts = {d for d, part, _ in places if part}
    without = [d for d, part, _ in places if not part]
    if official and with_parts and without:
        raise FedloomError(
            f"{path}: {min(with_parts)} has train and test folders but {without[0]} has not; give all domains both, or "
            "none: without, two of ten images are for testing."
        )
    files = [f for domain, part, place in places for f in _scan_place(path, place, domain, part)]
    if not files:
        raise FedloomError(f"{path}: holds no images ({', '.join(SUFFIXES)}).")
    return sorted(
        files,
        key=lambda f: (f.domain, f.cls, f.path.rpartition("/")[2], PARTS.index(f.part or "train")),
    )


def _scan_place(root: Path, place: Path, domain: str, part: str | None) -> Iterator[_File]:
    """The image files in one folder of class folders."""
    classes = _folders(place)
    if not classes:
        raise FedloomError(f"{place}: holds no class folders; expected {LAYOUTS}.")
    for cls in classes:
        relative = (place / cls).relative_to(root).as_posix()
        found = False
        with os.scandir(place / cls) as entries:
            for e in entries:
                if (
                    e.name.startswith(".")
                    or not e.name.lower().endswith(SUFFIXES)
                    or not e.is_file()
                ):
                    continue
                found = True
                stat = e.stat()
                yield _File(
                    f"{relative}/{e.name}", domain, cls, part, stat.st_size, stat.st_mtime_ns
                )
        if not found:
            raise FedloomError(
                f"{place / cls}: this class folder holds no images ({', '.join(SUFFIXES)}); remove it."
            )


def _warn_of_gaps(
    name: str, files: Sequence[_File], classes: tuple[str, ...], official: bool
) -> None:
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


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]  # processors have instructions for this one


def _digest(*told: object) -> str:
    return _hash(json.dumps(told).encode())


def _array_name(size: int | None, digests: Sequence[str]) -> str:
    """An array is named after all that its pixels depend on: the content of the files, and what is made of it."""
    return f"images-{_digest(RECIPE, MODE, size, digests)}.npy"


def _decoded(
    path: Path,
    files: Sequence[_File],
    size: int | None,
    refuse: bool,
    name: str,
    cache: Path,
    progress: Callable[[int, int], None] | None,
) -> tuple[Tensor, dict[str, str]]:
    """The pixels of all readable files, from the cache or into it, and what is wrong with the others.

    An array is named after the content of its files. Notes, named after what a listing of the folder shows, say which
    array that is, so that files need not be read to find it; files with new times are read, to see if they are the
    same.
    """
    listing = f"images-{_digest(RECIPE, MODE, size, [(f.path, f.size) for f in files])}"
    notes = cache / f"{listing}-{_digest([f.mtime for f in files])}.json"
    found = None
    try:
        found = _from_cache(notes, files)
        if found is None and (others := list(cache.glob(f"{listing}-*.json"))):
            found = _from_others(path, files, size, notes, others)
    except _Spoilt as why:
        warnings.warn(
            f"{name}: the cache {notes} is damaged ({why}) and is made anew.", stacklevel=3
        )
    if found is None:
        try:
            _build(path, files, size, refuse, notes, progress)
            found = _from_cache(notes, files)
        except OSError as error:
            raise FedloomError(
                f"{name}: cannot write the cache in {cache}: {error.strerror or error}."
            ) from error
        except _Spoilt as why:
            raise FedloomError(f"{name}: the cache {notes} cannot be read back ({why}).") from why
        if found is None:
            raise FedloomError(f"{name}: the cache {notes} was removed while it was in use.")
    x, bad = found
    if bad and refuse:
        raise _bad_file(path, *next(iter(bad.items())))
    return x, bad


def _bad_file(path: Path, file: str, why: str) -> FedloomError:
    return FedloomError(
        f"{path / file}: cannot be decoded ({_plain(why)}); --on-bad-file skip leaves such files out."
    )


def _plain(why: str) -> str:
    """Pillow names the stream it read from, which is of no use to anybody."""
    return re.sub(r" <_io\.BytesIO object at 0x[0-9a-f]+>", "", why)


def _from_cache(notes: Path, files: Sequence[_File]) -> tuple[Tensor, dict[str, str]] | None:
    """What was cached, mapped into memory; None if nothing was."""
    try:
        told = json.loads(notes.read_bytes())
        bad: dict[str, str] = {str(f): str(why) for f, why in told["bad"].items()}
        array, probe = notes.with_name(Path(told["array"]).name), told["probe"]
    except OSError:
        return None  # notes are written last: no notes, no cache
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _Spoilt("its notes are not readable") from None
    if not bad.keys() <= {f.path for f in files}:
        raise _Spoilt("its notes name other files")
    try:
        # Copy on write: a tensor may be written to, the file may not.
        x = np.load(array, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _Spoilt(str(error)) from None
    if x.dtype != np.uint8 or x.ndim != 4 or (len(x), x.shape[3]) != (len(files) - len(bad), 3):
        raise _Spoilt(f"{x.dtype} of shape {x.shape}")
    if _probe(x) != probe:
        raise _Spoilt("its checksum does not fit")
    return mapped(torch.from_numpy(x).permute(0, 3, 1, 2), array), bad


def _from_others(
    path: Path, files: Sequence[_File], size: int | None, notes: Path, others: Sequence[Path]
) -> tuple[Tensor, dict[str, str]] | None:
    """What was cached for files of these names and sizes but other times, if their content is the same."""
    with ThreadPoolExecutor(
        _workers()
    ) as pool:  # neither reading nor hashing holds the interpreter's lock
        digests = list(pool.map(lambda f: _hash(Path(f"{path}/{f.path}").read_bytes()), files))
    array = _array_name(size, digests)
    for other in others:
        try:
            told = other.read_bytes()
            if json.loads(told)["array"] == array and (found := _from_cache(other, files)):
                _put(notes, told)
                return found
        except (OSError, ValueError, KeyError, TypeError, _Spoilt):
            continue  # removed meanwhile, or of no use: then the files are decoded
    return None


def _probe(x: np.ndarray) -> int:
    """A checksum of a few rows spread over the array: enough to catch blocks that never reached the disk."""
    value = 0
    for row in np.unique(np.linspace(0, len(x) - 1, min(len(x), PROBES)).astype(np.int64)):
        value = zlib.crc32(x[row].tobytes(), value)
    return value


def _temporary(of: Path) -> Path:
    # A name of its own: threads of one process may be at it too.
    return of.with_name(f".{of.name}.{uuid.uuid4().hex}.tmp")


def _put(notes: Path, told: bytes) -> None:
    temporary = _temporary(notes)
    temporary.write_bytes(told)
    os.replace(temporary, notes)


def _build(
    path: Path,
    files: Sequence[_File],
    size: int | None,
    refuse: bool,
    notes: Path,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Decode everything into an array, then write `notes`. Both are whole or absent, whoever else is at it."""
    notes.parent.mkdir(parents=True, exist_ok=True)
    for left in notes.parent.glob(".*.tmp"):
        try:
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()
        except FileNotFoundError:
            continue
    temporary = _temporary(notes)
    try:
        digests, bad = _write(path, files, size, refuse, temporary, progress)
        probe = _probe(np.load(temporary, mmap_mode="r", allow_pickle=False))
        array = _array_name(size, digests)
        os.replace(temporary, notes.with_name(array))
        _put(notes, json.dumps({"array": array, "probe": probe, "bad": bad}).encode())
    finally:
        temporary.unlink(missing_ok=True)


def _write(
    path: Path,
    files: Sequence[_File],
    size: int | None,
    refuse: bool,
    out: Path,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[str], dict[str, str]]:
    """Decode the files into a new `.npy` file; returns the digests of all and what is wrong with the unreadable."""
    digests: list[str] = []
    bad: dict[str, str] = {}
    for model in files:  # the first file that can be read says how large all are
        _, found = _decode(str(path / model.path), size)
        if not isinstance(found, str):
            break
        if refuse:
            raise _bad_file(path, model.path, found)
    else:
        raise FedloomError(f"{path}: none of its {len(files)} images can be decoded.")
    width, height = found.size
    with open(out, "xb") as file:
        _header(file, (len(files), height, width, 3))
        start = file.tell()
        _reserve(file, start + len(files) * 3 * height * width)
    for chunk, seen, odd in _decode_all(path, files, size, out, start, (width, height)):
        for i, (error, other) in odd.items():
            if not error:
                raise FedloomError(
                    f"{path / chunk[i].path}: is {other[0]}x{other[1]}, but {model.path} is {width}x{height}; "
                    f"say size=... (size={max(width, height)}, perhaps) to scale all images to one size."
                )
            if refuse:
                raise _bad_file(path, chunk[i].path, error)
            bad[chunk[i].path] = error
        digests += seen
        if progress:
            progress(len(digests), len(files))
    if bad:  # close the gaps
        kept = [i for i, f in enumerate(files) if f.path not in bad]
        rows = np.load(out, mmap_mode="r+", allow_pickle=False)
        for to, row in enumerate(kept):
            if to != row:
                rows[to] = rows[row]
        del rows
        with open(out, "r+b") as file:
            _header(file, (len(kept), height, width, 3))
            file.truncate(start + len(kept) * 3 * height * width)
    return digests, bad


def _header(out: BinaryIO, shape: tuple[int, ...]) -> None:
    """The head of an `.npy` file, of one length for any first number: NumPy leaves room for it to grow."""
    np.lib.format.write_array_header_1_0(
        out, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )


def _reserve(out: BinaryIO, length: int) -> None:
    """Make a file so long, with its room on the disk where that can be had beforehand: a full disk is noticed now."""
    out.flush()
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(out.fileno(), 0, length)
    else:
        out.truncate(length)


def _workers() -> int:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(cores, 16)


def _pool(workers: int, files: int) -> Executor:
    """Forked processes where that pays and is possible, else threads."""
    # Forked, not spawned: the others import torch and the user's script again, which takes longer than the decoding.
    # What runs in them is Pillow alone. A daemonic process, such as an executor's worker, may not have children.
    fork = sys.platform == "linux" and not mp.current_process().daemon
    if files < MANY or workers < 2 or not fork:
        return ThreadPoolExecutor(workers, thread_name_prefix="fedloom-decode")
    Image.preinit()  # in the parent, so that no child has to import anything
    return ProcessPoolExecutor(workers, mp_context=mp.get_context("fork"), initializer=gc.freeze)


def _decode_all(
    path: Path,
    files: Sequence[_File],
    size: int | None,
    out: Path,
    start: int,
    shape: tuple[int, int],
) -> Iterator[tuple[Sequence[_File], list[str], dict[int, _Odd]]]:
    """Decode all files into `out`, from byte `start` on; yields some files after others, as `_decode_chunk` has them.

    Many files are decoded by processes, few by threads (quicker to start, but they share the interpreter's lock). They
    write to the file themselves: sending pixels from process to process would take longer than decoding them.
    """
    workers = _workers()
    pending: deque[tuple[Sequence[_File], Future[tuple[list[str], dict[int, _Odd]]]]] = deque()
    with _pool(workers, len(files)) as pool:
        for first in range(0, len(files), CHUNK):
            chunk = files[first : first + CHUNK]
            paths = [
                f"{path}/{f.path}" for f in chunk
            ]  # joining ten thousand times with pathlib takes a while
            place = start + first * 3 * math.prod(shape)
            pending.append((chunk, pool.submit(_decode_chunk, paths, size, str(out), place, shape)))
            if len(pending) > 4 * workers:  # a few chunks ahead, no more: an error ends it soon
                oldest, future = pending.popleft()
                yield oldest, *future.result()
        for oldest, future in pending:
            yield oldest, *future.result()


def _decode_chunk(
    paths: Sequence[str], size: int | None, out: str, start: int, shape: tuple[int, int]
) -> tuple[list[str], dict[int, _Odd]]:
    """Decode some files into their places; their digests, and what is odd about some, for which zeros are written."""
    digests: list[str] = []
    odd: dict[int, _Odd] = {}
    row = 3 * math.prod(shape)
    with open(out, "r+b", buffering=0) as file:
        file.seek(start)
        for i, path in enumerate(paths):
            digest, image = _decode(path, size)
            digests.append(digest)
            if isinstance(image, str) or image.size != shape:
                odd[i] = _Odd(image) if isinstance(image, str) else _Odd("", image.size)
                pixels = bytes(row)
            else:  # pixel by pixel, as Pillow has them, which is quicker than to take bands apart
                pixels = image.tobytes()
            # Image by image: larger pieces make the kernel look for larger pages, which took longer.
            if file.write(pixels) != row:
                raise OSError("no room for all pixels")
    return digests, odd


def _decode(path: str, size: int | None) -> tuple[str, Image.Image | str]:
    """A file's digest, and its image or what is wrong with it."""
    digest = ""
    try:
        with open(path, "rb", buffering=0) as file:
            data = (
                file.read()
            )  # all at once: Pillow itself would read in small pieces, which takes longer
        digest = _hash(data)
        with Image.open(io.BytesIO(data)) as opened:
            opened.load()
            image = opened if opened.mode == MODE else opened.convert(MODE)
            if size is not None and image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return digest, image
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on broken bytes
        return digest, " ".join(str(error).split()) or type(error).__name__

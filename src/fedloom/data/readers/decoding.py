"""Image files decoded once, in parallel, into an array in the cache."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import multiprocessing as mp
import os
import re
import sys
import time
import uuid
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...core.errors import FedloomError
from ...core.files import read_regular, write_atomic
from ..cache import ArrayCache, Damaged, npy_header, remember_file
from .base import Progress
from .dicom import DICOM, refuse_without_pydicom
from .fitting import Cut, Fit, fitted
from .pixels import decoded_image, image_size

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", DICOM)
MODE = "RGB"
RECIPE = 4  # raised whenever the same files would give other pixels, or other notes on them
CHUNK = 64  # files decoded per task
MANY = 2000  # number of files from which processes are worth starting
STALE = 86400  # seconds after which an unfinished cache file is taken for abandoned


class ImageFile(NamedTuple):
    """An image file and what its place says about it."""

    path: str  # relative to the folder
    domain: str
    cls: str
    part: str | None  # train, val, test, or None where the domain has no parts
    size: int
    mtime: int


class _Odd(NamedTuple):
    """What is odd about a file: why there is no image, or a size unlike that of the others."""

    error: str
    size: tuple[int, int] = (0, 0)


Decoded = tuple[Tensor, dict[str, str]]  # the pixels, and what is wrong with unreadable files


def decoded(
    path: Path,
    files: Sequence[ImageFile],
    fit: Fit,
    refuse: bool,
    name: str,
    folder: Path,
    progress: Progress | None,
) -> Decoded:
    """The pixels of all readable files, from the cache or into it, and what is wrong with others.

    An encoder's cut is asked for only if images differ in size; see `_decoded` for the rest.
    """
    size: int | Cut | None = None
    if not callable(fit):
        size = fit
    elif not ArrayCache(folder).notes(_keys(files, None)[1]).exists() and _differ(path, files):
        size = fit()
    return _decoded(path, files, size, refuse, name, folder, progress)


def _differ(path: Path, files: Sequence[ImageFile]) -> bool:
    """Whether images differ in size; unreadable ones do not count."""
    first = None
    for file in files:
        size = image_size(path / file.path)
        if first is None:
            first = size
        elif size is not None and size != first:
            return True
    return False


def _decoded(
    path: Path,
    files: Sequence[ImageFile],
    size: int | Cut | None,
    refuse: bool,
    name: str,
    folder: Path,
    progress: Progress | None,
) -> Decoded:
    """The same for a size, or for a cut that all images go through.

    An array is named after the content of its files. Notes, named after what a listing of the
    folder shows, say which array that is, so that files need not be read to find it; files with new
    times are read, to see if they are the same.
    """
    if any(file.path.lower().endswith(DICOM) for file in files):
        refuse_without_pydicom()
    cache = ArrayCache(folder)
    listing, key = _keys(files, size)
    images = None
    try:
        images = _from_cache(cache, key, files)
        others = [notes.stem for notes in folder.glob(f"{listing}-*.json")]
        if images is None and others:
            images = _from_others(path, files, size, cache, key, others)
    except Damaged as why:
        warnings.warn(
            f"{name}: the cache {cache.notes(key)} is damaged ({why}) and is made anew.",
            stacklevel=4,
        )
    if images is None:
        images = _rebuilt(path, files, size, refuse, name, cache, key, progress)
    x, bad = images
    if bad and refuse:
        raise _bad_file(path, *next(iter(bad.items())))
    return x, bad


def _rebuilt(
    path: Path,
    files: Sequence[ImageFile],
    size: int | Cut | None,
    refuse: bool,
    name: str,
    cache: ArrayCache,
    key: str,
    progress: Progress | None,
) -> Decoded:
    """Decode all files into the cache, and open the result."""
    try:
        _build(path, files, size, refuse, cache, key, progress)
        images = _from_cache(cache, key, files)
    except OSError as error:
        raise FedloomError(
            f"{name}: cannot write the cache in {cache.folder}: {error.strerror or error}."
        ) from error
    except Damaged as why:
        raise FedloomError(
            f"{name}: the cache {cache.notes(key)} cannot be read back ({why})."
        ) from why
    if images is None:
        raise FedloomError(f"{name}: the cache {cache.notes(key)} was removed while it was in use.")
    return images


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]  # processors have instructions for this one


def _digest(*facts: object) -> str:
    return _hash(json.dumps(facts).encode())


def _array_name(size: int | Cut | None, digests: Sequence[str]) -> str:
    """Named after all that its pixels depend on: the content of the files and how it is treated."""
    return f"images-{_digest(RECIPE, MODE, _noted(size), digests)}"


def _keys(files: Sequence[ImageFile], size: int | Cut | None) -> tuple[str, str]:
    """Names of notes: for files of these names and lengths, and for the times of change too."""
    listing = f"images-{_digest(RECIPE, MODE, _noted(size), [(f.path, f.size) for f in files])}"
    return listing, f"{listing}-{_digest([f.mtime for f in files])}"


def _noted(size: int | Cut | None) -> object:
    """A size or a cut as plain values."""
    if isinstance(size, Cut):
        return [size.side, size.crop, size.resample]
    return size


def _bad_file(path: Path, file: str, why: str) -> FedloomError:
    # Pillow names the stream that it read from, which is of no use to anybody.
    why = re.sub(r" <_io\.BytesIO object at 0x[0-9a-f]+>", "", why)
    return FedloomError(
        f"{path / file}: cannot be decoded ({why}); --on-bad-file skip leaves such files out."
    )


def _from_cache(cache: ArrayCache, key: str, files: Sequence[ImageFile]) -> Decoded | None:
    """What is cached, mapped into memory; None if nothing is."""
    entry = cache.open(key)
    if entry is None:
        return None
    x, notes = entry
    bad = notes.get("bad")
    if not isinstance(bad, dict) or not bad.keys() <= {file.path for file in files}:
        raise Damaged("its notes name other files")
    if x.dtype != np.uint8 or x.ndim != 4 or (len(x), x.shape[3]) != (len(files) - len(bad), 3):
        raise Damaged(f"{x.dtype} of shape {x.shape}")
    pixels = torch.from_numpy(x).permute(0, 3, 1, 2)
    return remember_file(pixels, cache.folder / notes["array"]), bad


def _from_others(
    path: Path,
    files: Sequence[ImageFile],
    size: int | Cut | None,
    cache: ArrayCache,
    key: str,
    others: Sequence[str],
) -> Decoded | None:
    """What is cached for files of these names and sizes but other times, if they are the same."""
    # Neither reading nor hashing holds the interpreter's lock, so threads help.
    with ThreadPoolExecutor(_workers()) as pool:
        digests = list(pool.map(lambda f: _hash(read_regular(Path(f"{path}/{f.path}"))), files))
    array = cache.array(_array_name(size, digests)).name
    for other in others:
        try:
            data = cache.notes(other).read_bytes()
            if json.loads(data)["array"] != array:
                continue
            images = _from_cache(cache, other, files)
            if images is not None:
                write_atomic(cache.notes(key), data, durable=False)
                return images
        except (OSError, ValueError, KeyError, TypeError, Damaged):
            continue  # removed meanwhile, or of no use: then the files are decoded
    return None


def _build(
    path: Path,
    files: Sequence[ImageFile],
    size: int | Cut | None,
    refuse: bool,
    cache: ArrayCache,
    key: str,
    progress: Progress | None,
) -> None:
    """Decode everything into an array of the cache; nobody else ever sees half of it."""
    cache.folder.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(cache.folder)
    # The name is unique: threads of one process may decode the same folder too.
    temporary = cache.folder / f".{key}.{uuid.uuid4().hex}.tmp"
    try:
        digests, bad = _write(path, files, size, refuse, temporary, progress)
        cache.add(key, temporary, {"bad": bad}, _array_name(size, digests))
    finally:
        temporary.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what a killed process has left half-written."""
    for left in folder.glob(".*.tmp"):
        try:
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()
        except FileNotFoundError:
            continue


def _write(
    path: Path,
    files: Sequence[ImageFile],
    size: int | Cut | None,
    refuse: bool,
    out: Path,
    progress: Progress | None,
) -> tuple[list[str], dict[str, str]]:
    """Decode the files into a new `.npy` file.

    Returns the digests of all files and what is wrong with the unreadable ones.
    """
    digests: list[str] = []
    bad: dict[str, str] = {}
    model, (width, height) = _first_size(path, files, size, refuse)
    with open(out, "xb") as file:
        file.write(npy_header(np.dtype(np.uint8), (len(files), height, width, 3)))
        start = file.tell()
        _reserve(file, start + len(files) * 3 * height * width)
    for chunk, seen, odd in _decode_all(path, files, size, out, start, (width, height)):
        for i, (error, other) in odd.items():
            if not error:
                raise FedloomError(
                    f"{path / chunk[i].path}: is {other[0]}x{other[1]}, but {model.path} is "
                    f"{width}x{height}; say size=... (size={max(width, height)}, perhaps) to scale "
                    "all images to one size."
                )
            if refuse:
                raise _bad_file(path, chunk[i].path, error)
            bad[chunk[i].path] = error
        digests += seen
        if progress:
            progress(len(digests), len(files))
    if bad:
        kept = [i for i, file in enumerate(files) if file.path not in bad]
        _close_gaps(out, kept, start)
    return digests, bad


def _first_size(
    path: Path, files: Sequence[ImageFile], size: int | Cut | None, refuse: bool
) -> tuple[ImageFile, tuple[int, int]]:
    """The first readable file and its size, which all others must have."""
    for file in files:
        _, image = _decode(str(path / file.path), size)
        if not isinstance(image, str):
            return file, image.size
        if refuse:
            raise _bad_file(path, file.path, image)
    raise FedloomError(f"{path}: none of its {len(files)} images can be decoded.")


def _close_gaps(out: Path, kept: Sequence[int], start: int) -> None:
    """Keep only these rows of an array on disk."""
    rows = np.load(out, mmap_mode="r+", allow_pickle=False)
    shape = rows.shape[1:]
    for to, row in enumerate(kept):
        if to != row:
            rows[to] = rows[row]
    del rows
    with open(out, "r+b") as file:
        file.write(npy_header(np.dtype(np.uint8), (len(kept), *shape)))
        file.truncate(start + len(kept) * math.prod(shape))


def _reserve(out: BinaryIO, length: int) -> None:
    """Give a file its length, and its room on the disk where possible: a full disk shows now."""
    out.flush()
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(out.fileno(), 0, length)
    else:
        out.truncate(length)


def _workers() -> int:
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return min(cores, 16)


def _pool(workers: int, files: int) -> Executor:
    """Forked processes where that pays and is possible, else threads."""
    # Forked, not spawned: spawned ones import torch and the user's script again, which takes longer
    # than the decoding. Only Pillow runs in them. A daemonic process, such as an executor's worker,
    # may not have children.
    fork = sys.platform == "linux" and not mp.current_process().daemon
    if files < MANY or workers < 2 or not fork:
        return ThreadPoolExecutor(workers, thread_name_prefix="fedloom-decode")
    Image.preinit()  # in the parent, so that no child has to import anything
    return ProcessPoolExecutor(workers, mp_context=mp.get_context("fork"), initializer=gc.freeze)


def _decode_all(
    path: Path,
    files: Sequence[ImageFile],
    size: int | Cut | None,
    out: Path,
    start: int,
    shape: tuple[int, int],
) -> Iterator[tuple[Sequence[ImageFile], list[str], dict[int, _Odd]]]:
    """Decode all files into `out`, from byte `start` on; yields what `_decode_chunk` returns.

    Many files are decoded by processes, few by threads (quicker to start, but they share the
    interpreter's lock). They write to the file themselves: sending pixels from process to process
    would take longer than decoding them.
    """
    workers = _workers()
    pending: deque[tuple[Sequence[ImageFile], Future[tuple[list[str], dict[int, _Odd]]]]] = deque()
    with _pool(workers, len(files)) as pool:
        for first in range(0, len(files), CHUNK):
            chunk = files[first : first + CHUNK]
            # Joining ten thousand paths with pathlib would take a while.
            paths = [f"{path}/{file.path}" for file in chunk]
            place = start + first * 3 * math.prod(shape)
            pending.append((chunk, pool.submit(_decode_chunk, paths, size, str(out), place, shape)))
            if len(pending) > 4 * workers:  # a few chunks ahead, no more: an error ends it soon
                oldest, future = pending.popleft()
                yield oldest, *future.result()
        for oldest, future in pending:
            yield oldest, *future.result()


def _decode_chunk(
    paths: Sequence[str], size: int | Cut | None, out: str, start: int, shape: tuple[int, int]
) -> tuple[list[str], dict[int, _Odd]]:
    """Decode some files into their places; gives their digests, and what is odd about some.

    An odd file leaves zeros in its place.
    """
    digests: list[str] = []
    odd: dict[int, _Odd] = {}
    row = 3 * math.prod(shape)
    with open(out, "r+b", buffering=0) as file:
        file.seek(start)
        for i, path in enumerate(paths):
            digest, image = _decode(path, size)
            digests.append(digest)
            pixels = bytes(row)
            if isinstance(image, str):
                odd[i] = _Odd(image)
            elif image.size != shape:
                odd[i] = _Odd("", image.size)
            else:  # with channels last, as Pillow stores them: separating bands would take longer
                pixels = image.tobytes()
            # Image by image: with larger pieces the kernel looks for larger pages and takes longer.
            if file.write(pixels) != row:
                raise OSError("no room for all pixels")
    return digests, odd


def _decode(path: str, size: int | Cut | None) -> tuple[str, Image.Image | str]:
    """A file's digest, and its image or what is wrong with it."""
    digest = ""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read()  # all at once: Pillow would read in small pieces, which takes longer
        digest = _hash(data)
        return digest, fitted(decoded_image(data), size)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on broken bytes
        return digest, " ".join(str(error).split()) or type(error).__name__

"""Arrays that are computed once and kept on disk, mapped into memory when they are used again."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..core.files import locked, write_atomic

PROBES = 64  # rows whose checksum is kept
HASHED = 1 << 25  # bytes hashed per task


def cache_folder() -> Path:
    """Where computed data are kept: `FEDLOOM_CACHE`, or `fedloom` in the user's cache folder."""
    chosen = os.environ.get("FEDLOOM_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedloom"


class Damaged(Exception):
    """An array that is in the cache but cannot be used; the message says why."""


class ArrayCache:
    """Arrays in a folder.

    Each array is a `.npy` file. Notes, a JSON file, name the array and hold a checksum of some of
    its rows and whatever else the caller wants to remember. Notes are written last: without them
    there is no entry.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def array(self, key: str) -> Path:
        """The file of an array."""
        return self.folder / f"{key}.npy"

    def notes(self, key: str) -> Path:
        """The file of the notes on an array."""
        return self.folder / f"{key}.json"

    def open(self, key: str) -> tuple[np.ndarray, dict[str, Any]] | None:
        """The array of an entry, mapped into memory, and its notes; None if there is no entry."""
        try:
            data = self.notes(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            notes = json.loads(data)
            array = self.array(Path(notes.get("array", key)).stem)
            checksum = notes["probe"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Damaged("its notes are not readable") from None
        try:
            # Copy on write: a tensor may be written to, the file may not.
            x = np.load(array, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise Damaged(str(error)) from None
        if _probe(x) != checksum:
            raise Damaged("its checksum does not fit")
        return x, notes

    def add(self, key: str, written: Path, notes: dict[str, Any], array: str | None = None) -> None:
        """Take the finished file `written` into the cache; `array` names it in place of `key`."""
        file = self.array(array or key)
        checksum = _probe(np.load(written, mmap_mode="r", allow_pickle=False))
        os.replace(written, file)
        whole = {**notes, "array": file.name, "probe": checksum}
        write_atomic(self.notes(key), json.dumps(whole).encode())

    @contextmanager
    def lock(self, key: str, wait: bool = True) -> Iterator[None]:
        """Hold the lock of an entry; the system releases it if this process is killed."""
        with locked(self.folder / f".{key}.lock", wait):
            yield


def npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """What a `.npy` file of that type and shape begins with.

    Its length does not depend on the first size: NumPy leaves room for that number to grow.
    """
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype.str, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def _probe(x: np.ndarray) -> int:
    """A checksum of rows spread over the array: it catches blocks that never reached the disk."""
    rows = np.linspace(0, max(len(x) - 1, 0), min(len(x), PROBES)).astype(np.int64)
    value = 0
    for row in np.unique(rows):
        value = zlib.crc32(x[row].tobytes(), value)
    return value


# ------------------------------------------------------------------------------ content hashes

_FILES = WeakIdKeyDictionary()  # tensor -> the file that it shows


def content(x: Tensor) -> str:
    """A hash of a tensor's numbers and shape.

    Half a gigabyte takes about half a second on one core. For a tensor that shows a file, see
    `remember_file`, the hash is noted beside the file and holds as long as the file is not touched.
    """
    noted = noted_hash(x)
    if noted:
        return noted
    starts = range(0, x.nbytes, HASHED)
    # Hashing does not hold the interpreter's lock, so threads help.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        digests = b"".join(threads.map(lambda start: sha256(_bytes(x, start)).digest(), starts))
    whole = sha256(f"{x.dtype} {tuple(x.shape)}".encode() + digests).hexdigest()
    _note_hash(x, whole)
    return whole


def _bytes(x: Tensor, start: int) -> memoryview:
    """At most `HASHED` bytes of a tensor in row-major order, from a place on.

    Only the rows that hold them are copied, and none if the tensor is in that order already.
    """
    if x.ndim == 0:
        x = x[None]
    row = x[0].nbytes
    first, end = start // row, -(-(start + HASHED) // row)
    flat: np.ndarray = x[first:end].contiguous().flatten().view(torch.uint8).numpy()
    return flat[start - first * row :][:HASHED].data


def remember_file(x: Tensor, file: Path) -> Tensor:
    """Remember that `x` shows the array in `file`; returns `x`."""
    _FILES[x] = file
    return x


def noted_hash(x: Tensor) -> str | None:
    """The hash noted for the file that `x` shows, if neither has changed since."""
    file = _FILES.get(x)
    if file is None or x._version:  # written to: no longer what the file holds
        return None
    try:
        notes = json.loads(file.with_suffix(".sha256").read_bytes())
        if notes["file"] == _state(file):
            return str(notes["hash"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _note_hash(x: Tensor, digest: str) -> None:
    """Note the hash of the file that `x` shows beside it; do nothing for other tensors."""
    file = _FILES.get(x)
    if file is None or x._version:
        return
    notes = {"file": _state(file), "hash": digest}
    try:
        write_atomic(file.with_suffix(".sha256"), json.dumps(notes).encode())
    except OSError:
        return  # a cache that cannot be written only costs time


def _state(file: Path) -> list[int]:
    stat = os.stat(file)
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns]

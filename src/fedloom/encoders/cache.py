"""Features on disk: keyed by content, mapped into memory, filled by one process at a time and resumed after a kill."""

from __future__ import annotations

import fcntl
import io
import json
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..core.files import write_atomic
from ..data.catalogue import Progress, cache_folder
from ..data.mapped import known_hash, note_hash

CHUNK = 32  # images encoded at once; also what a kill can cost
PROBES = 64  # rows whose checksum is kept
HASHED = 1 << 25  # bytes hashed per task


@dataclass(frozen=True)
class Entry:
    """Cached features: of which data by which encoder, and how large."""

    key: str
    encoder: str
    data: str
    rows: int
    dim: int
    view: str
    bytes: int
    made: float  # seconds since 1970


def content(x: Tensor) -> str:
    """A hash of a tensor's numbers and shape.

    Half a gigabyte takes about half a second on one core. For images that are mapped from fedloom's cache of decoded
    ones, the hash is noted beside them and holds as long as that file is not touched.
    """
    if known := known_hash(x):
        return known
    flat = x.contiguous().flatten().view(torch.uint8).numpy()
    parts = [flat[i : i + HASHED] for i in range(0, len(flat), HASHED)]
    with ThreadPoolExecutor(
        min(4, os.cpu_count() or 1)
    ) as threads:  # hashing does not hold the interpreter's lock
        found = b"".join(threads.map(lambda part: sha256(part).digest(), parts))
    made = sha256(f"{x.dtype} {tuple(x.shape)}".encode() + found).hexdigest()
    note_hash(x, made)
    return made


class Cache:
    """Feature arrays in a folder (by default `features` in fedloom's cache folder)."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "features"

    def features(
        self,
        key: str,
        shape: tuple[int, int],
        compute: Callable[[int, int], Tensor],
        about: dict[str, Any],
        progress: Progress | None = None,
    ) -> Tensor:
        """The features kept under `key`, mapped into memory; `compute(start, stop)` gives rows that are not there.

        Of several processes that ask at once, one computes and the others wait for it.
        """
        found = self._open(key, shape)
        if found is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with self._lock(key):
                    found = self._open(key, shape)
                    if found is None:
                        self._fill(key, shape, compute, about, progress)
                        found = self._open(key, shape)
            except OSError as error:
                raise FedloomError(
                    f"cannot write features to {self.folder}: {error.strerror or error}."
                ) from error
        if found is None:
            raise FedloomError(
                f"the features {self.folder / key}.npy were removed while they were in use."
            )
        return found

    def entries(self) -> list[Entry]:
        """What is kept, oldest first."""
        found = []
        for notes in sorted(self.folder.glob("*.json")):
            try:
                told = json.loads(notes.read_bytes())
                size = notes.with_suffix(".npy").stat().st_size
                found.append(Entry(key=notes.stem, bytes=size, **{k: told[k] for k in _TOLD}))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # being made or removed just now, or spoilt: then it is made anew when asked for
        return sorted(found, key=lambda e: e.made)

    def clear(self, encoder: str | None = None) -> list[Entry]:
        """Remove the features of an encoder, or all, and unfinished ones; gives what was removed.

        Features that a process is computing right now stay.
        """
        gone = [e for e in self.entries() if encoder in (None, e.encoder)]
        for entry in gone:
            with self._lock(entry.key):
                for path in (self._notes(entry.key), self._array(entry.key)):
                    path.unlink(missing_ok=True)
        for part in self.folder.glob(".*.part") if encoder is None else ():
            try:
                with self._lock(part.name[1:].removesuffix(".part"), wait=False):
                    part.unlink(missing_ok=True)
            except BlockingIOError:
                continue
        return gone

    def _array(self, key: str) -> Path:
        return self.folder / f"{key}.npy"

    def _notes(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    @contextmanager
    def _lock(self, key: str, wait: bool = True) -> Iterator[None]:
        """Hold the lock of an entry; the system lets go of it if this process is killed."""
        path = self.folder / f".{key}.lock"
        while True:
            with open(path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                try:
                    current = path.stat().st_ino == os.fstat(file.fileno()).st_ino
                except FileNotFoundError:
                    current = False
                if not current:
                    continue  # whoever held it removed the file: that lock guards nothing any more
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return

    def _open(self, key: str, shape: tuple[int, int]) -> Tensor | None:
        try:
            told = json.loads(self._notes(key).read_bytes())
            # Copy on write: a tensor may be written to, the file may not.
            x = np.load(self._array(key), mmap_mode="c", allow_pickle=False)
            if x.shape != shape or x.dtype != np.float32:
                raise ValueError(f"{x.dtype} of shape {x.shape}")
            if _probe(x) != told["probe"]:
                raise ValueError("its checksum does not fit")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, EOFError) as why:
            warnings.warn(
                f"the features {self._array(key)} are damaged ({why}) and are made anew.",
                stacklevel=4,
            )
            return None
        return torch.from_numpy(x)

    def _fill(
        self,
        key: str,
        shape: tuple[int, int],
        compute: Callable[[int, int], Tensor],
        about: dict[str, Any],
        progress: Progress | None,
    ) -> None:
        rows, dim = shape
        part = self.folder / f".{key}.part"
        header = _header(shape)
        with open(part, "a+b") as file:
            file.seek(0)
            if file.read(len(header)) != header:
                file.truncate(0)
                file.write(header)
                file.flush()
            done = (os.fstat(file.fileno()).st_size - len(header)) // (4 * dim)
            done = (
                min(done, rows) // CHUNK * CHUNK
            )  # whole chunks only: the same batches, the same bits
            file.truncate(len(header) + done * 4 * dim)
            for first in range(done, rows, CHUNK):
                chunk = compute(first, min(first + CHUNK, rows)).to(torch.float32)
                if not torch.isfinite(chunk).all():
                    raise FedloomError(
                        f"encoder {about['encoder']} gave numbers that are not finite."
                    )
                file.write(chunk.contiguous().numpy().tobytes())
                file.flush()
                os.fsync(file.fileno())
                if progress:
                    progress(min(first + CHUNK, rows), rows)
        os.replace(part, self._array(key))
        probe = _probe(np.load(self._array(key), mmap_mode="r", allow_pickle=False))
        told = {**about, "rows": rows, "dim": dim, "made": time.time(), "probe": probe}
        write_atomic(self._notes(key), json.dumps(told).encode())


_TOLD = ("encoder", "data", "rows", "dim", "view", "made")


def _header(shape: tuple[int, int]) -> bytes:
    """What a `.npy` file of that many floats begins with."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def _probe(x: np.ndarray) -> int:
    """A checksum of rows spread over the array: enough to catch blocks that never reached the disk."""
    value = 0
    for row in np.unique(np.linspace(0, max(len(x) - 1, 0), min(len(x), PROBES)).astype(np.int64)):
        value = zlib.crc32(x[row].tobytes(), value)
    return value

"""Features on disk: keyed by content, filled by one process at a time and resumed after a kill."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..data.cache import ArrayCache, Damaged, cache_folder, npy_header
from ..data.readers.base import Progress

CHUNK = 32  # images encoded at once; also what a kill can cost
_NOTED = ("encoder", "data", "rows", "dim", "view", "made")


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


class Cache(ArrayCache):
    """Feature arrays in a folder, by default `features` in fedloom's cache folder."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder or cache_folder() / "features")

    def features(
        self,
        key: str,
        shape: tuple[int, int],
        compute: Callable[[int, int], Tensor],
        about: dict[str, Any],
        progress: Progress | None = None,
    ) -> Tensor:
        """The features kept under `key`, mapped into memory.

        `compute(start, stop)` gives rows that are not there yet. Of several processes that ask at
        once, one computes and the others wait for it.
        """
        features = self._stored(key, shape)
        if features is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with self.lock(key):
                    features = self._stored(key, shape)
                    if features is None:
                        self._fill(key, shape, compute, about, progress)
                        features = self._stored(key, shape)
            except OSError as error:
                raise FedloomError(
                    f"cannot write features to {self.folder}: {error.strerror or error}."
                ) from error
        if features is None:
            raise FedloomError(
                f"the features {self.array(key)} were removed while they were in use."
            )
        return features

    def entries(self) -> list[Entry]:
        """What is kept, oldest first."""
        entries = []
        for file in sorted(self.folder.glob("*.json")):
            try:
                notes = json.loads(file.read_bytes())
                size = self.array(file.stem).stat().st_size
                facts = {name: notes[name] for name in _NOTED}
                entries.append(Entry(key=file.stem, bytes=size, **facts))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # being made or removed just now, or damaged: it is made anew when needed
        return sorted(entries, key=lambda entry: entry.made)

    def clear(self, encoder: str | None = None) -> list[Entry]:
        """Remove the features of an encoder, or all and unfinished ones; returns what was removed.

        Features that a process is computing right now stay.
        """
        removed = [entry for entry in self.entries() if encoder in (None, entry.encoder)]
        for entry in removed:
            with self.lock(entry.key):
                self.notes(entry.key).unlink(missing_ok=True)
                self.array(entry.key).unlink(missing_ok=True)
        if encoder is None:
            self._clear_unfinished()
            self._clear_locks()
        return removed

    def _clear_unfinished(self) -> None:
        for part in self.folder.glob(".*.part"):
            try:
                with self.lock(part.name[1:].removesuffix(".part"), wait=False):
                    part.unlink(missing_ok=True)
            except BlockingIOError:
                continue

    def _clear_locks(self) -> None:
        """Remove the locks of entries that are gone."""
        for file in self.folder.glob(".*.lock"):
            key = file.name[1:].removesuffix(".lock")
            unfinished = file.with_suffix(".part")
            if not self.notes(key).exists() and not unfinished.exists():
                file.unlink(missing_ok=True)

    def _stored(self, key: str, shape: tuple[int, int]) -> Tensor | None:
        """The features kept under `key`, or None; damaged ones get a warning."""
        try:
            entry = self.open(key)
            if entry is None:
                return None
            x = entry[0]
            if x.shape != shape or x.dtype != np.float32:
                raise Damaged(f"{x.dtype} of shape {x.shape}")
        except Damaged as why:
            warnings.warn(
                f"the features {self.array(key)} are damaged ({why}) and are made anew.",
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
        """Compute the features, or those that an interrupted process has left to do."""
        rows, dim = shape
        part = self.folder / f".{key}.part"
        header = npy_header(np.dtype("<f4"), shape)
        with open(part, "a+b") as file:
            file.seek(0)
            if file.read(len(header)) != header:
                file.truncate(0)
                file.write(header)
                file.flush()
            done = (os.fstat(file.fileno()).st_size - len(header)) // (4 * dim)
            # Whole chunks only: the same batches give the same bits.
            done = min(done, rows) // CHUNK * CHUNK
            file.truncate(len(header) + done * 4 * dim)
            for start in range(done, rows, CHUNK):
                stop = min(start + CHUNK, rows)
                chunk = compute(start, stop).to(torch.float32)
                if not torch.isfinite(chunk).all():
                    raise FedloomError(
                        f"encoder {about['encoder']} gave numbers that are not finite."
                    )
                file.write(chunk.contiguous().numpy().tobytes())
                file.flush()
                os.fsync(file.fileno())
                if progress:
                    progress(stop, rows)
        self.add(key, part, {**about, "rows": rows, "dim": dim, "made": time.time()})

"""Writes metrics, timing and checkpoints during a run, and stops it when its patience is over."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from typing import Any

from ..core.errors import CheckpointError
from ..metrics.cost import peak_memory_mb
from .checkpoint import Checkpoint
from .engine import Engine
from .folder import Run

SLOW = 0.2  # seconds: a checkpoint that takes longer to write is not written in every round ...
ROOM = 512 << 20  # ... unless client states of this many bytes wait in memory


class Recorder:
    """The callback that every run has."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._clock = time.monotonic()
        self._saved_at = -math.inf  # when the last checkpoint was written
        self._saving_took = 0.0  # seconds that writing it took
        # The lines of metrics so far: how many are counted in, their length and their checksum.
        self._counted, self._length, self._checksum = 0, 0, hashlib.sha256()

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> bool:
        """Record a round; True if the run should stop here."""
        self._append("timing", self._timing(engine))
        stop = False
        if record is not None:
            self._append("metrics", record)
            stop = engine.schedule.exhausted(self.run.metrics)
        if stop or engine.round == engine.schedule.rounds:
            self._save(engine, last=True)
        elif self._save_is_due(engine):
            self._save(engine)
        return stop

    def _timing(self, engine: Engine) -> dict[str, Any]:
        now = time.monotonic()
        seconds = now - self._clock
        self._clock = now
        return {
            "round": engine.round,
            "seconds": round(seconds, 4),
            "peak_rss_mb": round(peak_memory_mb(engine.executor.processes), 1),
            **self._device(engine),
            "spent": {who: round(spent, 4) for who, spent in engine.spent.items()},
        }

    @staticmethod
    def _device(engine: Engine) -> dict[str, Any]:
        """Which devices computed the round, and the memory that it took of them, where known."""
        devices = engine.worker.devices
        about: dict[str, Any] = {"device": ",".join(map(str, devices))}
        peaks = []
        for device in devices:
            # What other processes take is only known as of now, not at its peak.
            peak = device.used_memory_mb()
            if not engine.executor.processes:
                peak = device.peak_memory_mb()
            if peak is not None:
                peaks.append(peak)
        if peaks:
            about["peak_device_mb"] = round(max(peaks), 1)
        return about

    def _save_is_due(self, engine: Engine) -> bool:
        """Whether a round that is not the last one gets a checkpoint.

        Where states are large, writing them in every round would take longer than the rounds, so no
        more than a tenth of the time goes into it. The round before the last is always saved, so
        that all runs of the same settings end with the same files. Remote sites rely on what the
        server has saved, so a federation saves every round.
        """
        every = engine.schedule.checkpoint_every
        if engine.round % every:
            return False
        waited = time.monotonic() - self._saved_at
        return (
            self._saving_took < SLOW
            or waited >= 9 * self._saving_took
            or engine.round + every >= engine.schedule.rounds
            or engine.store.waiting > ROOM
            or engine.executor.remote
        )

    def _save(self, engine: Engine, last: bool = False) -> None:
        start = time.monotonic()
        extra, versions = self._extra(engine), engine.versions
        engine.store.save(Checkpoint(engine.round, engine.server, extra, versions), last)
        self._saved_at = time.monotonic()
        self._saving_took = self._saved_at - start

    def _append(self, name: str, entry: dict[str, Any]) -> None:
        getattr(self.run, name).append(entry)
        if self.run.folder is None:
            return
        try:
            with open(self.run.folder / f"{name}.jsonl", "ab") as file:
                file.write(json.dumps(entry).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(
                f"could not write {name}.jsonl: {error.strerror or error}; "
                "the last checkpoint is intact."
            ) from error

    def _extra(self, engine: Engine) -> dict[str, Any]:
        for line in self.run.metrics[self._counted :]:
            written = json.dumps(line).encode() + b"\n"
            self._length += len(written)
            self._checksum.update(written)
        self._counted = len(self.run.metrics)
        return {
            **engine.saved(),
            "metrics": {"length": self._length, "sha256": self._checksum.hexdigest()},
            "config": self.run.config.what(),
        }

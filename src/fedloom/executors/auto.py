"""Begins in this process and tries worker processes once the work is worth their start.

It stays with what is quicker. Both give the same bits, so results do not depend on the choice, and
what was computed while trying is used. The choice is kept in the cache folder for the next run of
the same kind. `vmap`, whose last digits differ, is not tried.

On accelerators the pool has as many workers for each device as fit into its memory, judged by what
one took of it, and not more than the setting `workers` allows.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from statistics import median
from time import perf_counter

from ..client.worker import ClientWorker
from ..core.files import sha256, write_atomic
from ..data.catalogue import cache_folder
from . import EXECUTORS
from .base import Executor, Result, Results, Task
from .inplace import Inplace
from .pool import CannotStart, Pool

WORTH = 3.0  # seconds of work after which workers are tried: about what their start takes
SAFE = 0.8  # the share of a device's free memory that workers may take
TRIAL = 1.0  # seconds for which they are tried at least: a round's first tasks tell little


@EXECUTORS.register("auto")
class Auto:
    """`inplace` or `pool`, whichever takes less time per step here."""

    remote = False

    def __init__(self, worker: ClientWorker, workers: int) -> None:
        self._worker, self._workers = worker, workers
        self._here = Inplace(worker)
        self._pool: Pool | None = None
        self._seconds = {"inplace": 0.0, "pool": 0.0}  # spent waiting for results
        self._steps = {"inplace": 0, "pool": 0}  # taken meanwhile: clients differ in size
        self._tried = 0  # tasks that workers have done
        cores = _cores()
        self._note = cache_folder() / "auto" / f"{_kind_of_run(worker, workers, cores)}.json"
        self.choice = "inplace" if min(workers, cores) < 2 else self._noted()
        if self.choice == "pool":
            self._start()

    def run(self, tasks: Iterable[Task]) -> Results:
        """Execute the tasks, in this process or by workers."""
        waiting = iter(tasks)
        if self.choice is None:
            yield from self._timed(self._here, "inplace", waiting)
            first = next(waiting, None)
            if first is None:
                return
            self._workers = _that_fit(self._worker, self._workers)
            if self._pool is None:
                self._start()
            if self._pool is None:
                waiting = chain([first], waiting)
            else:
                yield from self._timed(self._pool, "pool", chain([first], waiting))
                self._settle()
        best: Executor = self._here
        if self.choice == "pool" and self._pool:
            best = self._pool
        yield from best.run(waiting)

    def _start(self) -> None:
        """Start the workers. If there can be none, the run stays in this process."""
        try:
            self._pool = Pool(self._worker, self._workers)
        except CannotStart as error:
            warnings.warn(f"{error.why}; the run stays in one process.", stacklevel=2)
            self.choice = "inplace"

    def _timed(self, executor: Executor, name: str, tasks: Iterator[Task]) -> Iterator[Result]:
        """One executor's results, and note their times; `inplace` ends when workers are due."""
        steps: list[int | None] = []

        def drawn() -> Iterator[Task]:
            while name == "pool" or self._seconds["inplace"] < WORTH or not self._steps["inplace"]:
                task = next(tasks, None)
                if task is None:
                    return
                steps.append(self._planned(task))
                yield task

        results, number = executor.run(drawn()), 0
        while True:
            clock = perf_counter()
            result = next(results, None)
            if result is None:
                return
            waited, taken = perf_counter() - clock, steps[number]
            if name == "pool":
                self._tried += 1
            # Workers' first answers include their start.
            if taken is not None and (name == "inplace" or self._tried > self._workers):
                self._seconds[name] += waited
                self._steps[name] += taken
            number += 1
            yield result

    def _planned(self, task: Task) -> int | None:
        """How many training steps the task has; None for a hello, which is no part of a round."""
        if task.kind == "hello":
            return None
        if task.kind != "client":
            return 0
        samples = len(self._worker.rows(task.clients[0]))
        return self._worker.training.planned(samples, task.work)

    def _settle(self) -> None:
        """Choose for good, if the trial was long enough."""
        if self._tried < 3 * self._workers or self._seconds["pool"] < TRIAL:
            return
        if not all(self._steps.values()):
            return
        here = self._seconds["inplace"] / self._steps["inplace"]
        there = self._seconds["pool"] / self._steps["pool"]
        self.choice = "pool" if there < here else "inplace"
        if self.choice == "inplace" and self._pool:
            self._pool.close()
            self._pool = None
        note = {"choice": self.choice, "workers": self._workers}
        write_atomic(self._note, json.dumps(note).encode(), durable=False)

    def _noted(self) -> str | None:
        """The choice that an earlier run of the same kind has made, if there is one.

        It had as many workers as the devices have room for.
        """
        try:
            note = json.loads(self._note.read_bytes())
            choice, workers = note["choice"], int(note["workers"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if choice not in ("inplace", "pool") or workers < 1:
            return None
        self._workers = min(self._workers, workers)
        return str(choice)

    @property
    def eager(self) -> bool:
        """Whether workers may go ahead: if they are there."""
        return self._pool is not None

    @property
    def processes(self) -> list[int]:
        """The ids of the workers, if there are any."""
        return self._pool.processes if self._pool else []

    def close(self) -> None:
        """End the workers."""
        if self._pool:
            self._pool.close()
        self._here.close()


def _that_fit(worker: ClientWorker, workers: int) -> int:
    """How many workers the devices have room for, at least one for each device."""
    peak, free = worker.device.peak_memory_mb(), worker.device.free_memory()
    if peak is None or free is None or not peak:
        return workers
    devices = len(worker.devices)
    # A device's own libraries take memory in every process, about as much again as tensors do.
    for_each = max(1, int(SAFE * free / 1e6 / (2 * peak)))
    return max(devices, min(workers, for_each * devices))


def _cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _kind_of_run(worker: ClientWorker, workers: int, cores: int) -> str:
    """A digest of what decides which executor is quicker."""
    shapes = [tuple(p.shape) for one in worker.crew for p in one.model.parameters()]
    sizes = worker.sizes()
    method = repr(worker.method)
    kind: tuple[object, ...] = (method, worker.training, shapes, len(sizes), median(sizes))
    kind += (workers, cores)
    if worker.device.accelerated:
        kind += (*map(str, worker.devices), worker.device.title)
    return sha256(repr(kind).encode())[:32]

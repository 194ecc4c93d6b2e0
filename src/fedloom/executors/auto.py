"""Begins in this process, tries worker processes once the work is worth their start, and stays with what is quicker.

Both give the same bits, so results do not depend on what is chosen, and what was computed while trying is used. The
choice is kept in the cache folder for the next run of the same kind. `vmap`, whose last digits differ, is not tried.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from statistics import median
from time import perf_counter

from ..client.worker import ClientWorker
from ..core.files import sha256, write_atomic
from ..data.catalogue import cache_folder
from . import EXECUTORS
from .base import Executor, Result, Results, Task
from .inplace import Inplace
from .pool import Pool

WORTH = 3.0  # seconds of work after which workers are tried: about what their start takes
TRIAL = 1.0  # seconds for which they are tried at the least: the first tasks of a round tell little


@EXECUTORS.register("auto")
class Auto:
    """`inplace` or `pool`, whichever takes less time per client here."""

    remote = False

    def __init__(self, worker: ClientWorker, workers: int) -> None:
        self._site, self._workers = worker, workers
        self._here, self._pool = Inplace(worker), None  # type: tuple[Inplace, Pool | None]
        self._seconds = {"inplace": 0.0, "pool": 0.0}  # of waiting for what tasks give
        self._steps = {"inplace": 0, "pool": 0}  # taken meanwhile: clients differ in size
        self._tried = 0  # tasks that workers have done
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        shapes = [tuple(p.shape) for p in worker.model.parameters()]
        sizes = [len(c.train) for c in worker.federation.clients]
        kind = repr(
            (
                repr(worker.method),
                worker.training,
                shapes,
                len(sizes),
                median(sizes),
                workers,
                cores,
            )
        )
        self._note = cache_folder() / "auto" / f"{sha256(kind.encode())[:32]}.json"
        self.choice = "inplace" if min(workers, cores) < 2 else self._noted()
        if self.choice == "pool":
            self._pool = Pool(worker, workers)

    def run(self, tasks: Iterable[Task]) -> Results:
        """Execute the tasks, in this process or by workers."""
        waiting = iter(tasks)
        if self.choice is None:
            yield from self._timed(self._here, "inplace", waiting)
            first = next(waiting, None)
            if first is None:
                return
            self._pool = self._pool or Pool(self._site, self._workers)
            yield from self._timed(self._pool, "pool", _chain(first, waiting))
            self._settle()
        best: Executor = self._pool if self.choice == "pool" and self._pool else self._here
        yield from best.run(waiting)

    def _timed(self, executor: Executor, name: str, tasks: Iterator[Task]) -> Iterator[Result]:
        """Results of one executor with their times noted; `inplace` ends when workers are worth a trial."""
        steps: list[int | None] = []

        def drawn() -> Iterator[Task]:
            while name == "pool" or self._seconds["inplace"] < WORTH or not self._steps["inplace"]:
                if (task := next(tasks, None)) is None:
                    return
                size = (
                    len(self._site.federation.clients[task.clients[0]].train)
                    if task.kind == "client"
                    else 0
                )
                # What is said once, before the first round, is no part of one.
                steps.append(
                    None if task.kind == "hello" else self._site.training.planned(size, task.work)
                )
                yield task

        results, number = executor.run(drawn()), 0
        while True:
            clock = perf_counter()
            found = next(results, None)
            if found is None:
                return
            waited, taken = perf_counter() - clock, steps[number]
            self._tried += name == "pool"
            # Workers' first answers include their start.
            if taken is not None and (name == "inplace" or self._tried > self._workers):
                self._seconds[name] += waited
                self._steps[name] += taken
            number += 1
            yield found

    def _settle(self) -> None:
        if (
            self._tried < 3 * self._workers
            or self._seconds["pool"] < TRIAL
            or not all(self._steps.values())
        ):
            return
        here, there = (self._seconds[name] / self._steps[name] for name in ("inplace", "pool"))
        self.choice = "pool" if there < here else "inplace"
        if self.choice == "inplace" and self._pool:
            self._pool.close()
            self._pool = None
        write_atomic(self._note, json.dumps({"choice": self.choice}).encode(), durable=False)

    def _noted(self) -> str | None:
        try:
            choice = json.loads(self._note.read_bytes())["choice"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return choice if choice in ("inplace", "pool") else None

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


def _chain(first: Task, rest: Iterator[Task]) -> Iterator[Task]:
    yield first
    yield from rest

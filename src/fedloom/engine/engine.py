"""The round loop: sample, download, execute, upload, aggregate, evaluate, checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..client.context import weighted
from ..client.worker import ClientWorker
from ..core.errors import FedloomError
from ..core.payload import Payload
from ..executors.base import Executor, Result, Results, Task
from .checkpoint import Checkpoint, Store
from .evaluate import SCORED, Evaluation, TrainedScores
from .schedule import Schedule


class Callback(Protocol):
    """Something that watches a run. `after_round` may return True to stop it.

    One that also has `after_client(engine, done, total)` is told of every client that has finished in a round.
    """

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> bool | None:
        """Called when a round is complete; `record` is its line of metrics, None if it was not evaluated."""
        ...


def first(worker: ClientWorker) -> Payload:
    """The server before the first round."""
    worker.load()
    known = torch.zeros(worker.clients, dtype=torch.bool)
    return worker.method.init(worker).replace(round=0, seed=worker.seed, known=known)


@dataclass
class Engine:
    """One run of one method on one federation."""

    worker: ClientWorker
    executor: Executor
    schedule: Schedule
    callbacks: Sequence[Callback] = ()
    store: Store = field(default_factory=Store)
    round: int = 0
    server: Payload = field(default_factory=Payload)
    _waited: float = 0.0  # seconds of this round that the server spent waiting for uploads
    bytes: dict[str, int] = field(
        default_factory=lambda: {"up": 0, "down": 0}
    )  # since the first round
    # Seconds of this round by who worked; with worker processes the server waits while clients work.
    spent: dict[str, float] = field(default_factory=dict)

    def run(self, start: Checkpoint | None = None) -> None:
        """Go on from a checkpoint (or from nothing) until the last round, or until a callback stops the run."""
        worker, method = self.worker, self.worker.method
        self.server = first(worker) if start is None or start.server is None else start.server
        if start and start.round:
            self.round, self.bytes = start.round, dict(start.extra["bytes"])
        begun: _Turn | None = None  # the next round, if workers have been given its first tasks
        while self.round < self.schedule.rounds:
            turn = begun or self._turn()
            self.round, self.server = turn.round, turn.server
            clock = time.monotonic()
            if not begun:
                self._welcome(turn)
            arrived = _Arrivals(TrainedScores(worker, self.schedule.metric))
            self.spent = {"clients": time.monotonic() - clock}
            clock = time.monotonic()
            self.server = method.aggregate(self.server, self._timed(self._work(turn, arrived)))
            self.spent["server"] = time.monotonic() - clock - self._waited
            self.spent["clients"] += self._waited
            arrived.finish(method.name)
            self.bytes = {way: self.bytes[way] + number for way, number in turn.bytes.items()}
            clock = time.monotonic()
            begun = self._ahead() if turn.due else None
            record = self._evaluate(turn, arrived, begun) if turn.due else None
            self.spent["evaluation"] = time.monotonic() - clock
            if any([callback.after_round(self, record) for callback in self.callbacks]):
                if begun and begun.results:
                    begun.results.close()  # workers are done with it when this returns
                return

    def _turn(self) -> _Turn:
        """The next round, as the server is now."""
        number = self.round + 1
        cohort, lost, work = self.schedule.cohort(number, self.worker)
        return _Turn(
            number,
            self.server.replace(round=number),
            cohort,
            cohort,
            lost,
            work,
            self.schedule.evaluates(number),
        )

    def _ahead(self) -> _Turn | None:
        """The next round, if it may begin while this one is evaluated: what it begins with is known, evaluation changes
        nothing, and what comes of it is looked at only when this round is recorded and saved."""
        if not self.executor.eager or self.round == self.schedule.rounds:
            return None
        turn = self._turn()
        return (
            turn if self.server.tensor("known")[turn.cohort].all() else None
        )  # a newcomer says hello first

    def _timed(self, uploads: Iterator[tuple[int, Payload]]) -> Iterator[tuple[int, Payload]]:
        """The same, noting how long the server waits for them: the rest of `aggregate` is the server's own work."""
        self._waited = 0.0
        while True:
            clock = time.monotonic()
            found = next(uploads, None)
            self._waited += time.monotonic() - clock
            if found is None:
                return
            yield found

    def _welcome(self, turn: _Turn) -> None:
        """Newcomers introduce themselves. A client elsewhere that is silent takes no part."""
        known = self.server.tensor("known").clone()
        new = [k for k in turn.cohort if not known[k]]
        results = self.executor.run(Task("hello", turn.round, (k,)) for k in new) if new else ()
        hellos = {r.clients[0]: self._received(turn, r) for r in results}
        if hellos:
            known[list(hellos)] = True
            self.server = turn.server = self.worker.method.join(self.server, hellos).replace(
                known=known
            )
        turn.present = [k for k in turn.cohort if known[k]]

    def _tasks(self, turn: _Turn) -> Iterator[Task]:
        """Downloads for clients, and what they shall do."""
        for k in turn.present:
            down = self.worker.method.download(turn.server, k)
            turn.bytes["down"] += down.nbytes
            turn.floats["down"].append(down.floats)
            if (
                k not in turn.lost
            ):  # a client that is lost took the download and is not heard of again
                splits = SCORED if turn.due else ()
                yield Task(
                    "client",
                    turn.round,
                    (k,),
                    down,
                    self.store.get(k),
                    splits,
                    turn.work.get(k, 1.0),
                    self.schedule.metric,
                )

    def _work(self, turn: _Turn, arrived: _Arrivals) -> Iterator[tuple[int, Payload]]:
        """Have clients work, hand on their uploads one by one in a fixed order."""
        for result in turn.results or self.executor.run(self._tasks(turn)):
            k = result.clients[0]
            upload = self._received(turn, result)
            turn.floats["up"].append(upload.floats)
            self.store.put(k, result.state)
            arrived.add(k, result, len(self.worker.federation.clients[k].train))
            for callback in self.callbacks:
                if hasattr(callback, "after_client"):
                    callback.after_client(
                        self, int(arrived.scores.trained.sum()), len(turn.present) - len(turn.lost)
                    )
            yield k, upload
        arrived.complete = True

    def _received(self, turn: _Turn, result: Result) -> Payload:
        """An upload, counted, and refused if the server could not use it."""
        upload, k = result.upload, result.clients[0]
        turn.bytes["up"] += upload.nbytes
        for name, value in upload.items():
            if not isinstance(value, Tensor):
                if isinstance(value, float) and not np.isfinite(value):
                    raise FedloomError(f"round {self.round}: client {k} uploaded {name} = {value}.")
                continue
            # A sum is quicker to get, and finite only if all that went into it is.
            odd = value.is_floating_point() and not math.isfinite(value.sum())
            if odd and not torch.isfinite(value).all():
                raise FedloomError(
                    f"round {self.round}: client {k} uploaded a NaN or infinity in {name!r}; "
                    "a smaller lr or clip=1 often helps, --executor debug shows where it arose."
                )
            expected = self.server.get(name)
            if isinstance(expected, Tensor) and (expected.shape, expected.dtype) != (
                value.shape,
                value.dtype,
            ):
                raise FedloomError(
                    f"round {self.round}: client {k} uploaded {name!r} as {tuple(value.shape)} ({value.dtype}), "
                    f"the server has {tuple(expected.shape)} ({expected.dtype})."
                )
        return upload

    def _evaluate(self, turn: _Turn, arrived: _Arrivals, begun: _Turn | None) -> dict[str, Any]:
        """One line of metrics."""
        evaluation = Evaluation(
            self.worker, self.executor, self.store, self.server, self.round, self.schedule.metric
        )
        figures = evaluation.run(arrived.scores, self._tasks(begun) if begun else None)
        if begun:
            begun.results = evaluation.ahead
        trained = set(np.flatnonzero(arrived.scores.trained).tolist())
        return {
            "round": self.round,
            "participants": len(turn.cohort),
            "lost": sorted(set(turn.cohort) - trained),
            "loss": arrived.losses(),
            "bytes": dict(turn.bytes),
            "bytes_total": dict(self.bytes),
            "floats": {
                way: float(np.mean(counts)) if counts else 0.0
                for way, counts in turn.floats.items()
            },
            **figures,
        }


@dataclass
class _Turn:
    """One round: who takes part, from what, and what has moved."""

    round: int
    server: Payload  # as it is when the round begins
    cohort: list[int]
    present: list[int]  # those of the cohort that can be asked
    lost: set[int]
    work: Mapping[int, float]
    due: bool  # whether the round is evaluated
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    # One entry per message, hellos apart.
    floats: dict[str, list[int]] = field(default_factory=lambda: {"up": [], "down": []})
    results: Results | None = None  # those to come, if the round was begun ahead of its time


@dataclass
class _Arrivals:
    """What clients reported beside their uploads."""

    scores: TrainedScores
    complete: bool = False
    _losses: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def add(self, k: int, result: Result, size: int) -> None:
        self.scores.add(k, result)
        self._losses.append((size, result.losses))

    def losses(self) -> dict[str, float]:
        """The mean of each loss part over the clients that trained, weighted by size."""
        return weighted(self._losses)

    def finish(self, name: str) -> None:
        if not self.complete:
            raise FedloomError(
                f"{name}.aggregate must look at every upload; it stopped before the last one."
            )

"""The round loop: sample, download, execute, upload, aggregate, evaluate, checkpoint.

How it streams. An executor takes tasks one by one, as it has room, and hands back results in the
order of the tasks. `Uploads` draws on these results when `aggregate` asks for the next upload, so
downloads are made, clients trained and uploads summed at the same time, and memory does not grow
with the cohort. Evaluation is such a stream too. An executor whose workers start on tasks before
their results are asked for gets the tasks of the next round behind those of the evaluation: a
worker with nothing left to score trains already, and the loop takes up these results once the
round is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch

from ..client.standard import joined, told
from ..client.worker import ClientWorker
from ..core.claims import flaw, not_finite
from ..core.errors import FedloomError
from ..core.payload import Payload
from ..executors.base import Executor, Results, Task
from .checkpoint import Checkpoint, Store
from .evaluate import SCORED, Evaluation, TrainedScores
from .schedule import Schedule
from .trial import Arrived, Strangers, learned
from .turn import HINT, Turn, Uploads, about


class Callback(Protocol):
    """Something that watches a run.

    A callback may have more hooks than the one below. `before_run(run, images)` is called when the
    folder is open and nothing is computed yet; `images` is the federation as it was dealt out, or
    None if the samples are elsewhere. `after_client(engine, done, total)` is called for every
    client that finishes in a round, and `after_run(run)` when the summary is written.
    `encoding(done, total)` hears how far a frozen encoder has got.
    """

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> bool | None:
        """Called when a round is complete; True stops the run.

        `record` is the round's line of metrics, or None if it was not evaluated.
        """
        ...


def first(worker: ClientWorker) -> Payload:
    """The server before the first round."""
    worker.load()
    known = torch.zeros(worker.clients, dtype=torch.bool)
    server = worker.leaving(worker.method.init(worker))
    return server.replace(round=0, seed=worker.seed, known=known)


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
    # Since the first round.
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    # Seconds of this round by who worked; while worker processes train, the server waits.
    spent: dict[str, float] = field(default_factory=dict)

    def run(self, start: Checkpoint | None = None) -> None:
        """Run from a checkpoint, or from nothing, to the end or until a callback stops the run."""
        self._begin(start)
        ahead: Turn | None = None  # the next round, if workers have its first tasks already
        while self.round < self.schedule.rounds:
            turn = ahead or self._next_turn()
            self.round = turn.round
            self.server = turn.server
            clock = time.monotonic()
            if ahead is None:
                self._welcome(turn)
            welcomed = time.monotonic()
            uploads = self._uploads(turn)
            self.server = self._aggregate(turn, uploads)
            aggregated = time.monotonic()
            self.bytes = {way: self.bytes[way] + number for way, number in turn.bytes.items()}
            ahead = record = None
            if turn.due:
                ahead = self._ahead()
                record = self._evaluate(turn, uploads, ahead)
            self.spent = {
                "clients": welcomed - clock + uploads.waited,
                "server": aggregated - welcomed - uploads.waited,
                "evaluation": time.monotonic() - aggregated,
            }
            if any([callback.after_round(self, record) for callback in self.callbacks]):
                if ahead and ahead.results:
                    ahead.results.close()  # workers are done with it when this returns
                return

    def _begin(self, start: Checkpoint | None) -> None:
        if start is None or start.server is None:
            self.server = first(self.worker)
        else:
            self.server = start.server
        if start and start.round:
            self.round = start.round
            self.bytes = dict(start.extra["bytes"])

    def _next_turn(self) -> Turn:
        """The next round, from the server as it is now."""
        number = self.round + 1
        cohort, lost, work = self.schedule.cohort(number, self.worker)
        due = self.schedule.evaluates(number)
        server = self.server.replace(round=number)
        return Turn(number, server, cohort, cohort, lost, work, due, self._flaw)

    def _flaw(self, k: int, upload: Payload) -> str | None:
        """What is wrong with a client's upload, in words."""
        return flaw(type(self.worker.method), upload, about(self.worker, k))

    def _welcome(self, turn: Turn) -> None:
        """Newcomers introduce themselves. A remote client that does not answer takes no part."""
        known = self.server.tensor("known").clone()
        new = [k for k in turn.cohort if not known[k]]
        if new:
            results = self.executor.run(Task("hello", turn.round, (k,)) for k in new)
            server, joined = self._join(turn, results)
            known[joined] = True
            self.server = turn.server = server.replace(known=known)
        turn.present = [k for k in turn.cohort if known[k]]

    def _join(self, turn: Turn, results: Results) -> tuple[Payload, list[int]]:
        """The server with the newcomers that said hello, and who they are."""
        server = self.server

        def join(pairs: Iterable[tuple[int, Payload]]) -> Payload:
            hellos = dict(pairs)
            return joined(self.worker.method, server, hellos) if hellos else server

        if isinstance(self.executor, Strangers):
            arrived = Arrived(turn, results, self.store.folder)
            server, believed = learned(self.executor, turn, server, "join", join, arrived)
            return server, [result.clients[0] for result in believed]
        hellos = {result.clients[0]: turn.receive(result) for result in results}
        return join(hellos.items()), list(hellos)

    def _aggregate(self, turn: Turn, uploads: Uploads) -> Payload:
        """The server after the uploads of a round. One that is not finite is never kept."""
        method, before = self.worker.method, self.server
        if not isinstance(self.executor, Strangers):
            server = method.aggregate(before, uploads)
            uploads.refuse_unread(method.name)
            wrong = not_finite(before, server)
            if wrong:
                raise FedloomError(f"round {turn.round}: the server would have {wrong}{HINT}")
            return server
        arrived = Arrived(turn, uploads.results(), self.store.folder)
        server, believed = learned(
            self.executor,
            turn,
            before,
            "aggregate",
            lambda pairs: method.aggregate(before, pairs),
            arrived,
        )
        for result in believed:
            turn.floats["up"].append(arrived.floats[result.clients[0]])
            uploads.accept(result)
        return server

    def _uploads(self, turn: Turn) -> Uploads:
        """Have the participants train. The executor starts when the first upload is asked for."""
        total = len(turn.present) - len(turn.lost)

        def tell(done: int) -> None:
            for callback in self.callbacks:
                if hasattr(callback, "after_client"):
                    callback.after_client(self, done, total)

        results = turn.results or self.executor.run(self._tasks(turn))
        scores = TrainedScores(self.worker)
        return Uploads(turn, results, self.store, scores, lambda k: len(self.worker.rows(k)), tell)

    def _tasks(self, turn: Turn) -> Iterator[Task]:
        """The tasks of a round: a download for every participant, and what to do with it."""
        for k in turn.present:
            splits = SCORED if turn.due and self._scores(k) else ()
            state = self.store.get(k)
            down = told(self.worker.method.download(turn.server, k), turn.server, state)
            turn.bytes["down"] += down.nbytes
            turn.floats["down"].append(down.floats)
            if k in turn.lost:
                continue  # it took the download and is not heard of again
            work = turn.work.get(k, 1.0)
            metric = self.schedule.metric
            yield Task("client", turn.round, (k,), down, state, splits, work, metric)

    @cached_property
    def _scored(self) -> np.ndarray | None:
        """The clients that evaluations score; None for all of them."""
        return self.schedule.scored(self.worker)

    def _scores(self, k: int) -> bool:
        """Whether evaluations score client `k`."""
        return self._scored is None or k in self._scored

    def _ahead(self) -> Turn | None:
        """The next round, if it may begin while this one is evaluated.

        It may because it starts from a server that is complete, evaluation changes nothing, and its
        results are not looked at before this round is recorded and saved. Newcomers would have to
        say hello first, so a round with any waits.
        """
        if not self.executor.eager or self.round == self.schedule.rounds:
            return None
        turn = self._next_turn()
        if not self.server.tensor("known")[turn.cohort].all():
            return None
        return turn

    def _evaluate(self, turn: Turn, uploads: Uploads, ahead: Turn | None) -> dict[str, Any]:
        """One line of metrics."""
        metric, who = self.schedule.metric, self._scored
        evaluation = Evaluation(
            self.worker, self.executor, self.store, self.server, self.round, metric, who
        )
        figures = evaluation.run(uploads.scores, self._tasks(ahead) if ahead else None)
        if ahead:
            ahead.results = evaluation.ahead
        trained = set(np.flatnonzero(uploads.scores.trained).tolist())
        return {
            "round": self.round,
            "participants": len(turn.cohort),
            "lost": sorted(set(turn.cohort) - trained),
            "loss": uploads.losses(),
            "bytes": dict(turn.bytes),
            "bytes_total": dict(self.bytes),
            "floats": turn.mean_floats(),
            **figures,
        }

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
from torch import Tensor

from ..client.standard import joined, told
from ..client.worker import ClientWorker
from ..core.claims import flaw, not_finite
from ..core.errors import FedloomError
from ..core.payload import Payload
from ..executors.base import Executor, Results, Task
from .checkpoint import Checkpoint, Store
from .edges import Edges
from .evaluate import SCORED, Evaluation, TrainedScores
from .schedule import Schedule, able, cohort_rng, worker_sizes
from .selection import Candidates
from .timekeeper import Timekeeper, Trip
from .trial import Arrived, Strangers, learned
from .turn import HINT, Arriving, Turn, Uploads, about


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
    time: Timekeeper | None = None  # simulated, if the run has a clock
    round: int = 0
    server: Payload = field(default_factory=Payload)
    versions: dict[int, Payload] = field(default_factory=dict)  # earlier servers still in use
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
                self._wait_for(turn)
            welcomed = time.monotonic()
            uploads = self._uploads(turn)
            self.server = self._note(turn, uploads, self._aggregate(turn, uploads))
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
        if self.executor.remote and (self.time or self.schedule.edges):
            raise FedloomError(
                "a federation of real sites has its own time and its own servers: [clock] and "
                "edges are for simulations."
            )
        if start and start.round:
            self.round = start.round
            self.bytes = dict(start.extra["bytes"])
            if self.time:
                self.time.restore(start.extra["clock"])

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps of the engine, as plain values."""
        clock = {"clock": self.time.saved()} if self.time else {}
        return {"bytes": self.bytes, **clock}

    def _next_turn(self) -> Turn:
        """The next round, from the server as it is now."""
        number, extra, begins = self.round + 1, 0.0, 0.0
        if self.time:
            begins, extra = self.time.opens(able(self.worker)), self.time.clock.extra
        who = self._candidates(number, begins)
        cohort, lost, work = self.schedule.cohort(number, self.worker, who, extra)
        due = self.schedule.evaluates(number)
        server = self.server.replace(round=number)
        turn = Turn(number, server, cohort, cohort, lost, work, due, self._flaw)
        turn.begins = begins
        wanted = self.schedule.wanted(len(able(self.worker)), cohort_rng(self.worker.seed, number))
        turn.counted = min(wanted, len(cohort))
        return turn

    def _candidates(self, round: int, when: float) -> Candidates:
        """Who can be asked for a round at a time, and what the server knows of them."""
        known = self.schedule.candidates(round, self.worker)
        if self.time is None and "last_rounds" not in self.server:
            return known
        who, losses, heard, seconds = known.who, known.losses, known.heard, None
        if self.time:
            who = self.time.awake(who, when)
        sizes = worker_sizes(self.worker)[who]
        if "last_rounds" in self.server:
            losses = self.server.tensor("last_losses").numpy()[who]
            heard = self.server.tensor("last_rounds").numpy()[who]
        if self.time and self.schedule.select != "uniform":
            seconds = self.time.expected(who, sizes)
        return Candidates(round, who, sizes, losses[: len(who)], heard[: len(who)], seconds)

    def _wait_for(self, turn: Turn) -> None:
        """By the clock: who of a round is too late to be counted, and when the round ends."""
        if self.time is None:
            return
        trips = [self._trip(turn, k, turn.begins) for k in turn.present]
        late, turn.ends = self.time.round(trips, turn.begins, turn.counted)
        turn.lost = turn.lost | late

    def _trip(self, turn: Turn, k: int, start: float) -> Trip:
        """What becomes of a participant that is asked at this time."""
        assert self.time is not None
        down = self._download(turn.server, k).nbytes
        return self.time.trip(k, start, down, turn.work.get(k, 1.0), k in turn.lost)

    def _note(self, turn: Turn, uploads: Uploads, server: Payload) -> Payload:
        """The server that has noted what it chooses clients by, and what time it is."""
        if self.time:
            self.time.passed(turn.ends, len(turn.floats["up"]), turn.sent)
        if self.schedule.select in ("uniform", "size"):
            return server
        losses, heard = self._heard(server)
        for k, loss in uploads.reported():
            losses[k], heard[k] = loss, turn.round
        return server.replace(last_losses=losses, last_rounds=heard)

    def _heard(self, server: Payload) -> tuple[Tensor, Tensor]:
        """Each client's last loss, and the round of it: -1 and 0 for who has reported none."""
        if "last_rounds" in server:
            return server.tensor("last_losses").clone(), server.tensor("last_rounds").clone()
        clients = self.worker.clients
        nothing = torch.full((clients,), -1.0, dtype=torch.float64)
        return nothing, torch.zeros(clients, dtype=torch.int64)

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
            server = method.aggregate(before, self._passed_on(turn, uploads))
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

    def _passed_on(self, turn: Turn, uploads: Arriving) -> Arriving:
        """The uploads as they reach the root of the tree of servers, if there is one."""
        if self.schedule.edges is None:
            return uploads
        turn.edges = Edges(self.worker.method, turn.server, self.schedule.edges)
        return turn.edges.passed_on(uploads)

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
            server, round = self._origin(turn, k)
            down = self._download(server, k)
            turn.bytes["down"] += down.nbytes
            turn.floats["down"].append(down.floats)
            if k in turn.lost:
                continue  # it took the download and is not heard of again
            work = turn.work.get(k, 1.0)
            metric = self.schedule.metric
            yield Task("client", round, (k,), down, self.store.get(k), splits, work, metric)

    def _origin(self, turn: Turn, k: int) -> tuple[Payload, int]:
        """The server that a participant starts from, and the round that its keys are of."""
        return turn.server, turn.round

    def _download(self, server: Payload, k: int) -> Payload:
        """What the server sends to client `k`."""
        return told(self.worker.method.download(server, k), server, self.store.get(k))

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
        self._wait_for(turn)
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
            **self._extras(turn),
            "loss": uploads.losses(),
            "bytes": dict(turn.bytes),
            "bytes_total": dict(self.bytes),
            "floats": turn.mean_floats(),
            **figures,
        }

    def _extras(self, turn: Turn) -> dict[str, Any]:
        """What a line of metrics says only where there is a clock or a tree of servers."""
        about: dict[str, Any] = {}
        if self.time:
            about["simulated_seconds"] = turn.ends
        if turn.edges:
            about["bytes_root"] = turn.edges.nbytes
        return about

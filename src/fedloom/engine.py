"""The round loop: sample, download, execute, upload, aggregate, evaluate, checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .errors import FedloomError
from .executors import Executor, Result, Task
from .local import Site, weighted
from .metrics.accuracy import accuracies, summarise
from .metrics.clustering import clustering_accuracy
from .metrics.segmentation import overlap
from .payload import Payload
from .schedule import Schedule
from .state import Checkpoint, Store

SCORED = ("validation", "test")
COMMON_CHUNK = 64  # clients whose samples one task scores with the common model


class Callback(Protocol):
    """Something that watches a run. `after_round` may return True to stop it.

    One that also has `after_client(engine, done, total)` is told of every client that has finished in a round.
    """

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> bool | None:
        """Called when a round is complete; `record` is its line of metrics, None if it was not evaluated."""
        ...


def first(site: Site) -> Payload:
    """The server before the first round."""
    site.load()
    known = torch.zeros(site.clients, dtype=torch.bool)
    return site.method.init(site).replace(round=0, seed=site.seed, known=known)


@dataclass
class Engine:
    """One run of one method on one federation."""

    site: Site
    executor: Executor
    schedule: Schedule
    callbacks: Sequence[Callback] = ()
    store: Store = field(default_factory=Store)
    round: int = 0
    server: Payload = field(default_factory=Payload)
    _waited: float = 0.0  # seconds of this round that the server spent waiting for uploads
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})  # since the first round
    # Seconds of this round by who worked; with worker processes the server waits while clients work.
    spent: dict[str, float] = field(default_factory=dict)
    floats: dict[str, list[int]] = field(default_factory=dict)  # in this round, one entry per message, hellos apart

    def run(self, start: Checkpoint | None = None) -> None:
        """Go on from a checkpoint (or from nothing) until the last round, or until a callback stops the run."""
        site, method = self.site, self.site.method
        self.server = first(site) if start is None or start.server is None else start.server
        if start and start.round:
            self.round, self.bytes = start.round, dict(start.extra["bytes"])
        while self.round < self.schedule.rounds:
            self.round += 1
            self.server = self.server.replace(round=self.round)
            cohort, lost, work = self.schedule.cohort(self.round, site)
            moved, clock = dict(self.bytes), time.monotonic()
            present = self._welcome(cohort)
            self.floats = {"up": [], "down": []}
            due = self.schedule.evaluates(self.round)
            arrived = _Arrivals(self._table())
            self.spent = {"clients": time.monotonic() - clock}
            clock = time.monotonic()
            self.server = method.aggregate(self.server, self._timed(self._work(present, lost, work, due, arrived)))
            self.spent["server"] = time.monotonic() - clock - self._waited
            self.spent["clients"] += self._waited
            arrived.finish(method.name)
            lost = set(cohort) - set(np.flatnonzero(arrived.trained).tolist())
            clock = time.monotonic()
            record = self._evaluate(cohort, lost, arrived, moved) if due else None
            self.spent["evaluation"] = time.monotonic() - clock
            if any([callback.after_round(self, record) for callback in self.callbacks]):
                return

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

    def _welcome(self, cohort: list[int]) -> list[int]:
        """Newcomers introduce themselves. Returns who of the cohort is known then: a client elsewhere may be silent."""
        known = self.server.tensor("known").clone()
        new = [k for k in cohort if not known[k]]
        results = self.executor.run(Task("hello", self.round, (k,)) for k in new) if new else ()
        hellos = {r.clients[0]: self._received(r) for r in results}
        if hellos:
            known[list(hellos)] = True
            self.server = self.site.method.join(self.server, hellos).replace(known=known)
        return [k for k in cohort if known[k]]

    def _work(
        self, cohort: list[int], lost: set[int], work: Mapping[int, float], due: bool, arrived: _Arrivals
    ) -> Iterator[tuple[int, Payload]]:
        """Send downloads, have clients work, hand on their uploads one by one in a fixed order."""

        def tasks() -> Iterator[Task]:
            for k in cohort:
                down = self._sent(self.site.method.download(self.server, k))
                if k not in lost:  # a client that is lost took the download and is not heard of again
                    splits = SCORED if due else ()
                    yield Task("client", self.round, (k,), down, self.store.get(k), splits, work.get(k, 1.0))

        for result in self.executor.run(tasks()):
            k = result.clients[0]
            upload = self._received(result)
            self.floats["up"].append(upload.floats)
            self.store.put(k, result.state)
            arrived.add(k, result, len(self.site.federation.clients[k].train))
            for callback in self.callbacks:
                if hasattr(callback, "after_client"):
                    callback.after_client(self, int(arrived.trained.sum()), len(cohort) - len(lost))
            yield k, upload
        arrived.complete = True

    def _sent(self, down: Payload) -> Payload:
        self.bytes["down"] += down.nbytes
        self.floats["down"].append(down.floats)
        return down

    def _received(self, result: Result) -> Payload:
        """An upload, counted, and refused if the server could not use it."""
        upload, k = result.upload, result.clients[0]
        self.bytes["up"] += upload.nbytes
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
            if isinstance(expected, Tensor) and (expected.shape, expected.dtype) != (value.shape, value.dtype):
                raise FedloomError(
                    f"round {self.round}: client {k} uploaded {name!r} as {tuple(value.shape)} ({value.dtype}), "
                    f"the server has {tuple(expected.shape)} ({expected.dtype})."
                )
        return upload

    # -- evaluation ---------------------------------------------------------------------------------------------
    def _evaluate(self, cohort: list[int], lost: set[int], arrived: _Arrivals, moved: dict[str, int]) -> dict[str, Any]:
        """One line of metrics. Nothing that a client or the server remembers is changed."""
        site, method = self.site, self.site.method
        scores: dict[str, dict[str, np.ndarray]] = {}
        if (common := self._common(arrived)) is not None:
            scores["common"] = common
        scores["before"] = self._before(arrived) if method.personalised or common is None else common
        # A client that did not train this round has, after training, what it has before it.
        scores["after"] = {
            s: np.where(arrived.trained[:, None], arrived.scores[s], scores["before"][s]) for s in SCORED
        }
        domains = [c.domain for c in site.federation.clients]
        record: dict[str, Any] = {
            "round": self.round,
            "participants": len(cohort),
            "lost": sorted(lost),
            "loss": arrived.losses(),
            "bytes": {way: self.bytes[way] - moved[way] for way in ("up", "down")},
            "bytes_total": dict(self.bytes),
            "floats": {way: float(np.mean(counts)) if counts else 0.0 for way, counts in self.floats.items()},
        }
        if (groups := method.groups(self.server)) is not None:
            record["clustering"] = clustering_accuracy(groups, domains)
        figures = {stage: summarise(s["test"][:, :2], domains) for stage, s in scores.items()}
        held = {stage: summarise(s["validation"][:, :2], domains).get("accuracy_mean") for stage, s in scores.items()}
        if site.federation.data.kind == "segmentation":
            for stage, s in scores.items():
                figures[stage] |= overlap(s["test"][:, 2:].reshape(-1, site.classes, site.classes))
        record["personal"] = figures[method.stage]
        record |= {stage: figures.get(stage) for stage in ("before", "after", "common")}
        record["validation"] = {"personal": held[method.stage], "common": held.get("common")}
        record["clients"] = {stage: accuracies(s["test"][:, :2]) for stage, s in scores.items()}
        # A method's own figures may look at test samples, which a server of sites elsewhere does not have.
        if not self.executor.remote and (own := method.figures(self.server, site)):
            record["figures"] = {name: float(value) for name, value in own.items()}
        return record

    def _before(self, arrived: _Arrivals) -> dict[str, np.ndarray]:
        """Every client's personal model with what the server would send it now."""
        method, open_ = self.site.method, np.flatnonzero(~arrived.settled).tolist()
        tasks = (
            Task("before", self.round, (k,), method.download(self.server, k), self.store.get(k), SCORED) for k in open_
        )
        found = self._collect(self.executor.run(tasks))
        return {s: np.where(arrived.settled[:, None], arrived.scores[s], rows) for s, rows in found.items()}

    def _common(self, arrived: _Arrivals) -> dict[str, np.ndarray] | None:
        """The common model on every client's samples; clients with the same samples are scored once."""
        if self.site.method.common(self.server, self.site) is None:
            return None
        if self.executor.remote:  # the server's memory stays with the server, which may say more than a download
            return None if self.site.method.personalised else self._before(arrived)
        scores = {}
        for split in SCORED:
            first: dict[bytes, int] = {}
            same = [
                first.setdefault(getattr(c, split).tobytes(), k) for k, c in enumerate(self.site.federation.clients)
            ]
            chosen = sorted(set(same))
            chunks = [tuple(chosen[i : i + COMMON_CHUNK]) for i in range(0, len(chosen), COMMON_CHUNK)]
            tasks = (Task("common", self.round, chunk, self.server, splits=(split,)) for chunk in chunks)
            scores[split] = self._collect(self.executor.run(tasks))[split][same]
        return scores

    def _table(self) -> dict[str, np.ndarray]:
        """Room for every client's scores; see `Result.scores`."""
        maps = self.site.federation.data.kind == "segmentation"
        width = 2 + (self.site.classes**2 if maps else 0)
        return {s: np.zeros((self.site.clients, width), dtype=np.int64) for s in SCORED}

    def _collect(self, results: Iterable[Result]) -> dict[str, np.ndarray]:
        scores = self._table()
        for result in results:
            for split, rows in result.scores.items():
                scores[split][list(result.clients)] = rows.numpy()
        return scores


@dataclass
class _Arrivals:
    """What clients reported beside their uploads."""

    scores: dict[str, np.ndarray]
    complete: bool = False

    def __post_init__(self) -> None:
        self.trained = np.zeros(len(self.scores["test"]), dtype=bool)
        self.settled = self.trained.copy()  # whose scores after training are those before the next training too
        self._losses: list[tuple[int, dict[str, float]]] = []

    def add(self, k: int, result: Result, size: int) -> None:
        self.trained[k], self.settled[k] = True, result.settled
        for split, rows in result.scores.items():
            self.scores[split][k] = rows[0].numpy()
        self._losses.append((size, result.losses))

    def losses(self) -> dict[str, float]:
        """The mean of each loss part over the clients that trained, weighted by size."""
        return weighted(self._losses)

    def finish(self, name: str) -> None:
        if not self.complete:
            raise FedloomError(f"{name}.aggregate must look at every upload; it stopped before the last one.")

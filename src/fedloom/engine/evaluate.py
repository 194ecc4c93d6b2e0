"""Evaluation: who is scored, with which model, and the figures that come of it.

Three models are scored for every client: `before`, the one it would use with what the server would
send it now; `after`, the one it has right after training; and `common`, the one for all, where the
method has one. Nothing that a client or the server remembers changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np

from ..client.standard import told
from ..client.worker import ClientWorker
from ..core.method import FindsGroups, HasFigures
from ..core.payload import Payload
from ..data.clients import domains as client_domains
from ..data.clients import first_alike
from ..data.clients import sizes as client_sizes
from ..executors.base import Executor, Result, Results, Task
from ..metrics.clustering import clustering_accuracy
from ..metrics.distribution import MANY, Coded, Distribution
from ..metrics.registry import (
    DEFAULT,
    METRICS,
    Domains,
    Sheet,
    Tally,
    applying,
    kind_of,
    mean,
    plain,
    sheet,
)
from .checkpoint import Store
from .outsiders import STAGES, Outsiders

SCORED = ("validation", "test")
# One task scores the common model for all clients whose first sample lies in the same such block.
BLOCK = 512

Scores = dict[str, np.ndarray]  # split -> a row per client, see `Result.scores`


class TrainedScores:
    """The scores that clients report right after training."""

    def __init__(self, worker: ClientWorker) -> None:
        self._rows: dict[int, Scores] = {}  # of those that trained, a row for each split
        self.trained = np.zeros(worker.clients, dtype=bool)
        # Whose model does not depend on downloads: its scores hold until the client trains again.
        self.settled = np.zeros(worker.clients, dtype=bool)

    def add(self, k: int, result: Result) -> None:
        """Note the scores of a client that has trained."""
        self.trained[k] = True
        self.settled[k] = result.settled
        self._rows[k] = {split: rows[0].numpy() for split, rows in result.scores.items()}

    def or_else(self, chosen: np.ndarray, who: np.ndarray, others: Scores) -> Scores:
        """The scores of the chosen among these clients from here, the rest from `others`."""
        places = np.flatnonzero(chosen[who]).tolist()
        if not places:
            return others
        scores = {split: rows.copy() for split, rows in others.items()}
        for place in places:
            known = self._rows[int(who[place])]
            for split in SCORED:
                scores[split][place] = known.get(split, 0.0)
        return scores


class Evaluation:
    """The evaluation of one round: `server` is what the round has ended with.

    `metric` is the headline, by which validation samples are judged. `who` are the numbers of the
    clients that are scored, in order; by default all are.
    """

    def __init__(
        self,
        worker: ClientWorker,
        executor: Executor,
        store: Store,
        server: Payload,
        round: int,
        metric: str = DEFAULT,
        who: np.ndarray | None = None,
    ) -> None:
        self.worker = worker
        self.who = np.arange(worker.clients) if who is None else who
        self.everybody = who is None
        self.executor = executor
        self.store = store
        self.server = server
        self.round = round
        self.metric = metric
        # The results of the next round's tasks, if `run` was given any.
        self.ahead: Results | None = None

    def run(self, trained: TrainedScores, ahead: Iterable[Task] | None = None) -> dict[str, Any]:
        """The part of a line of metrics that comes from scores.

        Workers that have nothing left to score continue with `ahead`, the tasks of the next round.
        """
        outside = self._outside()  # first, as workers continue with `ahead` after the others
        scores = self.scores(trained, ahead)
        # A client that did not train this round has, after training, what it has before it.
        scores["after"] = trained.or_else(trained.trained, self.who, scores["before"])
        return self._figures(scores) | outside

    def _outside(self) -> dict[str, Any]:
        """By name and stage, the figures of clients that never train; empty if there are none."""
        federation = self.worker.federation
        if not federation.outside:
            return {}
        outsiders = Outsiders(self.worker, self.executor, self.server, self.round, self.metric)
        scores = outsiders.scores()
        record: dict[str, dict[str, Any]] = {}
        for group, members in outsiders.groups():
            domains = [federation.member(k).domain for k in members]
            stages: dict[str, Any] = dict.fromkeys(STAGES)
            for stage, rows in scores.items():
                stages[stage] = self._summary(np.stack([rows[k] for k in members]), domains)
            record[group] = stages
        return {"outside": record}

    def _figures(self, scores: dict[str, Scores]) -> dict[str, Any]:
        worker, method = self.worker, self.worker.method
        places, names = client_domains(worker.federation.clients)
        domains = Coded(places[self.who], names)
        record: dict[str, Any] = {}
        if isinstance(method, FindsGroups):
            groups = np.array(method.groups(self.server), dtype=np.int64)[self.who]
            record["clustering"] = clustering_accuracy(groups, domains)
        figures = {stage: self._summary(rows["test"], domains) for stage, rows in scores.items()}
        held = {stage: self._held_out(rows["validation"]) for stage, rows in scores.items()}
        record["personal"] = figures[method.traits.stage]
        record |= {stage: figures.get(stage) for stage in ("before", "after", "common")}
        record["validation"] = {"personal": held[method.traits.stage], "common": held.get("common")}
        record["clients"] = self._by_client(DEFAULT, scores, domains)
        if self.metric != DEFAULT:
            record["headline"] = self._by_client(self.metric, scores, domains)
        # A method's figures may look at test samples, which a server of real sites does not have.
        if isinstance(method, HasFigures) and not self.executor.remote:
            server = worker.arrived(self.server)
            worker.adopt(0, server)
            numbers = method.figures(server, worker)
            if numbers:
                record["figures"] = {name: float(value) for name, value in numbers.items()}
        return record

    def _sheet(self, split: str) -> Sheet:
        kind = kind_of(self.worker.federation.data.kind)
        return sheet(kind, self.worker.classes, split, self.metric)

    def _summary(self, rows: np.ndarray, domains: Domains) -> dict[str, Any]:
        """The metrics' figures for one model per client; nothing if nobody has test samples."""
        layout = self._sheet("test")
        figures: dict[str, Any] = {}
        for metric in applying(kind_of(self.worker.federation.data.kind)):
            if not layout.has(metric):
                continue
            added = metric.summary(layout.part(rows, metric.tally), domains)
            if metric.name == DEFAULT and not added:
                return {}
            remarks = figures.get("remarks", []) + added.pop("remarks", [])
            figures |= added
            if remarks:
                figures["remarks"] = remarks
        return figures

    def _by_client(self, name: str, scores: dict[str, Scores], domains: Coded) -> dict[str, Any]:
        """By stage, each client's value of a metric on test samples, None where there is none.

        Of many clients, and of a sample of them, it is the distribution of these values.
        """
        figures: dict[str, Any] = {}
        for stage, rows in scores.items():
            values = self.values(name, rows["test"])
            if self.everybody and len(values) <= MANY:
                figures[stage] = plain(values.tolist())
            else:
                found = Distribution.of(values, domains)
                figures[stage] = found.plain() if found else []
        return figures

    def values(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Each client's value of a metric on test samples; NaN where it is not defined."""
        metric = METRICS.find(name)
        return metric.values(self.counted(metric.tally, rows))

    def counted(self, tally: Tally, rows: np.ndarray) -> np.ndarray:
        """The columns of a tally on test samples."""
        return self._sheet("test").part(rows, tally)

    def _held_out(self, rows: np.ndarray) -> float | None:
        """The headline on validation samples, as a mean over clients."""
        metric = METRICS.find(self.metric)
        value = metric.values(self._sheet("validation").part(rows, metric.tally))
        headline: float | None = plain(mean(value))
        return headline

    def scores(
        self, trained: TrainedScores, ahead: Iterable[Task] | None = None
    ) -> dict[str, Scores]:
        """The scores of the common model, if there is one, and of every client's own model now."""
        method, remote = self.worker.method, self.executor.remote
        server = self.worker.arrived(self.server)
        has_common = method.common(server, self.worker) is not None
        # Real sites score personal models only: the server's memory may say more than a download.
        common: list[Task] = []
        same: dict[str, np.ndarray] = {}
        if has_common and not remote:
            common, same = self._common_tasks()
        apart = method.traits.personalised or remote or not has_common
        open_: list[int] = []
        if apart:
            open_ = self.who[~trained.settled[self.who]].tolist()
        before = (self._before_task(k) for k in open_)
        results = self.executor.run(chain(common, before, ahead or ()))
        scores: dict[str, Scores] = {}
        rows = self._collect(islice(results, len(common)))
        if same:
            scores["common"] = {s: rows[s][same[s]] for s in SCORED}
        if apart:
            rows = self._collect(islice(results, len(open_)))
            scores["before"] = trained.or_else(trained.settled, self.who, rows)
        else:
            scores["before"] = scores["common"]
        if has_common and remote and not method.traits.personalised:
            scores["common"] = scores["before"]
        if ahead is None:
            next(results, None)  # lets the stream end
        else:
            self.ahead = results
        return scores

    def _before_task(self, k: int) -> Task:
        state = self.store.get(k)
        down = told(self.worker.method.download(self.server, k), self.server, state)
        return Task("before", self.round, (k,), down, state, SCORED, metric=self.metric)

    def _common_tasks(self) -> tuple[list[Task], dict[str, np.ndarray]]:
        """Tasks that score the common model, and for each client whose row holds its score.

        Clients with the same samples are scored once. Rows are places in `who`.
        """
        tasks: list[Task] = []
        same: dict[str, np.ndarray] = {}
        if self.worker.training.eval_stats == "own":  # then it differs by client
            for k in self.who.tolist():
                task = Task("common", self.round, (k,), self.server, splits=SCORED)
                tasks.append(replace(task, metric=self.metric))
            everybody = np.arange(len(self.who))
            return tasks, {split: everybody for split in SCORED}
        for split in SCORED:
            same[split] = first_alike(self.worker.federation.clients, split, self.who)
            chosen = np.unique(same[split])
            sizes = client_sizes(self.worker.federation.clients, split)[self.who[chosen]]
            if not sizes.any():
                continue
            blocks = (np.cumsum(sizes) - sizes) // BLOCK
            for group in np.split(chosen, np.flatnonzero(np.diff(blocks)) + 1):
                who = tuple(self.who[group].tolist())
                task = Task("common", self.round, who, self.server, splits=(split,))
                tasks.append(replace(task, metric=self.metric))
        return tasks, same

    def _collect(self, results: Iterable[Result]) -> Scores:
        """The rows of all results, each at its client's place in `who`; see `scoring.score`."""
        scores = {s: np.zeros((len(self.who), self._sheet(s).width)) for s in SCORED}
        for result in results:
            places = np.searchsorted(self.who, result.clients)
            for split, rows in result.scores.items():
                scores[split][places] = rows.numpy()
        return scores

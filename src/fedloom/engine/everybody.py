"""All clients scored at the end of a run whose evaluations score a sample of them.

They are scored some thousands at a time, and of each only its counts and its headline are kept, so
that a million clients fit into memory. The figures stand in the summary, not in a line of metrics:
lines are about the sample, so that rounds can be compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..client.worker import ClientWorker
from ..core.payload import Payload
from ..data.clients import domains
from ..executors.base import Executor
from ..metrics.accuracy import COUNTS, summarise
from ..metrics.distribution import MANY, Coded, Distribution
from .checkpoint import Store
from .evaluate import Evaluation, TrainedScores


def everybody(
    worker: ClientWorker, executor: Executor, store: Store, server: Payload, round: int, metric: str
) -> dict[str, Any]:
    """By stage, the accuracy of all clients with what the server would send them now.

    `headline` is how their values of the headline metric are distributed.
    """
    counts: dict[str, list[np.ndarray]] = {}
    values: dict[str, list[np.ndarray]] = {}
    nobody = TrainedScores(worker)
    for start in range(0, worker.clients, MANY):
        who = np.arange(start, min(start + MANY, worker.clients))
        evaluation = Evaluation(worker, executor, store, server, round, metric, who)
        for stage, scores in evaluation.scores(nobody).items():
            rows = scores["test"]
            counts.setdefault(stage, []).append(evaluation.counted(COUNTS, rows).copy())
            values.setdefault(stage, []).append(evaluation.values(metric, rows))
    coded = Coded(*domains(worker.federation.clients))
    figures: dict[str, Any] = {"round": round, "clients": worker.clients}
    for stage, parts in counts.items():
        found = Distribution.of(np.concatenate(values[stage]), coded)
        headline = found.plain() if found else None
        figures[stage] = {**summarise(np.concatenate(parts), coded), "headline": headline}
    return figures

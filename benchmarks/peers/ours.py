"""The same work by our engine: `python -m benchmarks.peers.ours FOLDER EXECUTOR PRECISION`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make as make_method
from fedloom.core.tree import Tree
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.engine.engine import Callback, Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors import make
from fedloom.executors.auto import Auto
from fedloom.models import Task, build

from .work import SEED, Clock, Work, begin

SETTLING = 120.0  # seconds that `auto` is given to make up its mind


def worker(work: Work, precision: str = "fp32") -> ClientWorker:
    """The job as a federation, with the first weights that everyone has."""
    job, per = work.job, work.job.train + work.job.test
    n = job.clients * per
    data = Dataset(
        name="made-up",
        x=work.raw.flatten(0, 1),
        y=work.y.flatten(),
        domain=torch.zeros(n, dtype=torch.int64),
        test=torch.zeros(n, dtype=torch.bool),
        classes=tuple(str(c) for c in range(job.classes)),
        domains=("made-up",),
    )
    rows = np.arange(n).reshape(job.clients, per)
    clients = tuple(Client(r[: job.train], rows[0, :0], r[job.train :]) for r in rows)
    model = build(job.model, Task(job.shape, job.classes))
    model.load_state_dict(work.weights)
    training = Training(batch=job.batch, lr=job.lr, precision=precision)  # type: ignore[arg-type]
    return ClientWorker(
        make_method("fedavg"), Federation(data, clients), model, training, seed=SEED
    )


class Watch:
    """Tells the clock of every round."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        self.clock.round(record["common"]["accuracy_mean"] if record else None)


class Settled:
    """Stops once `auto` has made its choice, or has had its time."""

    def __init__(self, executor: Auto) -> None:
        self.executor, self.end = executor, time.monotonic() + SETTLING

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> bool:
        return self.executor.choice is not None or time.monotonic() > self.end


def run(work: Work, clock: Clock, executor: str, precision: str = "fp32", workers: int = 2) -> Tree:
    """Run all rounds with an executor and return the common weights at the end.

    The executor `settle` runs until `auto` has chosen, untimed.
    """
    place = worker(work, precision)
    engine_of = make("auto" if executor == "settle" else executor, place, workers)
    rounds, watch = work.job.rounds, Watch(clock)
    callbacks: Sequence[Callback] = [watch]
    if isinstance(engine_of, Auto) and executor == "settle":
        rounds, callbacks = 1_000_000, [watch, Settled(engine_of)]
    engine = Engine(place, engine_of, Schedule(rounds=rounds), callbacks)
    try:
        engine.run()
    finally:
        engine_of.close()
    return engine.server.tree("model")


if __name__ == "__main__":
    work, clock = begin(sys.argv[1])
    clock.answer(work.folder, run(work, clock, executor=sys.argv[2], precision=sys.argv[3]))

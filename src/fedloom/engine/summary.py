"""What `summary.json` says about a run that has come to its end."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..client.worker import ClientWorker
from ..core.method import PromisesPrivacy
from ..core.version import __version__
from ..data.described import number_of
from ..metrics.fairness import compared
from ..metrics.privacy import account
from ..metrics.registry import headline
from ..metrics.summary import summarise_run
from .folder import Run
from .schedule import Schedule


def summary(run: Run, worker: ClientWorker) -> dict[str, Any]:
    """Sum up a run."""
    config = run.config
    return {
        "method": config.method,
        "data": config.data,
        "partition": config.partition,
        "seed": config.seed,
        "rounds": run.metrics[-1]["round"] if run.metrics else 0,
        "clients": number_of(run.federation),
        "stage": worker.method.traits.stage,
        **summarise_run(run.metrics, run.timing, config.schedule.metric),
        "device": {"name": ",".join(map(str, worker.devices)), "title": worker.device.title},
        "better_than_local": None,
        "versions": versions(),
        "hash": config.hash(),
        "finished": True,
        "privacy": privacy(worker, config.schedule, run.metrics),
    }


def privacy(
    worker: ClientWorker, schedule: Schedule, metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """How much privacy the method's promise leaves each client after the rounds so far.

    None for a method that promises nothing.
    """
    method = worker.method
    promise = method.promise() if isinstance(method, PromisesPrivacy) else None
    if promise is None:
        return None
    rounds = metrics[-1]["round"] if metrics else 0
    if promise.each == "round":  # who takes part is hidden, so all clients are in the same case
        return account(promise, [rounds] * worker.clients, [schedule.rate(worker)] * worker.clients)
    taken = np.zeros(worker.clients, dtype=np.int64)
    for round in range(1, rounds + 1):
        cohort, lost, _ = schedule.cohort(round, worker)
        taken[sorted(set(cohort) - lost)] += 1
    if promise.each == "step":
        steps, rates = _sampling(worker)
        return account(promise, (taken * steps).tolist(), rates)
    releases = [0] * worker.clients
    for k in np.flatnonzero(taken).tolist():
        releases[k] = int(taken[k]) * int((worker.federation.counts(k) > 0).sum())
    return account(promise, releases)


def _sampling(worker: ClientWorker) -> tuple[list[int], list[float]]:
    """For each client its steps in a round, and the chance of a sample to be in one of them."""
    training, steps, rates = worker.training, [], []
    for size in worker.sizes():
        steps.append(training.planned(size, 1.0))
        rates.append(min(1.0, training.batch / max(1, size)))
    return steps, rates


def versions() -> dict[str, str]:
    """What the run was computed with."""
    return {
        "fedloom": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
    }


def better_than_local(run: Run, alone: Run) -> Mapping[str, float] | None:
    """How many clients are better off than alone, by the headline metric.

    Nobody knows where clients are not listed.
    """
    if run.spread or alone.spread:
        return None
    return compared(run.clients, alone.clients, headline(run.config.schedule.metric).higher)

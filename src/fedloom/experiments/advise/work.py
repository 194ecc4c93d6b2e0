"""What a round costs, counted and never timed, so that the same question gets the same plan.

A method is tried on a few samples of two clients while torch counts its operations. The count is
scaled to everybody's samples and turned into points: seconds of a machine that is only assumed, a
laptop with two cores. How many points fit a number of minutes depends on the machine at hand
(`budget.py`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.flop_counter import FlopCounterMode

from ...data.federation import Client, Federation
from ...engine.config import Config
from ...engine.engine import Engine
from ...engine.run import execute
from ..flops import flop_counter

FLOPS_PER_POINT = 4e10
POINTS_PER_STEP = 1.5e-3  # of the optimiser, whatever the size of the network
POINTS_PER_CLIENT = 5e-3  # for download, upload and aggregation
TRIED_CLIENTS = 2
TRIED_SAMPLES = 8


@dataclass(frozen=True)
class Work:
    """What a round of a method costs all clients together."""

    flops: float
    steps: int
    clients: int

    @property
    def points(self) -> float:
        """How many seconds a round takes on the assumed machine."""
        fixed = self.steps * POINTS_PER_STEP + self.clients * POINTS_PER_CLIENT
        return self.flops / FLOPS_PER_POINT + fixed

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        return {**vars(self), "points": round(self.points, 4)}


def count_work(config: Config, federation: Federation) -> Work:
    """Try a method for three rounds, in memory; what it raises is the reason why it cannot be used.

    The second round is counted: some methods do nothing in the first, and the third is evaluated.
    """
    tried = _shrunk(federation)
    counts: list[float] = []
    with flop_counter() as counter:
        watch = _AfterRounds(counter, counts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a race says what there is to say
            execute(_trial(config), callbacks=[watch], federation=tried)
    sizes = [len(client.train) for client in federation.clients]
    tried_sizes = [len(client.train) for client in tried.clients]
    able = len(sizes) - sizes.count(0)
    share = sum(sizes) / sum(tried_sizes)
    if config.training.steps:  # a client's work does not grow with its data
        share = able / len(tried)
    part = (config.schedule.ratio + (config.schedule.ratio_max or config.schedule.ratio)) / 2
    steps = sum(config.training.planned(size, 1.0) for size in sizes)
    flops = (counts[1] - counts[0]) * share * part
    return Work(round(flops), round(steps * part), round(able * part))


class _AfterRounds:
    """Notes the operations counted so far, after every round."""

    def __init__(self, counter: FlopCounterMode, counts: list[float]) -> None:
        self._counter = counter
        self._counts = counts

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        self._counts.append(float(self._counter.get_total_flops()))


def _trial(config: Config) -> Config:
    """Three rounds in this process, of which only the last is evaluated."""
    schedule = config.schedule.model_copy(
        update={"rounds": 3, "eval_every": 3, "ratio": 1.0, "ratio_max": None, "patience": None}
    )
    execution = config.execution.model_copy(update={"executor": "inplace"})
    batch = min(config.training.batch, TRIED_SAMPLES)
    training = config.training.model_copy(update={"batch": batch})
    changes = {"schedule": schedule, "execution": execution, "training": training}
    return config.model_copy(update=changes)


def _shrunk(federation: Federation) -> Federation:
    """The largest clients with a few of their samples each."""
    largest = sorted(federation.clients, key=lambda client: -len(client.train))
    clients = []
    for client in largest[:TRIED_CLIENTS]:
        parts: dict[str, np.ndarray] = {}
        for split in ("train", "validation", "test"):
            parts[split] = getattr(client, split)[:TRIED_SAMPLES]
        clients.append(Client(**parts, domain=client.domain))
    return replace(federation, clients=tuple(clients))

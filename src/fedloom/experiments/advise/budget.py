"""How many points a number of minutes has room for on the machine at hand.

An idle machine that is at least as quick as the assumed one has the same points for as many
minutes. A slower one has half of them, or a quarter, and so on: few possible answers, so that a
little more or less load does not change the plan.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from typing import Any

from ...core.errors import FedloomError
from ...data.federation import Client, Federation
from ...engine.config import Config
from ...engine.engine import Engine
from ...engine.run import execute
from .work import Work

SHARE = 0.8  # of the minutes that points may fill; the rest is for reading and reports
MEASURED = 3.0  # points of work that are timed
TOGETHER = 0.65  # of the time that one core takes, if two or more share the clients


def points_of(minutes: float) -> float:
    """The points of so many minutes on the assumed machine."""
    return SHARE * 60 * minutes


def minutes_of(points: float) -> float:
    """The minutes that have room for so many points on the assumed machine."""
    return points / SHARE / 60


def fitting_points(minutes: float, elapsed: float, per_point: float, least: int) -> int:
    """The points to plan with, if `elapsed` seconds are over and a point takes `per_point` seconds.

    A budget in which `least` points do not fit is refused with the one that would do.
    """
    left = 60 * minutes - elapsed
    if least * per_point > left:
        enough = (elapsed + 1.2 * least * per_point) / 60
        raise FedloomError(
            f"--minutes {minutes:g} is too little for even one round of local and fedavg on these "
            f"data: here that needs --minutes {_rounded_up(enough)}."
        )
    points = points_of(minutes)
    while points * per_point > left:
        points /= 2
    return max(least, int(points))


def _rounded_up(minutes: float) -> str:
    """Minutes with two digits, and never fewer than they are."""
    unit = 10.0 ** (math.floor(math.log10(minutes)) - 1)
    return f"{unit * math.ceil(minutes / unit):.2g}"


def seconds_per_point(config: Config, federation: Federation, work: Work) -> float:
    """Time the second of two rounds on some of everybody's samples; the first one warms up."""
    part = _part_of(federation, min(1.0, MEASURED / work.points))
    steps = _steps(config, part) / _steps(config, federation)
    flops = _samples(part) / _samples(federation)
    if config.training.steps:  # a client's work does not grow with its data
        flops = 1.0
    expected = Work(work.flops * flops, round(work.steps * steps), work.clients).points
    clock = _Clock()
    execute(_trial(config), callbacks=[clock], federation=part)
    seconds = clock.times[1] - clock.times[0]
    if config.execution.executor == "auto" and (os.cpu_count() or 1) > 1:
        seconds *= TOGETHER
    return seconds / expected


def _samples(federation: Federation) -> int:
    return sum(len(client.train) for client in federation.clients)


def _steps(config: Config, federation: Federation) -> int:
    """How many steps everybody takes in a round."""
    return sum(config.training.planned(len(client.train), 1.0) for client in federation.clients)


def _part_of(federation: Federation, share: float) -> Federation:
    """Some of each client's samples, at least one."""
    clients = []
    for client in federation.clients:
        parts: dict[str, Any] = {}
        for split in ("train", "validation", "test"):
            rows = getattr(client, split)
            parts[split] = rows[: math.ceil(share * len(rows))]
        clients.append(Client(**parts, domain=client.domain))
    return replace(federation, clients=tuple(clients))


def _trial(config: Config) -> Config:
    """Two rounds, of which the last is evaluated; `auto` would not get beyond this process."""
    length = {"rounds": 2, "eval_every": 2, "patience": None}
    schedule = config.schedule.model_copy(update=length)
    changes: dict[str, Any] = {"schedule": schedule}
    if config.execution.executor == "auto":
        changes["execution"] = config.execution.model_copy(update={"executor": "inplace"})
    return config.model_copy(update=changes)


class _Clock:
    """Notes when each round is done."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        self.times.append(time.monotonic())

"""The clients' devices: how quick each is, how wide its line, and when it is awake.

Everything is an array with an entry per client, drawn by the run's seed or read from a file, so
that a million devices are a few numbers each.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.errors import FedloomError, unknown
from ..core.rng import numpy_rng
from .clock import Clock

BITS = 8e-6  # megabits in a byte
MOMENT = 1e-6  # seconds
# What a trace may say of a device, and what holds where it does not.
COLUMNS = {
    "seconds_per_step": None,
    "download_mbps": np.inf,
    "upload_mbps": np.inf,
    "awake_from": 0.0,
    "awake_seconds": np.inf,
}


@dataclass(frozen=True)
class Devices:
    """What simulated time depends on, an entry per client."""

    step: np.ndarray  # seconds of a training step
    receive: np.ndarray  # seconds for a byte that arrives
    send: np.ndarray  # seconds for a byte that leaves
    wakes: np.ndarray  # when in a day the client wakes up
    awake: np.ndarray  # for how many seconds it then is awake
    day: float

    @staticmethod
    def of(clock: Clock, clients: int, seed: int) -> Devices:
        """The devices that a clock describes."""
        if clock.trace is not None:
            return _traced(Path(clock.trace), clock, clients, seed)
        rng = numpy_rng(seed, "devices")
        step = clock.step_seconds * _spread(rng, clock.speed_spread, clients)
        slowness = BITS * _spread(rng, clock.line_spread, clients)
        receive = slowness / (clock.download_mbps or np.inf)
        send = slowness / (clock.upload_mbps or np.inf)
        wakes = rng.uniform(0.0, clock.day, clients)
        return Devices(step, receive, send, wakes, _awake(clock, clients), clock.day)

    def wait(self, clients: np.ndarray, now: float) -> np.ndarray:
        """Seconds until each of these clients is awake; 0 for those that are."""
        since = (now - self.wakes[clients]) % self.day
        left = np.where(since < self.awake[clients], 0.0, self.day - since)
        return np.where(left < MOMENT, 0.0, left)  # less is the rounding of a long time

    def sleeps(self, k: int, now: float) -> float:
        """When client `k`, who is awake now, falls asleep."""
        if self.awake[k] >= self.day:
            return np.inf
        return float(now + self.awake[k] - (now - self.wakes[k]) % self.day)


def _spread(rng: np.random.Generator, deviation: float, clients: int) -> np.ndarray:
    """Factors around 1 whose logarithms have this deviation."""
    return np.exp(deviation * rng.standard_normal(clients))


def _awake(clock: Clock, clients: int) -> np.ndarray:
    """For how many seconds of a day each client is awake; for ever if that is all of it."""
    seconds = clock.awake * clock.day if clock.awake < 1 else np.inf
    return np.full(clients, seconds)


def _traced(path: Path, clock: Clock, clients: int, seed: int) -> Devices:
    """Devices as a file has them: each client its own line, or one drawn by the seed."""
    columns = _read(path)
    number = columns.pop("client", None)
    if number is None:
        lines = numpy_rng(seed, "devices").integers(len(columns["seconds_per_step"]), size=clients)
    else:
        places = {int(k): line for line, k in enumerate(number)}
        absent = [k for k in range(clients) if k not in places]
        if absent:
            raise FedloomError(f"{path} has no line for client {absent[0]}; there are {clients}.")
        lines = np.array([places[k] for k in range(clients)])
    own = {name: values[lines] for name, values in columns.items()}
    awake = np.minimum(own["awake_seconds"], _awake(clock, clients))
    return Devices(
        own["seconds_per_step"],
        BITS / own["download_mbps"],
        BITS / own["upload_mbps"],
        own["awake_from"] % clock.day,
        awake,
        clock.day,
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    """The columns of a trace, those that it does not have filled in."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FedloomError(f"the trace {path} cannot be read: {reason}.") from None
    if not lines:
        raise FedloomError(f"the trace {path} has no lines.")
    for name in lines[0]:
        if name not in (*COLUMNS, "client"):
            raise unknown(f"column of {path}", str(name), [*COLUMNS, "client"])
    columns = {}
    for name, default in {**COLUMNS, "client": None}.items():
        if name in lines[0]:
            columns[name] = np.array([_number(path, i, name, row) for i, row in enumerate(lines)])
        elif default is not None:
            columns[name] = np.full(len(lines), default)
        elif name != "client":
            raise FedloomError(f"the trace {path} needs a column {name}.")
    return columns


def _number(path: Path, line: int, name: str, row: dict[str, str]) -> float:
    """A number of a trace; speeds must be above 0, times not below."""
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = np.nan
    least = np.finfo(float).tiny if name.endswith("mbps") else 0.0
    if not value >= least or (np.isinf(value) and name in ("seconds_per_step", "client")):
        raise FedloomError(f"{path}, line {line + 2}: {name} is {row[name]!r}.")
    return value

"""What time it is in a simulation, and who is back in time.

The clock is decided before anybody trains: by the size of the download, the steps that [training]
plans, and an upload as large as those of the last round were on average (in the first round: as the
download). So it does not depend on who computes what when, and who is too late need not train.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..client.worker import ClientWorker
from .clock import Clock
from .devices import Devices


@dataclass(frozen=True)
class Trip:
    """What becomes of a client that is asked: when it is back, or lost for this time."""

    client: int
    ends: float
    lost: bool


class Timekeeper:
    """Simulated time, in seconds since the run began."""

    def __init__(self, clock: Clock, worker: ClientWorker) -> None:
        self.clock = clock
        self.devices = Devices.of(clock, worker.clients, worker.seed)
        self.now = 0.0
        self.upload = 0.0  # the mean bytes of the last round's uploads; 0: there were none yet
        self._worker = worker

    def opens(self, able: np.ndarray) -> float:
        """When the first of these clients is awake: now, or later."""
        return self.now + float(self.devices.wait(able, self.now).min())

    def awake(self, able: np.ndarray, when: float) -> np.ndarray:
        """Those of these clients that are awake then."""
        return able[self.devices.wait(able, when) <= 0.0]

    def expected(self, clients: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Seconds that each of these clients would take with messages as in the last round."""
        training, devices = self._worker.training, self.devices
        steps = np.array([training.planned(int(size), 1.0) for size in sizes])
        line = devices.receive[clients] + devices.send[clients]
        return np.asarray(devices.step[clients] * steps + self.upload * line)

    def trip(self, k: int, start: float, down: int, work: float, lost: bool) -> Trip:
        """What becomes of client `k`, asked at `start` with a download of so many bytes."""
        devices = self.devices
        received = start + down * float(devices.receive[k])
        if lost:
            return Trip(k, received, True)
        steps = self._worker.training.planned(len(self._worker.rows(k)), work)
        sent = (self.upload or down) * float(devices.send[k])
        done = received + steps * float(devices.step[k]) + sent
        asleep = devices.sleeps(k, start)
        return Trip(k, min(done, asleep), done > asleep)

    def round(
        self, trips: Sequence[Trip], start: float, counted: int
    ) -> tuple[AbstractSet[int], float]:
        """Who of a round is not waited for, and when the round ends."""
        limit = start + (self.clock.deadline or np.inf)
        back = [trip for trip in trips if not trip.lost]
        back.sort(key=lambda trip: trip.ends)  # of equal times the first one asked comes first
        in_time = [trip for trip in back if trip.ends <= limit][:counted]
        missing = {trip.client for trip in trips} - {trip.client for trip in in_time}
        if len(in_time) == counted:
            return missing, max(trip.ends for trip in in_time)
        if trips and not in_time and self.clock.deadline:
            warnings.warn(
                f"nobody is back before the deadline of {self.clock.deadline:g} s, so nothing is "
                "learned in such a round.",
                stacklevel=2,
            )
        last = max((trip.ends for trip in trips), default=start)
        return missing, min(last, limit)

    def passed(self, ends: float, uploads: int, nbytes: int) -> None:
        """A round is over; what was uploaded in it says what to expect of the next."""
        self.now = ends
        if uploads:
            self.upload = nbytes / uploads

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"now": self.now, "upload": self.upload}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.now, self.upload = float(saved["now"]), float(saved["upload"])

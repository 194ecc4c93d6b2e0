"""Asynchronous rounds: a server that moves whenever a buffer of updates is full (FedBuff).

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated learning with buffered asynchronous
aggregation", AISTATS 2022.

As many clients as a round has are at work at any time; one that is back, or lost, makes room for
another, who starts from the server as it then is. When `buffer` updates are there, the method's own
`aggregate` gets them. An update that started s moves ago is moved: what the client changed, times
(1 + s)^-staleness, is added to the model as it is now. Updates of clients that started from the
present model stay as they are, so a buffer of the whole cohort and equal speeds give the rounds of
a server that waits, bit for bit.

A client trains when its update is used, with the keys and the model of its start; that changes no
number, and the updates of a move can be computed side by side. So a checkpoint needs no updates,
only the trips that are under way and the servers that they started from.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..core.claims import CHANGES, PACKED, claims_of
from ..core.errors import FedloomError
from ..core.method import Method
from ..core.payload import Payload
from ..core.rng import numpy_rng
from .checkpoint import Checkpoint
from .engine import Engine
from .schedule import able
from .turn import Arriving, Turn, Uploads


@dataclass(frozen=True)
class Flight:
    """A client that was sent off and has not been dealt with yet."""

    number: int  # in the order of starts
    client: int
    move: int  # the server's move that it started for; the server is the one before it
    ends: float
    lost: bool
    work: float


@dataclass
class Asynchronous(Engine):
    """The round loop of a server with a buffer; a round is a move of the server."""

    flights: list[Flight] = field(default_factory=list)
    started: int = 0

    def _begin(self, start: Checkpoint | None) -> None:
        super()._begin(start)
        refuse_unsuited(self.worker.method)
        clients = len(able(self.worker))
        if self._buffer > clients:
            raise FedloomError(
                f"buffer = {self._buffer} updates never come together: {clients} clients train."
            )
        if start and start.round:
            clock = start.extra["clock"]
            self.flights = [Flight(**flight) for flight in clock["flights"]]
            self.started, self.versions = int(clock["started"]), dict(start.versions)

    def saved(self) -> dict[str, Any]:
        kept = super().saved()
        flights = [asdict(flight) for flight in self.flights]
        kept["clock"] |= {"flights": flights, "started": self.started}
        return kept

    @property
    def _places(self) -> int:
        """How many clients are at work at any time."""
        who = len(able(self.worker))
        return self.schedule.wanted(who, numpy_rng(self.worker.seed, "places"))

    @property
    def _buffer(self) -> int:
        """How many updates the server waits for."""
        assert self.time is not None
        return self.time.clock.buffer or max(1, self._places // 10)

    def _next_turn(self) -> Turn:
        """The next move: its clients are those whose updates fill the buffer."""
        due = self.schedule.evaluates(self.round + 1)
        server = self.server.replace(round=self.round + 1)
        turn = Turn(self.round + 1, server, [], [], set(), {}, due, self._flaw)
        self.server = server  # newcomers join it
        self._fill(turn)
        return turn

    def _ahead(self) -> Turn | None:
        return None  # who comes next is known when this move is over

    def _welcome(self, turn: Turn) -> None:
        """Nothing: clients are welcomed when they start."""

    def _wait_for(self, turn: Turn) -> None:
        """Nothing: the clock has been advanced to the end of the move."""

    def _fill(self, turn: Turn) -> None:
        """Let time pass until the buffer is full; clients start whenever there is room."""
        assert self.time is not None
        starts = 0
        while True:
            back = self._back()
            if len(back) >= self._buffer:
                break
            self._start(turn, starts)
            starts += 1
            if len(self._back()) >= self._buffer:
                continue
            under_way = [flight.ends for flight in self.flights if flight.ends > self.time.now]
            idle = self._idle()
            if under_way:
                self.time.now = min(under_way)
            elif len(idle):
                self.time.now = self.time.opens(idle)
            else:
                break  # all others are lost: the server moves with what it has
        used = sorted(back[: self._buffer], key=lambda flight: flight.number)
        gone = [flight for flight in self.flights if flight.lost and flight.ends <= self.time.now]
        turn.cohort = turn.present = [flight.client for flight in used + gone]
        turn.lost = {flight.client for flight in gone}
        turn.work = {flight.client: flight.work for flight in used}
        turn.ends = self.time.now
        self._moves = {flight.client: flight.move for flight in used + gone}
        taken = {flight.number for flight in used + gone}
        self.flights = [flight for flight in self.flights if flight.number not in taken]

    def _back(self) -> list[Flight]:
        """Those whose updates are there, in the order in which they came."""
        assert self.time is not None
        now = self.time.now
        there = [flight for flight in self.flights if not flight.lost and flight.ends <= now]
        return sorted(there, key=lambda flight: (flight.ends, flight.number))

    def _idle(self) -> np.ndarray:
        """The clients that are neither at work nor have an update in the buffer."""
        busy = [flight.client for flight in self.flights]
        return np.setdiff1d(able(self.worker), busy)

    def _start(self, turn: Turn, starts: int) -> None:
        """Send off as many clients as there is room for, with the server as it is now."""
        assert self.time is not None
        now = self.time.now
        at_work = sum(flight.ends > now for flight in self.flights)
        candidates = self._candidates(turn.round, now)
        candidates = candidates.among(self._idle())
        room = min(self._places - at_work, len(candidates.who))
        if room <= 0:
            return
        parts: list[int | str] = [self.worker.seed, turn.round, "cohort"]
        rng = numpy_rng(*parts, *([starts] if starts else []))
        cohort, turn.lost, turn.work = self.schedule.chosen(candidates, room, rng, self.worker)
        turn.cohort = cohort
        super()._welcome(turn)
        self.versions[turn.round] = turn.server
        for k in turn.present:
            trip = self._trip(turn, k, now)
            work = turn.work.get(k, 1.0)
            self.flights.append(Flight(self.started, k, turn.round, trip.ends, trip.lost, work))
            self.started += 1

    def _origin(self, turn: Turn, k: int) -> tuple[Payload, int]:
        return self.versions[self._moves[k]], self._moves[k]

    def _passed_on(self, turn: Turn, uploads: Arriving) -> Arriving:
        return super()._passed_on(turn, self._moved(turn, uploads))

    def _moved(self, turn: Turn, uploads: Arriving) -> Arriving:
        """The uploads, those that come late on top of the present model."""
        assert self.time is not None
        trained = {name for name, _ in self.worker.trainable(None)}
        for k, up in uploads:
            late = turn.round - self._moves[k]
            if late:
                share = (1.0 + late) ** -self.time.clock.staleness
                then = self.versions[self._moves[k]]
                up = moved(up, then, turn.server, share, trained)
            yield k, up

    def _note(self, turn: Turn, uploads: Uploads, server: Payload) -> Payload:
        server = super()._note(turn, uploads, server)
        needed = {flight.move for flight in self.flights}
        self.versions = {move: kept for move, kept in self.versions.items() if move in needed}
        return server


def moved(
    upload: Payload, then: Payload, now: Payload, share: float, trained: Container[str]
) -> Payload:
    """The upload of a client that started from another model: a share of its change, on this one.

    What is not trained is no sum of changes: running statistics go that share of the way from the
    present ones to the client's, so a variance stays above 0. Counters stay as they are, as does
    all that is no part of the model.
    """
    changed = {}
    for name, value in upload.tree("model").items():
        present = now.tree("model").get(name)
        if present is None or not value.is_floating_point():
            continue
        before = present
        if name in trained:
            before = then.tensor(f"model/{name}")
        changed[f"model/{name}"] = present + share * (value - before)
    return Payload({**dict(upload.items()), **changed})


def refuse_unsuited(method: Method) -> None:
    """Refuse a method whose server does more with updates than to average models."""
    cls: type = type(method)
    kinds = set(claims_of(cls).values())
    if method.traits.averages and not kinds & {CHANGES, PACKED}:
        return
    raise FedloomError(
        f"{method.name} cannot run with mode=async: its server does not just average models, so an "
        "update that comes late cannot be moved to where the server is now."
    )

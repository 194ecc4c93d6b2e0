"""The executor whose clients are Flower nodes: one message per task."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Message

from ...client.worker import ClientWorker
from ...core.claims import Sizes
from ...core.errors import FedloomError
from ...core.memory import keep_freed_memory
from ...metrics.accuracy import COUNTS
from ...metrics.registry import applying, kind_of, sheet
from ..base import Result, Results, Task
from .mail import replies
from .roster import Roster
from .settings import Settings
from .uploads import Inspector
from .wire import LARGEST, TYPES, Order, ordered, read_result, write_task
from .words import cut

log = logging.getLogger("flwr")
WINDOW = 100  # messages under way at once, so that memory does not grow with the number of clients
PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between two looks at the grid while nothing comes


class TooFew(FedloomError):
    """A round had fewer uploads than it needs."""


@dataclass
class _Flight:
    """A task that is under way."""

    number: int
    task: Task
    order: Order
    due: float


@dataclass
class _Traffic:
    """The messages of one `run`; tasks are numbered in the order in which they come."""

    sent: int = 0
    flights: dict[str, _Flight] = field(default_factory=dict)  # by the id of the message
    done: dict[int, Result | None] = field(default_factory=dict)  # None: there is no result
    entry: dict[str, Any] = field(default_factory=dict)  # for the book


class Flower:
    """An executor whose clients are Flower nodes.

    A client that does not answer in time, or whose answer is wrong, has no result.
    """

    remote, eager = True, False

    def __init__(self, worker: ClientWorker, roster: Roster, settings: Settings) -> None:
        self.worker = worker  # the server's: its samples are blank
        self.roster = roster
        self.settings = settings
        self.sizes = Sizes(type(worker.method), settings.jump)
        self.inspector = Inspector(worker, self.sizes)
        keep_freed_memory()
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def run(self, tasks: Iterable[Task]) -> Results:
        """Send the tasks out, a limited number at a time; yield results in the order of tasks."""
        start = time.monotonic()
        waiting = iter(tasks)
        traffic = _Traffic()
        traffic.entry = {"asked": 0, "answered": [], "refused": {}, "silent": [], "absent": []}
        yielded = 0
        pause = PAUSE
        while True:
            exhausted = self._fill(traffic, waiting)
            while yielded in traffic.done:
                result = traffic.done.pop(yielded)
                yielded += 1
                if result is not None:
                    yield result
            if exhausted and not traffic.flights:
                break
            if self._collect(traffic):
                pause = PAUSE
            elif traffic.flights:
                pause = min(LONGEST_PAUSE, pause * 1.5)
                time.sleep(pause)
        if traffic.sent:
            self._conclude(traffic, time.monotonic() - start)

    def _fill(self, traffic: _Traffic, waiting: Iterator[Task]) -> bool:
        """Send tasks until the window is full; returns whether there are no more."""
        while len(traffic.flights) + len(traffic.done) < WINDOW:
            task = next(waiting, None)
            if task is None:
                return True
            traffic.entry |= {"round": task.round, "kind": task.kind}
            if not self._send(traffic, task):
                traffic.done[traffic.sent] = None
                traffic.entry["absent"].append(task.clients[0])
            traffic.sent += 1
        return False

    def _send(self, traffic: _Traffic, task: Task) -> bool:
        """Send a task to its client; returns whether that was possible."""
        node = self.roster.node(task.clients[0])
        if node is None:
            return False
        book = self.roster.book
        timeout = self.settings.timeout
        order = ordered(task, book.experiment, book.attempt, int(self.settings.limit_mb * 1e6))
        content = write_task(order, task.down)
        group = str(task.round)
        message = Message(content, node, TYPES[task.kind], ttl=timeout, group_id=group)
        ids = list(self.roster.grid.push_messages([message]))
        if not ids or not ids[0]:
            return False
        due = time.monotonic() + timeout
        traffic.flights[ids[0]] = _Flight(traffic.sent, task, order, due)
        return True

    def _collect(self, traffic: _Traffic) -> bool:
        """Take in what has come and give up what is overdue; returns whether anything has come."""
        flights = traffic.flights
        came = False
        for message, reply in replies(self.roster.grid, list(flights)):
            flight = flights.pop(message, None)
            if flight is not None:
                came = True
                traffic.done[flight.number] = self._judge(flight, reply, traffic.entry)
        now = time.monotonic()
        for message, flight in list(flights.items()):
            if flight.due <= now:
                del flights[message]
                traffic.done[flight.number] = None
                client = flight.task.clients[0]
                traffic.entry["silent"].append(client)
                self.roster.missed(client)
        return came

    def _conclude(self, traffic: _Traffic, seconds: float) -> None:
        """Note who answered; refuse a round with too few uploads."""
        entry = traffic.entry
        attempt = self.roster.book.attempt
        entry |= {"asked": traffic.sent, "attempt": attempt, "seconds": round(seconds, 3)}
        self.roster.book.note(entry)
        uploads = len(entry["answered"])
        needed = self.settings.replies
        if entry["kind"] == "client" and uploads < needed:
            raise TooFew(f"round {entry['round']} had {uploads} of the {needed} uploads it needs.")

    def refuse(self, round: int, hook: str, refused: Mapping[int, str], left: int) -> None:
        """Note whose uploads the server could not use after all; refuse a round with too few."""
        entry = {"round": round, "kind": hook, "asked": left + len(refused), "answered": []}
        entry |= {"refused": {k: cut(why) for k, why in refused.items()}, "silent": []}
        self.roster.book.note(entry | {"absent": [], "attempt": self.roster.book.attempt})
        if hook == "aggregate" and left < self.settings.replies:
            needed = self.settings.replies
            raise TooFew(
                f"round {round} had {left} of the {needed} uploads it needs; {len(refused)} could "
                "not be used."
            )

    def _judge(
        self, flight: _Flight, reply: Message | FedloomError, entry: dict[str, Any]
    ) -> Result | None:
        """The result in a reply, or None; then the entry says why.

        Whatever a site may have sent to make a reply fail costs this reply only.
        """
        client = flight.task.clients[0]
        try:
            result = self._read(flight, reply)
        except FedloomError as error:
            entry["refused"][client] = cut(error)
            return None
        except Exception as error:
            log.warning("the reply of site %s cannot be used", client, exc_info=True)
            entry["refused"][client] = cut(f"{type(error).__name__}: {error}")
            return None
        entry["answered"].append(client)
        return result

    def _read(self, flight: _Flight, reply: Message | FedloomError) -> Result:
        if isinstance(reply, FedloomError):
            raise reply
        if reply.has_error():
            raise FedloomError(reply.error.reason or f"Flower reports error {reply.error.code}")
        result = read_result(reply.content, flight.order)
        flaw = self.inspector.flaw(flight.task, result.upload)
        if flaw:
            raise FedloomError(f"uploaded {flaw}")
        for split in flight.task.splits:
            self._check_scores(flight.task, result, split)
        return result

    def _check_scores(self, task: Task, result: Result, split: str) -> None:
        """Refuse scores that are impossible."""
        data = self.worker.federation.data
        samples = len(getattr(self.worker.federation.clients[task.clients[0]], split))
        rows = result.scores.get(split)
        if rows is None and not samples:
            return
        layout = sheet(kind_of(data.kind), self.worker.classes, split, task.metric)
        if rows is None or not len(rows[0]):
            raise FedloomError(f"the reply has no scores on its {split} samples")
        if rows.shape != (1, layout.width):
            raise FedloomError(
                f"the reply has {rows.shape[1]} scores on its {split} samples, not "
                f"{layout.width}: site and server do not have the same metrics"
            )
        if not bool((rows.abs() <= LARGEST).all()):  # a NaN is not, either
            raise FedloomError(f"the reply's scores on its {split} samples are not finite numbers")
        counted = samples * math.prod(data.y.shape[1:])  # pixels, where labels are maps
        for tally in layout.tallies:
            row = layout.part(rows.numpy(), tally)[0]
            if tally is COUNTS and not tally.possible(row, counted):
                right, total = row.tolist()
                raise FedloomError(f"{right:g} of {total:g} {split} samples right is impossible")
            if not tally.possible(row, counted):
                raise FedloomError(
                    f"the reply's {tally.name} of {counted} {split} samples is impossible"
                )
        for metric in applying(kind_of(data.kind)):
            if layout.has(metric):  # what cannot be made into figures must not reach those of all
                metric.summary(layout.part(rows.numpy(), metric.tally), [None])

    @property
    def processes(self) -> list[int]:
        """None here: clients are elsewhere."""
        return []

    def close(self) -> None:
        """Restore the number of threads."""
        torch.set_num_threads(self._threads)

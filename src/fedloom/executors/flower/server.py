"""The `ServerApp`: the engine as it is, with an executor that sends one message per client."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from ...client.worker import ClientWorker
from ...core.errors import FedloomError
from ...core.files import write_atomic
from ...core.memory import keep_freed_memory
from ...engine.config import Config
from ...engine.engine import Callback, Engine
from ...engine.folder import Run
from ...engine.run import carry_out
from ...engine.setup import Setup
from ...metrics.accuracy import COUNTS
from ...metrics.registry import kind_of, sheet
from ..base import Result, Results, Task
from .book import Book
from .roster import Roster, gather
from .settings import Settings, parse
from .sites import blank, disagreement, listed
from .uploads import Inspector
from .wire import TYPES, Order, ordered, read_result, write_task

log = logging.getLogger("flwr")
WINDOW = (
    100  # messages under way at a time, so that memory does not grow with the number of clients
)


class TooFew(FedloomError):
    """A round had fewer uploads than it needs."""


@dataclass
class _Flight:
    number: int
    task: Task
    order: Order
    due: float


class Flower:
    """An executor whose clients are Flower nodes. One that does not answer in time, or wrongly, has no result."""

    remote, eager = True, False

    def __init__(self, site: ClientWorker, roster: Roster, settings: Settings) -> None:
        self.site, self.roster, self.settings = site, roster, settings
        self.inspector = Inspector(site)
        keep_freed_memory()
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def run(self, tasks: Iterable[Task]) -> Results:
        """Send the tasks out, a limited number at a time; hand results on in the order of tasks."""
        grid, waiting, start = self.roster.grid, iter(tasks), time.monotonic()
        flights: dict[str, _Flight] = {}
        done: dict[int, Result | None] = {}
        entry: dict[str, Any] = {
            "asked": 0,
            "answered": [],
            "refused": {},
            "silent": [],
            "absent": [],
        }
        sent = handed = 0
        exhausted, pause = False, 0.05
        while True:
            while not exhausted and len(flights) + len(done) < WINDOW:
                task = next(waiting, None)
                if task is None:
                    exhausted = True
                    break
                entry |= {"round": task.round, "kind": task.kind}
                flight = self._send(sent, task)
                if flight is None:
                    done[sent] = None
                    entry["absent"].append(task.clients[0])
                else:
                    flights[flight[0]] = flight[1]
                sent += 1
            while handed in done:
                result = done.pop(handed)
                handed += 1
                if result is not None:
                    yield result
            if exhausted and not flights:
                break
            came = list(grid.pull_messages(list(flights))) if flights else []
            for reply in came:
                if found := flights.pop(reply.metadata.reply_to_message_id, None):
                    done[found.number] = self._judged(found, reply, entry)
            now = time.monotonic()
            for number in [n for n, f in flights.items() if f.due <= now]:
                late = flights.pop(number)
                done[late.number] = None
                entry["silent"].append(late.task.clients[0])
                self.roster.missed(late.task.clients[0])
            pause = 0.05 if came else min(1.0, pause * 1.5)
            if flights and not came:
                time.sleep(pause)
        if not sent:
            return
        entry |= {
            "asked": sent,
            "attempt": self.roster.book.attempt,
            "seconds": round(time.monotonic() - start, 3),
        }
        self.roster.book.note(entry)
        if entry["kind"] == "client" and len(entry["answered"]) < self.settings.replies:
            raise TooFew(
                f"round {entry['round']} had {len(entry['answered'])} of the {self.settings.replies} uploads it needs."
            )

    def _send(self, number: int, task: Task) -> tuple[str, _Flight] | None:
        node = self.roster.node(task.clients[0])
        if node is None:
            return None
        book, timeout = self.roster.book, self.settings.timeout
        order = ordered(task, book.experiment, book.attempt, int(self.settings.limit_mb * 1e6))
        message = Message(
            write_task(order, task.down),
            node,
            TYPES[task.kind],
            ttl=timeout,
            group_id=str(task.round),
        )
        ids = list(self.roster.grid.push_messages([message]))
        return (
            (ids[0], _Flight(number, task, order, time.monotonic() + timeout))
            if ids and ids[0]
            else None
        )

    def _judged(self, flight: _Flight, reply: Message, entry: dict[str, Any]) -> Result | None:
        """The result in a reply, or None; then the entry says why."""
        k = flight.task.clients[0]
        try:
            if reply.has_error():
                raise FedloomError(reply.error.reason or f"Flower reports error {reply.error.code}")
            result = read_result(reply.content, flight.order)
            if flight.task.kind != "before" and (
                flaw := self.inspector.flaw(flight.task, result.upload)
            ):
                raise FedloomError(f"uploaded {flaw}")
            self._counted(flight.task, result)
        except FedloomError as error:
            entry["refused"][k] = str(error)
            return None
        entry["answered"].append(k)
        return result

    def _counted(self, task: Task, result: Result) -> None:
        """Refuse scores that cannot be."""
        own = self.site.federation.clients[task.clients[0]]
        for split in task.splits:
            rows = result.scores.get(split)
            if rows is None and not len(getattr(own, split)):
                continue
            data = self.site.federation.data
            layout = sheet(kind_of(data.kind), self.site.classes, split, task.metric)
            if rows is None or not len(rows[0]):
                raise FedloomError(f"the reply has no scores on its {split} samples")
            if rows.shape != (1, layout.width):
                raise FedloomError(
                    f"the reply has {rows.shape[1]} scores on its {split} samples, not "
                    f"{layout.width}: site and server do not have the same metrics"
                )
            if not bool(torch.isfinite(rows).all()):
                raise FedloomError(f"the reply's scores on its {split} samples are no numbers")
            correct, total = (int(n) for n in rows[0, layout.places[COUNTS.name]])
            maps = data.y.ndim > 1
            if not 0 <= correct <= total or (not maps and total != len(getattr(own, split))):
                raise FedloomError(f"{correct} of {total} {split} samples right is impossible")

    @property
    def processes(self) -> list[int]:
        """None here: clients are elsewhere."""
        return []

    def close(self) -> None:
        """Restore the number of threads."""
        torch.set_num_threads(self._threads)


class Arrivals:
    """After each round: who has come, who has come back."""

    def __init__(self, roster: Roster, made: Run, site: ClientWorker) -> None:
        self.roster, self.made, self.site = roster, made, site

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Let sites in that fit the others."""
        book = self.roster.book
        for k, description in self.roster.refresh().items():
            if why := disagreement(book.sites, description):
                log.warning("%s: it is left out", why)
                self.roster.nodes.pop(k, None)
                continue
            book.sites[k] = description
            log.info("site %s has come, with %s training samples", k, description.train)
            book.save()
            self.site.federation = blank(book.sites)
            self.made.federation = listed(book.sites, self.made.config.partition)
            if self.made.folder:
                write_atomic(
                    self.made.folder / "federation.json", json.dumps(self.made.federation).encode()
                )


def serve(
    grid: Grid,
    config: Config,
    settings: Settings,
    place: Callable[[Config, Any], ClientWorker] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run a config over a grid: wait for the sites, then round after round; go on where an earlier start stopped."""
    folder = Path(settings.out).expanduser()
    for left in reversed(range(settings.tries)):
        book = Book.open(folder, config.hash())
        roster = Roster(grid, book, settings.timeout)
        gather(roster, settings)
        federation = blank(book.sites)
        site = (place or _place)(config, federation)
        made = Run(config, folder, federation=listed(book.sites, config.partition))
        try:
            return carry_out(
                made,
                site,
                lambda site=site, roster=roster: Flower(site, roster, settings),  # type: ignore[misc]
                callbacks=[Arrivals(roster, made, site), *callbacks],
            )
        except TooFew as error:
            if not left:
                raise FedloomError(
                    f"{error} It was tried {settings.tries} times; the last checkpoint is intact."
                ) from None
            log.warning("%s It is done again.", error)
    raise AssertionError("unreachable")


def _place(config: Config, federation: Any) -> ClientWorker:
    return Setup.from_config(config, federation=federation).worker


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Where Flower starts the server, if the run needs no report."""
    serve_app(grid, context)


def serve_app(grid: Grid, context: Context, callbacks: Sequence[Callback] = ()) -> None:
    """Run what Flower's run config describes."""
    config, settings = parse(context.run_config)
    made = serve(grid, config, settings, callbacks=callbacks)
    record = made.metrics[-1] if made.metrics else {}
    log.info(
        "finished: %s",
        json.dumps(
            {
                "rounds": record.get("round"),
                "personal": record.get("personal"),
                "folder": str(made.folder),
            }
        ),
    )

"""The `ServerApp`: the usual engine, with an executor that sends one message per client."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...client.worker import ClientWorker
from ...core.errors import FedloomError
from ...core.files import write_atomic
from ...data.federation import Federation
from ...engine.config import Config
from ...engine.engine import Callback, Engine
from ...engine.folder import Run
from ...engine.run import carry_out
from ...engine.setup import Setup
from .book import Book
from .executor import Flower, TooFew
from .roster import Roster, gather, misfit
from .settings import Settings, parse
from .sites import blank, listed

log = logging.getLogger("flwr")
MakeWorker = Callable[[Config, Federation], ClientWorker]


class Arrivals:
    """A callback that lets in, after each round, the sites that have come or come back."""

    def __init__(self, roster: Roster, run: Run, worker: ClientWorker) -> None:
        self.roster = roster
        self.run = run
        self.worker = worker

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Let in the sites that fit the others."""
        for client, site in self.roster.refresh().items():
            reason = misfit(self.roster, site, self.run.config.clients)
            if reason:
                self.roster.leave_out(client, reason)
                continue
            self.roster.accept(site)
            log.info("site %s has come, with %s training samples", client, site.train)
            sites = self.roster.book.sites
            self.worker.federation = blank(sites)
            self.run.federation = listed(sites, self.run.config.partition)
            if self.run.folder:
                text = json.dumps(self.run.federation)
                write_atomic(self.run.folder / "federation.json", text.encode())


def serve(
    grid: Grid,
    config: Config,
    settings: Settings,
    make_worker: MakeWorker | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run a config over a grid: wait for the sites, then do round after round.

    If an earlier start was stopped, the run continues from there. A round with too few uploads is
    tried again.
    """
    attempts = 0
    while True:
        try:
            return _attempt(grid, config, settings, make_worker or _worker, callbacks)
        except TooFew as error:
            attempts += 1
            if attempts >= settings.tries:
                raise FedloomError(
                    f"{error} It was tried {attempts} times; the last checkpoint is intact."
                ) from None
            log.warning("%s It is tried again.", error)


def _attempt(
    grid: Grid,
    config: Config,
    settings: Settings,
    make_worker: MakeWorker,
    callbacks: Sequence[Callback],
) -> Run:
    if config.hold_out or config.new_clients:
        raise FedloomError(
            "hold_out and new_clients set samples apart, and a federation's server has none: "
            "leave them out."
        )
    folder = Path(settings.out).expanduser()
    book = Book.open(folder, config.hash())
    roster = Roster(grid, book, settings)
    gather(roster, settings, config.clients)
    worker = make_worker(config, blank(book.sites))
    run = Run(config, folder, federation=listed(book.sites, config.partition))
    return carry_out(
        run,
        worker,
        lambda: Flower(worker, roster, settings),
        callbacks=[Arrivals(roster, run, worker), *callbacks],
    )


def _worker(config: Config, federation: Federation) -> ClientWorker:
    return Setup.from_config(config, federation=federation, device="cpu").worker


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Where Flower starts the server, if the run needs no report."""
    serve_app(grid, context)


def serve_app(grid: Grid, context: Context, callbacks: Sequence[Callback] = ()) -> None:
    """Run what Flower's run config describes."""
    config, settings = parse(context.run_config)
    run = serve(grid, config, settings, callbacks=callbacks)
    record = run.metrics[-1] if run.metrics else {}
    outcome = {
        "rounds": record.get("round"),
        "personal": record.get("personal"),
        "folder": str(run.folder),
    }
    log.info("finished: %s", json.dumps(outcome))

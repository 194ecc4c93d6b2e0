"""A federation in one process: the contract's small world, its clients behind a Flower grid."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Before flwr is imported: tests talk to nobody.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedloom[flower]'")

from fedloom import checks
from fedloom.engine import Engine
from fedloom.executors.flower.client import Home, client_app
from fedloom.executors.flower.grid import InProcessGrid
from fedloom.executors.flower.server import Arrivals, Book, Flower, Roster, gather
from fedloom.executors.flower.settings import Settings
from fedloom.executors.flower.sites import alone, blank
from fedloom.executors.flower.store import Versions
from fedloom.local import Site
from fedloom.method import Method
from fedloom.payload import Payload
from fedloom.runs import Run
from fedloom.schedule import Schedule
from fedloom.state import Checkpoint, Store
from fedloom.training import Training


@dataclass
class World:
    """Four clients, each with its own data and its own folder, and a server that has neither."""

    method: Method
    root: Path
    settings: Settings = field(default_factory=lambda: Settings(timeout=5, wait=0, limit_mb=5))
    fault: Callable[[Any], str | None] | None = None
    schedule: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.training = Training(**{**self.method.training, "batch": 8})
        self.federation = checks.federation()
        self.homes = {k: self.home(k) for k in range(len(self.federation))}
        self.app = client_app(lambda context: self.homes[int(context.node_config["partition-id"])])
        nodes = {100 + k: {"partition-id": k} for k in self.homes}
        self.grid = InProcessGrid(self.app, nodes, fault=self.fault)
        self.book = Book.open(None, "test")
        self.seen = checks.Trace()
        self.store = Store(self.root / "server" if self.schedule.pop("saved", False) else None)
        if self.store.folder:
            self.store.folder.mkdir(parents=True, exist_ok=True)

    def home(self, k: int) -> Home:
        site = Site(self.method, alone(self.federation, k), checks.network(), self.training, seed=7)
        return Home(k, site, self.root / f"site-{k}")

    def run(self, **schedule: Any) -> checks.Trace:
        """Run the method over the grid."""
        self.roster = Roster(self.grid, self.book)
        gather(self.roster, self.settings)
        site = Site(self.method, blank(self.book.sites), checks.network(), self.training, seed=7)
        self.executor = Flower(site, self.roster, self.settings)
        rounds = Schedule(**{"rounds": checks.ROUNDS, **self.schedule, **schedule})
        watchers = [self, self.seen, Arrivals(self.roster, Run(None), site)]
        engine = Engine(site, self.executor, rounds, watchers, self.store)
        try:
            engine.run(self.store.load() if self.store.folder else None)
        finally:
            self.executor.close()
        self.engine = engine
        return self.seen

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """What the server saves after a round."""
        if self.store.folder:
            engine.store.save(Checkpoint(engine.round, engine.server, {"bytes": engine.bytes}))

    def state(self, k: int) -> Payload:
        """What client k remembers, by what the server knows of it."""
        known = self.store.get(k)
        version = (int(known.number("attempt")), int(known.number("round"))) if known else (0, 0)
        return self.versions(k).get(version)

    def versions(self, k: int) -> Versions:
        return Versions(self.homes[k].memory, self.book.experiment, k)


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    def make(method: Method, **options: Any) -> World:
        return World(method, tmp_path, **options)

    return make

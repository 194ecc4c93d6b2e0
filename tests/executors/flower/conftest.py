"""A federation in one process: the contract's small world, its clients behind a Flower grid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Before flwr is imported: tests talk to nobody.
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedloom[flower]'")

from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.method import Method
from fedloom.core.payload import Payload
from fedloom.engine.checkpoint import Checkpoint, Store
from fedloom.engine.config import build
from fedloom.engine.engine import Engine
from fedloom.engine.folder import Run
from fedloom.engine.schedule import Schedule
from fedloom.executors.flower.book import Book
from fedloom.executors.flower.certificates import write_certificates
from fedloom.executors.flower.client import Home, client_app
from fedloom.executors.flower.executor import Flower
from fedloom.executors.flower.grid import InProcessGrid
from fedloom.executors.flower.roster import Roster, gather
from fedloom.executors.flower.server import Arrivals
from fedloom.executors.flower.settings import Settings
from fedloom.executors.flower.sites import alone, blank
from fedloom.executors.flower.store import Versions
from fedloom.testing import small_world


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start SuperLinks take minutes of processor time: only on request."""
    if os.environ.get("FEDLOOM_FEDERATION") != "1":
        for item in items:
            if item.get_closest_marker("federation"):
                item.add_marker(
                    pytest.mark.skip(reason="starts a real federation: set FEDLOOM_FEDERATION=1")
                )


@dataclass
class World:
    """Four clients, each with its own data and its own folder, and a server that has neither."""

    method: Method
    root: Path
    settings: Settings = field(default_factory=lambda: Settings(timeout=5, wait=0, limit_mb=5))
    fault: Callable[[Any], str | None] | None = None
    schedule: dict[str, Any] = field(default_factory=dict)
    mods: tuple[Any, ...] = ()
    book: Book | None = None

    def __post_init__(self) -> None:
        self.training = Training(**{**self.method.traits.training, "batch": 8})
        self.federation = small_world.place(self.method, training=self.training).federation
        self.homes = {k: self.home(k) for k in range(len(self.federation))}
        self.app = client_app(
            lambda context: self.homes[int(context.node_config["partition-id"])], self.mods
        )
        nodes = {100 + k: {"partition-id": k} for k in self.homes}
        self.grid = InProcessGrid(self.app, nodes, fault=self.fault)
        self.book = self.book or Book.open(None, "test")
        self.seen = small_world.Trace()
        self.store = Store(self.root / "server" if self.schedule.pop("saved", False) else None)
        if self.store.folder:
            self.store.folder.mkdir(parents=True, exist_ok=True)

    def network(self) -> torch.nn.Module:
        return small_world.place(self.method, training=self.training).given

    def home(self, k: int) -> Home:
        site = ClientWorker(
            self.method, alone(self.federation, k), self.network(), self.training, seed=7
        )
        return Home(k, site, self.root / f"site-{k}")

    def run(self, **schedule: Any) -> small_world.Trace:
        """Run the method over the grid."""
        self.roster = Roster(self.grid, self.book, self.settings)
        gather(self.roster, self.settings)
        site = ClientWorker(
            self.method, blank(self.book.sites), self.network(), self.training, seed=7
        )
        self.executor = Flower(site, self.roster, self.settings)
        rounds = Schedule(**{"rounds": small_world.ROUNDS, **self.schedule, **schedule})
        watchers = [self, self.seen, Arrivals(self.roster, Run(build({})), site)]
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


class Deployment:
    """SuperLink and SuperNodes as processes on this machine, with TLS and node authentication.

    All of them end with it.
    """

    def __init__(self, root: Path, simulation: bool = False, certificates: bool = True) -> None:
        self.root, self.simulation = root, simulation
        self.bin = Path(sys.executable).parent
        self.port = self.free_port()
        self.short = ""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {
            **os.environ,
            "FLWR_HOME": str(root / "flwr"),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{self.bin}:{os.environ['PATH']}",
        }
        (root / "flwr").mkdir(parents=True)
        address = f'address = "127.0.0.1:{self.port}"'
        how = (
            "insecure = true"
            if simulation
            else f'root-certificates = "{root / "certs" / "ca.crt"}"'
        )
        (root / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{address}\n{how}\n'
        )
        if certificates and not simulation:
            write_certificates(root / "certs", 4, ["127.0.0.1", "localhost"])

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """A process in a group of its own, its words in NAME.log."""
        with open(self.root / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [shutil.which(command[0], path=self.env["PATH"]) or command[0], *command[1:]],
                env=self.env,
                cwd=self.root,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def link(self, name: str = "superlink") -> subprocess.Popen[bytes]:
        """The server, ready to be talked to."""
        certs = self.root / "certs"
        secure = [
            "--ssl-ca-certfile",
            str(certs / "ca.crt"),
            "--ssl-certfile",
            str(certs / "server.crt"),
            "--ssl-keyfile",
            str(certs / "server.key"),
            "--enable-supernode-auth",
        ]
        process = self.start(
            name, "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--database",
            str(self.root / "state.db"), "--disable-runtime-dependency-installation",
            *(["--insecure", "--simulation"] if self.simulation else secure),
        )  # fmt: skip
        self.until(self.listens, 60, "the SuperLink")
        return process

    @staticmethod
    def free_port() -> int:
        """A port of this machine that nobody listens on."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return int(s.getsockname()[1])

    def listens(self) -> bool:
        """Whether the server can be talked to."""
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def ray(self, *processors: int) -> int:
        """A Ray of our own, which ends with the test; its port.

        It has a node for each number of processors, all of them on this machine.
        """
        port = self.free_port()
        self.short = tempfile.mkdtemp(prefix="ray-")  # names of sockets may not be long
        self.start(
            "ray",
            "ray",
            "start",
            "--head",
            "--node-ip-address=127.0.0.1",
            f"--port={port}",
            f"--num-cpus={processors[0]}",
            "--include-dashboard=false",
            "--disable-usage-stats",
            f"--temp-dir={self.short}",
            "--block",
        )
        self.until(lambda: "Ray runtime started" in self.said("ray"), 120, "Ray")
        for place, number in enumerate(processors[1:], 1):
            name = f"ray-{place}"
            joins = (f"--address=127.0.0.1:{port}", f"--num-cpus={number}", "--block")
            self.start(name, "ray", "start", "--disable-usage-stats", *joins)
            self.until(lambda name=name: "Ray runtime started" in self.said(name), 120, name)
        return port

    def register(self, *sites: int) -> None:
        """Let these sites' keys in."""
        for k in sites:
            self.flwr("supernode", "register", str(self.root / "certs" / f"site-{k}.pub"), "here")

    def node(
        self,
        k: int,
        config: str = "",
        key: int | None = None,
        name: str | None = None,
        plain: bool = False,
    ) -> Any:
        """ClientWorker k."""
        certs = self.root / "certs"
        secure = [
            "--root-certificates",
            str(certs / "ca.crt"),
            "--auth-supernode-private-key",
            str(certs / f"site-{k if key is None else key}"),
        ]
        node_config = (
            f'partition-id={k} num-partitions=3 state="{self.root / f"site-{k}"}" {config}'
        )
        return self.start(
            name or f"site-{k}",
            "flower-supernode",
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--port",
            str(self.free_port()),
            "--node-config",
            node_config,
            *(["--insecure"] if plain else secure),
        )

    def again(self, k: int, seconds: float) -> None:
        """Start site k again and again until the SuperLink lets it in, as a service manager would.

        As long as the SuperLink takes the old process for alive (it has not yet missed a second
        heartbeat), it turns the new one away.
        """
        name = f"site-{k}"
        before, process = self.said(name).count("SuperNode ID"), self.node(k)

        def there() -> bool:
            nonlocal process
            if process.poll() is not None:
                self.kill(name)  # what it had started, too
                time.sleep(5)
                process = self.node(k)
            return self.said(name).count("SuperNode ID") > before

        self.until(there, seconds, f"site {k} again")

    def flwr(self, *command: str) -> str:
        """A command of Flower's, and what it prints."""
        done = subprocess.run(
            [str(self.bin / "flwr"), *command],
            env=self.env,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, app: Path, *options: str, name: str = "run") -> subprocess.Popen[bytes]:
        """`flwr run`, with its log."""
        return self.start(name, "flwr", "run", str(app), "here", "--stream", *options)

    def said(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def until(self, true: Callable[[], Any], seconds: float, what: str) -> Any:
        """Wait until something is so."""
        end = time.monotonic() + seconds
        while not (found := true()):
            assert time.monotonic() < end, f"{what}: waited {seconds} s\n" + "\n".join(
                f"--- {n}\n{self.said(n)[-3000:]}" for n in self.processes
            )
            time.sleep(0.1)
        return found

    def kill(self, name: str) -> None:
        """SIGKILL to a process and all it has started."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=20)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        if self.short:
            shutil.rmtree(self.short, ignore_errors=True)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    made: list[Deployment] = []

    def make(**options: Any) -> Deployment:
        made.append(Deployment(tmp_path / f"deployment-{len(made)}", **options))
        return made[-1]

    yield make
    for each in made:
        each.close()

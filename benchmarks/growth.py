"""How a round's time and memory grow with the number of clients; 50 take part in each round."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make
from fedloom.core.rng import key, numpy_rng
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.engine.checkpoint import Checkpoint, Store
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.metrics.cost import peak_memory_mb
from fedloom.models import Task, build

from . import speed

PARTICIPANTS = 50
ROOT = Path(__file__).resolve().parents[1]  # child processes find `benchmarks` here
ROUNDS = 4


def vectors(clients: int, method: str) -> ClientWorker:
    """Clients with four samples of 16 numbers each and a linear head."""
    rng = numpy_rng("growth", clients)
    n = 4 * clients
    data = Dataset(
        name="synthetic",
        x=torch.from_numpy(rng.normal(size=(n, 16)).astype(np.float32)),
        y=torch.from_numpy(rng.integers(0, 10, n)),
        domain=torch.zeros(n, dtype=torch.int64),
        test=torch.zeros(n, dtype=torch.bool),
        classes=tuple("0123456789"),
        domains=("synthetic",),
    )
    rows = np.arange(n)
    none = np.arange(0)
    owners = tuple(Client(rows[4 * k : 4 * k + 4], none, none) for k in range(clients))
    torch.manual_seed(key("growth"))
    return ClientWorker(
        make(method),
        Federation(data, owners),
        build("linear", Task((16,), 10)),
        Training(batch=4),
        seed=0,
    )


def measure(
    sizes: Sequence[int] = (10, 100, 1000, 10_000),
    many: int = 100_000,
    say: Callable[[str], object] | None = None,
) -> list[dict[str, Any]]:
    """Rounds of SCAFFOLD, whose clients keep a state; a process for each number of clients."""
    rows: list[dict[str, Any]] = []
    for kind, clients in [*(("images", n) for n in sizes), ("vectors", many)]:
        code = f"from benchmarks.growth import _alone; _alone({kind!r}, {clients})"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
        )
        row = {"kind": kind, "clients": clients, **json.loads(done.stdout)}
        rows.append(row)
        if say:
            say(
                f"{clients:>7} clients of {kind:<7}  set-up {row['setup']:5.1f} s  "
                f"a round {row['round']:5.2f} s  peak {row['mb']:5.0f} MB"
            )
    peak = {row["clients"]: row["mb"] for row in rows}
    if say and 100 in peak and 10_000 in peak:
        ratio = peak[10_000] / peak[100]
        missed = "" if ratio <= 1.2 else "; MISSED"
        say(f"peak with 10 000 clients / with 100: {ratio:.2f} (goal: at most 1.2{missed})")
    return rows


def _alone(kind: str, clients: int) -> None:
    """Run some rounds in this process; print seconds of set-up and of a round, and peak memory.

    Memory is without the data.
    """
    torch.set_num_threads(1)
    start = time.perf_counter()
    if kind == "images":
        worker = speed.worker(clients, 60, "scaffold")
    else:
        worker = vectors(clients, "scaffold")
    ends = []
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        executor = Inplace(worker)

        class Saving:
            def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
                store.save(Checkpoint(engine.round, engine.server, {"bytes": engine.bytes}))
                ends.append(time.perf_counter())

        ratio = min(1.0, PARTICIPANTS / clients)
        schedule = Schedule(rounds=ROUNDS, ratio=ratio, eval_every=ROUNDS)
        engine = Engine(worker, executor, schedule, [Saving()], store)
        ready = time.perf_counter()
        engine.run()
    data = worker.federation.data
    without_evaluation = [ready, *ends[:-1]]  # the last round has evaluation too
    seconds = min(b - a for a, b in pairwise(without_evaluation))
    memory = peak_memory_mb() - (data.x.nbytes + data.y.nbytes) / 1024**2
    print(json.dumps({"setup": ready - start, "round": seconds, "mb": memory}))

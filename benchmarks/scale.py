"""A whole run, as a user starts it, with 10^3 to 10^6 clients of small vectors.

In each round 50 of them train. A process for each number of clients carries out `fedloom.run` on a
federation of its own: set-up, rounds, evaluations of a sample of the clients, checkpoints and
summary. What is measured is processor time, the largest memory of the process, and the bytes of a
line of metrics.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedloom
from fedloom.core.rng import numpy_rng
from fedloom.data.clients import Clients
from fedloom.data.federation import Dataset, Federation
from fedloom.metrics.cost import peak_memory_mb

ROOT = Path(__file__).resolve().parents[1]  # child processes find `benchmarks` here
SIZES = (1_000, 10_000, 100_000, 1_000_000)
PARTICIPANTS = 50
SCORED = 1000
ROUNDS = 4
DOMAINS = ("north", "east", "south", "west")
# What has to hold with a million clients.
MOST_SECONDS, MOST_LINE, MOST_MB, MOST_RATIO = 0.5, 50_000, 1000.0, 3.0


def federation(clients: int) -> Federation:
    """Clients with four samples of 16 numbers each: two to train on, the others to be judged by."""
    rng = numpy_rng("scale", clients)
    n = 4 * clients
    owner = np.repeat(np.arange(clients), 4)
    domain = np.arange(clients) % len(DOMAINS)
    y = rng.integers(0, 10, n)
    x = rng.standard_normal((n, 16), dtype=np.float32)
    x[np.arange(n), y] += 2  # a linear head finds the class
    place = np.arange(n) % 4
    data = Dataset(
        name="synthetic",
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        domain=torch.from_numpy(domain[owner]),
        test=torch.from_numpy(place == 3),
        classes=tuple("0123456789"),
        domains=DOMAINS,
    )
    return Federation(data, Clients.owned(owner, place == 3, place == 2, domain, DOMAINS))


class Clock:
    """Notes the processor time at the end of each round; every second one is evaluated."""

    def __init__(self) -> None:
        self.ends = [time.process_time()]

    def before_run(self, run: Any, images: Any) -> None:
        """The set-up is over."""
        self.ends = [time.process_time()]

    def after_round(self, engine: Any, record: dict[str, Any] | None) -> None:
        """A round is over, and its checkpoint written."""
        self.ends.append(time.process_time())

    def rounds(self, evaluated: bool) -> float:
        """The least processor time of a round, evaluated or not."""
        took = np.diff(self.ends)
        return float(took[1::2].min() if evaluated else took[::2].min())


def alone(clients: int, method: str, eval_all: bool) -> dict[str, Any]:
    """One run in this process."""
    torch.set_num_threads(1)
    before = time.process_time()
    world = federation(clients)
    dealt = time.process_time()
    bare = peak_memory_mb()
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        run = fedloom.run(
            method,
            world,
            out=Path(folder) / "run",
            rounds=ROUNDS,
            ratio=min(1.0, PARTICIPANTS / clients),
            eval_every=2,
            eval_clients=min(SCORED, clients),
            eval_all=eval_all,
            batch=4,
            model="linear",
            callbacks=[clock],
        )
        end = time.process_time()
        written = (Path(folder) / "run" / "metrics.jsonl").read_bytes()
        disk = sum(f.stat().st_size for f in (Path(folder) / "run").rglob("*") if f.is_file())
    return {
        "deal": dealt - before,
        "setup": clock.ends[0] - dealt,
        "round": clock.rounds(evaluated=False),
        "evaluated": clock.rounds(evaluated=True),
        "end": end - clock.ends[-1],
        "line": max(map(len, written.splitlines())),
        "disk_mb": disk / 1e6,
        "data_mb": bare,
        "mb": peak_memory_mb(),
        "sent": run.summary["bytes"]["up"]["per_round"] + run.summary["bytes"]["down"]["per_round"],
    }


def measure(
    sizes: Sequence[int] = SIZES,
    method: str = "fedavg",
    eval_all: bool = True,
    say: Callable[[str], object] | None = None,
) -> list[dict[str, Any]]:
    """A run for each number of clients, each in a process of its own."""
    rows: list[dict[str, Any]] = []
    for clients in sizes:
        code = (
            "import json; from benchmarks.scale import alone; "
            f"print(json.dumps(alone({clients}, {method!r}, {eval_all})))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
        )
        row = {"clients": clients, **json.loads(done.stdout.splitlines()[-1])}
        rows.append(row)
        if say:
            say(
                f"{clients:>9,} clients  set-up {row['setup']:5.2f} s  "
                f"a round {row['round']:5.3f} s"
                f"  evaluated {row['evaluated']:5.3f} s  all at the end {row['end']:5.2f} s  "
                f"line {row['line'] / 1000:4.1f} kB  peak {row['mb']:5.0f} MB  "
                f"sent {row['sent'] / 1000:5.1f} kB a round"
            )
    for sentence in missed(rows) if say else ():
        assert say
        say(sentence)
    return rows


def missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What does not hold with a million clients, in words; nothing if they were not measured."""
    by_size = {row["clients"]: row for row in rows}
    largest = by_size.get(1_000_000)
    if largest is None:
        return []
    limits = {
        "processor seconds of an evaluated round": (largest["evaluated"], MOST_SECONDS),
        "bytes of a line of metrics": (largest["line"], MOST_LINE),
        "MB at the peak": (largest["mb"], MOST_MB),
    }
    if 100_000 in by_size:
        ratio = largest["mb"] / by_size[100_000]["mb"]
        limits["times the memory of a tenth of the clients"] = (ratio, MOST_RATIO)
    return [
        f"MISSED: {value:g} {what}, at most {most:g} are wanted"
        for what, (value, most) in limits.items()
        if value > most
    ]

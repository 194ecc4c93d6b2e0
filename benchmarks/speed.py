"""The engine against a bare loop, as ratios: seconds on one machine mean little on another."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fedloom.client.batches import batch_rows
from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make
from fedloom.core.rng import key, numpy_rng
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.engine.checkpoint import Checkpoint, Store
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.base import Executor
from fedloom.executors.inplace import Inplace
from fedloom.executors.pool import Pool
from fedloom.metrics.cost import peak_memory_mb
from fedloom.models import Task, build

Say = Callable[[str], object]
ROOT = Path(__file__).resolve().parents[1]  # child processes find `benchmarks` here


def federation(clients: int, samples: int) -> Federation:
    """Synthetic grey 28x28 images without test samples, so that a round is training alone."""
    rng = numpy_rng("bench", clients)
    n = clients * samples
    data = Dataset(
        name="synthetic",
        x=torch.from_numpy(rng.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8)),
        y=torch.from_numpy(rng.integers(0, 10, n)),
        domain=torch.zeros(n, dtype=torch.int64),
        test=torch.zeros(n, dtype=torch.bool),
        classes=tuple("0123456789"),
        domains=("synthetic",),
    )
    none = np.arange(0)
    owners = []
    for k in range(clients):
        owners.append(Client(np.arange(k * samples, (k + 1) * samples), none, none))
    return Federation(data, tuple(owners))


def worker(clients: int, samples: int, method: str = "fedavg", lr: float = 0.01) -> ClientWorker:
    """The 4-layer CNN with batches of 10."""
    torch.manual_seed(key("bench"))
    return ClientWorker(
        make(method),
        federation(clients, samples),
        build("cnn", Task((1, 28, 28), 10)),
        Training(batch=10, lr=lr),
        seed=0,
    )


def bare_round(
    worker: ClientWorker, weights: dict[str, torch.Tensor], round: int
) -> dict[str, torch.Tensor]:
    """FedAvg's round as one would write it by hand, over the engine's batches."""
    model = copy.deepcopy(worker.model).to(memory_format=torch.contiguous_format).train()
    data = worker.federation.data
    total = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    for k, client in enumerate(worker.federation.clients):
        model.load_state_dict(weights)
        optimizer = torch.optim.SGD(model.parameters(), lr=worker.training.lr)
        x = data.x[torch.from_numpy(client.train)].float().div_(255).sub_(0.5).div_(0.5)
        y = data.y[torch.from_numpy(client.train)]
        steps = worker.training.planned(len(y), 1.0)
        rng = ClientContext(worker, k, round).rng("batches 0")
        for rows in batch_rows(len(y), worker.training, steps, rng):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        for name, tensor in model.state_dict().items():
            total[name] += tensor / len(worker.federation)
    return total


def measure(quick: bool = False, say: Say | None = None) -> dict[str, Any]:
    """All figures; `say` gets each as soon as it is measured."""
    say = say or silent
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > 0.5:
        say(
            f"this machine is busy (load {load:.1f}): the pool's figure will be too low; "
            "measure on a quiet one."
        )
    if quick:
        return {"overhead": overhead(20, 1, say), "memory": memory(("fedavg",), 1, say)}
    return {"overhead": overhead(300, 3, say), "memory": memory(("fedavg", "scaffold"), 3, say)}


def silent(text: str) -> None:
    """Says nothing."""


def overhead(samples: int, repeats: int, say: Say) -> dict[str, float]:
    """Seconds of one round in turns: bare loop, `inplace`, `pool` of two; the quickest counts."""
    place = worker(20, samples)
    first = {n: t.clone() for n, t in place.first.items()}
    pool = Pool(place, 2)
    times: dict[str, list[float]] = {"bare": [], "inplace": [], "pool": []}
    torch.set_num_threads(1)
    reached: dict[str, Any] = {}

    def engine(executor: Executor) -> float:
        run = Engine(place, executor, Schedule(rounds=1))
        start = time.perf_counter()
        run.run()
        seconds = time.perf_counter() - start
        reached["engine"] = run.server.tree("model")
        return seconds

    for repeat in range(repeats + 1):  # the first time warms up and does not count
        start = time.perf_counter()
        reached["bare"] = bare_round(place, first, 1)
        turn = {
            "bare": time.perf_counter() - start,
            "inplace": engine(Inplace(place)),
            "pool": engine(pool),
        }
        if repeat > 0:
            for name, seconds in turn.items():
                times[name].append(seconds)
    pool.close()
    difference = 0.0
    for name, tensor in reached["bare"].items():
        difference = max(difference, float((reached["engine"][name] - tensor).abs().max()))
    best = {name: min(seconds) for name, seconds in times.items()}
    figures = {
        **{f"{name}_seconds": seconds for name, seconds in best.items()},
        "inplace_over_bare": best["inplace"] / best["bare"],
        "pool_speedup": best["inplace"] / best["pool"],
        "largest_difference_of_weights": difference,
    }
    say(f"one FedAvg round, 20 clients x {samples} samples, 4-layer CNN, batch 10, one thread:")
    say(
        f"  bare PyTorch loop {best['bare']:.2f} s, inplace {best['inplace']:.2f} s, "
        f"pool of 2 {best['pool']:.2f} s"
    )
    slower = figures["inplace_over_bare"]
    faster = figures["pool_speedup"]
    say(f"  inplace / bare loop: {slower:.3f} (goal: at most 1.10{_missed(slower <= 1.10)})")
    goal = f"goal: at least 1.6{_missed(faster >= 1.6)}"
    say(f"  pool of 2 against inplace: {faster:.2f} times as fast ({goal})")
    say(f"  same work: weights agree to {difference:.1e}")
    return figures


def memory(methods: Sequence[str], rounds: int, say: Say) -> dict[str, Any]:
    """Peak memory without the data, with 100 and with 1000 clients, 50 of them in each round."""
    figures: dict[str, Any] = {}
    for method in methods:
        peaks = {n: _peak(method, n, rounds) for n in (100, 1000)}
        ratio = peaks[1000] / peaks[100]
        figures[method] = {"mb": peaks, "ratio": ratio}
        say(f"peak memory of {method}, 50 participants a round, data excluded:")
        say(
            f"  100 clients {peaks[100]:.0f} MB, 1000 clients {peaks[1000]:.0f} MB, "
            f"ratio {ratio:.2f} (goal: at most 1.3{_missed(ratio <= 1.3)})"
        )
    return figures


def _missed(met: bool) -> str:
    return "" if met else "; MISSED"


def _peak(method: str, clients: int, rounds: int) -> float:
    """The peak memory of a run in a process of its own."""
    code = f"from benchmarks.speed import _alone; _alone({method!r}, {clients}, {rounds})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return float(json.loads(done.stdout))


def _alone(method: str, clients: int, rounds: int) -> None:
    """Run in this process and print its peak memory without the data."""
    place = worker(clients, 60, method)
    schedule = Schedule(rounds=rounds, ratio=50 / clients)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))

        class Saving:
            def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
                store.save(Checkpoint(engine.round, engine.server, {"bytes": engine.bytes}))

        Engine(place, Inplace(place), schedule, [Saving()], store).run()
    data = place.federation.data
    print(json.dumps(peak_memory_mb() - (data.x.nbytes + data.y.nbytes) / 1024**2))

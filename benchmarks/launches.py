"""What an accelerator is asked to do in a training step: kernels, transfers and waits of the host.

A small model's step on an accelerator takes as long as it takes to start its kernels. There is no
accelerator here: the pretend one (fedloom.testing.pretend) counts, so the figures are exact and the
same on every machine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

# The pretend accelerator must be known before torch computes its first gradient.
from fedloom.testing.pretend import Counts, Pretend, pretend  # isort: skip

from fedloom.client.batches import batch_rows
from fedloom.client.context import ClientContext
from fedloom.client.fast import stacked
from fedloom.client.fit import fit
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make
from fedloom.core.rng import key
from fedloom.core.tree import Tree
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.base import Results, execute
from fedloom.executors.base import Task as Work
from fedloom.executors.inplace import Inplace, copied
from fedloom.executors.stacked import Vmap
from fedloom.models import Task, build

from .speed import Say, federation

GOALS = {"inplace": 1.05, "vmap": 1 / 8}  # kernels per client step, over those of the bare loop


def measure(quick: bool = False, say: Say | None = None) -> dict[str, Any]:
    """Counts per client step of the bare loop, of `inplace` and of `vmap`, in FedAvg's round."""
    clients, samples = (16, 100) if quick else (16, 300)
    steps = clients * samples // 10
    rows, weights = _trained(clients, samples, torch.float32)
    _, exact = _trained(clients, samples, torch.float64)
    largest = max(float(tensor.abs().max()) for tensor in weights["bare loop"].values())
    figures: dict[str, Any] = {"clients": clients, "steps": steps, "largest": largest}
    for name, row in rows.items():
        figures[name] = {
            "kernels": row.kernels / steps,
            "transfers": (row.to_device + row.to_host) / steps,
            "waits": row.waits / steps,
            "difference": _difference(weights[name], weights["bare loop"]),
            "difference_64": _difference(exact[name], exact["bare loop"]),
        }
    if say:
        _tell(figures, say, {} if quick else GOALS)
    return figures


def _trained(
    clients: int, samples: int, dtype: torch.dtype
) -> tuple[dict[str, Counts], dict[str, Tree]]:
    """What each way counted in a round, and the weights it ended with."""
    rows: dict[str, Counts] = {}
    weights: dict[str, Tree] = {}
    with pretend() as counts:
        for name, way in WAYS.items():
            rows[name], weights[name] = way(_worker(clients, samples, dtype), counts)
    return rows, weights


def _worker(clients: int, samples: int, dtype: torch.dtype) -> ClientWorker:
    """The 4-layer CNN with batches of 10, on the pretend accelerator."""
    torch.manual_seed(key("bench"))
    world = federation(clients, samples)
    if dtype != torch.float32:
        data = world.data
        world = replace(world, data=replace(data, x=data.prepare(data.x).to(dtype)))
    return ClientWorker(
        make("fedavg"),
        world,
        build("cnn", Task((1, 28, 28), 10)).to(dtype),
        Training(batch=10, lr=0.01),
        seed=0,
        devices=(Pretend(),),
    )


def _bare(worker: ClientWorker, counts: Counts) -> tuple[Counts, Tree]:
    """Every client's training as one would write it by hand; only the training is counted."""
    model, device = copy.deepcopy(worker.model).train(), worker.device.torch
    total, trained = Counts(), None
    for k in range(worker.clients):
        model.load_state_dict(dict(worker.first))
        optimizer = torch.optim.SGD(model.parameters(), lr=worker.training.lr, foreach=True)
        rows = torch.from_numpy(worker.rows(k))
        x, y = worker.prepare(worker.samples(rows)), worker.labels(rows)
        before = counts.copy()
        rng = ClientContext(worker, k, 1).rng("batches 0")
        for chosen in batch_rows(
            len(rows), worker.training, len(rows) // 10, rng, move=lambda t: t.to(device)
        ):
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
        total = total + (counts - before)
        weights = Tree(model.state_dict()).map(lambda t: t.detach().cpu() / worker.clients)
        trained = weights if trained is None else trained + weights
    assert trained is not None
    return total, trained


class _Counted:
    """Counts what happens inside of a function."""

    def __init__(self, function: Callable[[Any], Any], counts: Counts) -> None:
        self.total = Counts()
        self._function, self._counts = function, counts

    def __call__(self, work: Any) -> Any:
        before = self._counts.copy()
        done = self._function(work)
        self.total = self.total + (self._counts - before)
        return done


class _CountedInplace(Inplace):
    """`inplace` with a trainer that counts."""

    def __init__(self, worker: ClientWorker, trainer: _Counted) -> None:
        super().__init__(worker)
        self._trainer = trainer

    def run(self, tasks: Iterable[Work]) -> Results:
        for task in tasks:
            yield execute(self.worker, copied(task), self._trainer)


def _inplace(worker: ClientWorker, counts: Counts) -> tuple[Counts, Tree]:
    """A round of the engine, one client after another; only `local.fit` is counted."""
    counted = _Counted(fit, counts)
    engine = Engine(worker, _CountedInplace(worker, counted), Schedule(rounds=1))
    engine.run()
    return counted.total, engine.server.tree("model")


def _stacked(worker: ClientWorker, counts: Counts) -> tuple[Counts, Tree]:
    """A round of the engine with stacked clients; only what trains the stack is counted."""
    plain = stacked.train
    counted = _Counted(plain, counts)
    setattr(stacked, "train", counted)  # noqa: B010 (the executor looks it up there)
    try:
        engine = Engine(worker, Vmap(worker), Schedule(rounds=1))
        engine.run()
    finally:
        stacked.train = plain
    return counted.total, engine.server.tree("model")


WAYS = {"bare loop": _bare, "inplace": _inplace, "vmap": _stacked}


def _difference(a: Tree, b: Tree) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in b)


def _tell(figures: dict[str, Any], say: Say, goals: Mapping[str, float]) -> None:
    """The figures as a table, each beside its goal if it has one."""
    say(f"a FedAvg round of {figures['clients']} clients, 4-layer CNN, batch 10; per client step:")
    bare = figures["bare loop"]["kernels"]
    for name in WAYS:
        row = figures[name]
        line = (
            f"  {name}: {row['kernels']:.1f} kernels ({row['kernels'] / bare:.3f} of the bare "
            f"loop's), {row['transfers']:.2f} transfers, {row['waits']:.2f} waits"
        )
        if name in goals:
            line += f"; goal: at most {goals[name]:.3f}"
        if name != "bare loop":
            line += (
                f"; weights agree to {row['difference']:.1e}, in 64-bit floats to "
                f"{row['difference_64']:.1e}"
            )
        say(line)
    each = figures["steps"] // figures["clients"]
    say(f"  after {each} steps of each client; the largest weight is {figures['largest']:.2f}")

"""The small world in which the checks run a method: a made-up federation, network and dual encoder.

`trace` runs a method there and keeps the outcome in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..adapters import adapt
from ..client.training import Training
from ..client.worker import ClientWorker
from ..core.device import CPU, Device
from ..core.method import Method
from ..core.payload import Payload
from ..core.rng import key, numpy_rng
from ..data.federation import Client, Dataset, Federation
from ..encoders.checks import patterns as class_patterns
from ..encoders.checks import small_dual as small_dual
from ..engine.checkpoint import Checkpoint, Store
from ..engine.engine import Engine
from ..engine.schedule import Schedule
from ..executors.base import Executor, Result, Results, Task, execute
from ..executors.inplace import Inplace
from ..models import Split

ROUNDS = 3


def network(classes: int = 4) -> Split:
    """A small network with BatchNorm (buffers) and dropout (its own randomness)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key("checks", "network"))
        body = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.1),
            nn.Flatten(),
        )
        return Split(body, nn.Linear(96, classes), 96)


def with_frozen_stem(model: Any) -> Any:
    """The network behind layers that its owner has frozen; they have buffers and dropout."""
    stem = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.Dropout(0.5))
    for tensor, value in zip(stem.state_dict().values(), (1, 0.1, 1, 0, 0.1, 2, 5), strict=True):
        tensor.fill_(value)
    model.body = nn.Sequential(stem.requires_grad_(False), *model.body.children())
    return model


def federation(
    sizes: Iterable[int] = (24, 40, 16, 32), only: dict[int, list[int]] | None = None
) -> Federation:
    """Clients of two domains; `only` restricts a client to some classes.

    Class 3 exists by name, but nobody has it.
    """
    rng = numpy_rng("checks", "data")
    patterns = class_patterns(rng)
    xs, ys, domains, clients, at = [], [], [], [], 0
    for k, n in enumerate(sizes):
        labels = rng.choice((only or {}).get(k, [0, 1, 2]), size=n + 20)
        images = patterns[labels] + 0.5 * rng.normal(size=(n + 20, 8, 8)) + (k % 2)
        xs.append(np.clip(128 + 40 * images, 0, 255).astype(np.uint8)[:, None])
        ys.append(labels)
        domains.append(np.full(n + 20, k % 2))
        rows = np.arange(at, at + n + 20)
        clients.append(Client(rows[:n], rows[n : n + 8], rows[n + 8 :], ("plain", "bright")[k % 2]))
        at += n + 20
    data = Dataset(
        name="checks",
        x=torch.from_numpy(np.concatenate(xs)),
        y=torch.from_numpy(np.concatenate(ys)),
        domain=torch.from_numpy(np.concatenate(domains)),
        test=torch.zeros(at, dtype=torch.bool),
        classes=("zero", "one", "two", "nobody's"),
        domains=("plain", "bright"),
    )
    return Federation(data, tuple(clients))


def place(
    method: Method,
    world: Federation | None = None,
    training: Training | None = None,
    device: Device = CPU,
    model: Split | None = None,
    adapter: str | None = None,
) -> ClientWorker:
    """A worker in the small world, on images or on the features of a dual encoder.

    The network has the adapter that the method works on, or the one that is named.
    """
    world, model = world or federation(), model or network()
    if method.traits.world == "dual":
        x = world.data.x[torch.arange(len(world.data.x))].float().flatten(1)
        x = F.normalize(x - x.mean(1, keepdim=True), dim=1)
        world = replace(world, data=replace(world.data, x=x, encoder="checks"))
        model = Split(nn.Flatten(), nn.Linear(64, len(world.data.classes)), 64)
    adapter = adapter or method.traits.adapter
    if adapter is not None:
        adapt(model, adapter, seed=7)
    training = training or Training(**{**method.traits.training, "batch": 8})
    return ClientWorker(method, world, model, training, seed=7, devices=(device,))


@dataclass
class Trace:
    """A run, kept in memory: metrics and what server and clients remember in the end."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    states: list[list[bytes]] = field(default_factory=list)  # per round, per client
    server: Payload = field(default_factory=Payload)

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Note server and states after a round."""
        if record:
            self.metrics.append(record)
        self.states.append([engine.store.get(k).encode() for k in range(engine.worker.clients)])
        self.server = engine.server


@dataclass
class Notes:
    """What was seen of tasks and results during a run."""

    changed: list[str] = field(default_factory=list)  # inputs that are not what they were
    sent: set[str] = field(default_factory=set)  # names of all that was uploaded
    bytes: dict[str, int] = field(
        default_factory=lambda: {"up": 0, "down": 0}
    )  # in training, not in evaluation


def trace(
    method: Method,
    world: Federation | None = None,
    wrap: Callable[[ClientWorker], Executor] = Inplace,
    folder: Path | None = None,
    trained_as: Method | None = None,
    device: Device = CPU,
    model: Split | None = None,
    **schedule: Any,
) -> Trace:
    """Run a method in the small world, with its own training and adapter or another method's."""
    traits = (trained_as or method).traits
    training = Training(**{**traits.training, "batch": 8})
    worker = place(method, world, training, device, model, traits.adapter)
    seen, store = Trace(), Store(folder)
    executor = wrap(worker)
    try:
        engine = Engine(worker, executor, Schedule(**{"rounds": ROUNDS, **schedule}), [seen], store)
        engine.run(store.load() if folder else None)
        if folder:
            store.save(Checkpoint(engine.round, engine.server, {"bytes": engine.bytes}))
    finally:
        executor.close()
    return seen


_TRACES: dict[tuple[type[Method], str], Trace] = {}
_WATCHED: dict[tuple[type[Method], str], tuple[Trace, Notes]] = {}


def usual(method: Method) -> Trace:
    """The plain run that many checks compare with, computed once per method."""
    token = (type(method), repr(method.params()))
    if token not in _TRACES:
        _TRACES[token] = trace(method)
    return _TRACES[token]


def watched(method: Method) -> tuple[Trace, Notes]:
    """The plain run again, with notes on what crossed the boundary, computed once per method."""
    token = (type(method), repr(method.params()))
    if token not in _WATCHED:
        notes = Notes()
        _WATCHED[token] = trace(method, wrap=lambda worker: Watching(worker, notes)), notes
    return _WATCHED[token]


def same(a: Trace, b: Trace, what: str) -> None:
    """Fail unless two runs agree to the last bit."""
    for mine, theirs in zip(a.metrics, b.metrics, strict=True):
        for name in mine:
            assert mine[name] == theirs[name], f"{what}: round {mine['round']} differs in {name!r}"
    assert a.server.equal(b.server), f"{what}: the server differs"
    assert a.states[-1] == b.states[-1], f"{what}: a client's state differs"


class Backwards(Inplace):
    """Executes the last task first, so also a round before the evaluation of the previous one.

    It hands results on in the order of tasks, as an executor must.
    """

    eager = True

    def run(self, tasks: Iterable[Task]) -> Results:
        results = list(super().run(reversed(list(tasks))))
        yield from reversed(results)


class Watching(Inplace):
    """Notes what its tasks receive and return, and whether executing one changes its payloads."""

    def __init__(self, worker: ClientWorker, notes: Notes) -> None:
        super().__init__(worker)
        self.notes = notes

    def run(self, tasks: Iterable[Task]) -> Results:
        for task in tasks:
            down, state = task.down.encode(), task.state.encode()
            result = execute(self.worker, task)
            for what, was, now in (("download", down, task.down), ("state", state, task.state)):
                if now.encode() != was:
                    self.notes.changed.append(f"{task.kind} changes the {what} it was given")
            result = Result.decode(b"".join(result.encode()))
            self.notes.sent.update(result.upload)
            if task.kind == "client":
                self.notes.bytes["down"] += len(down)
            if task.kind in ("hello", "client"):
                self.notes.bytes["up"] += len(result.upload.encode())
            yield result

"""The unit of work: a `Task` goes to a client, a `Result` comes back. Both can be written as one payload."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from ..client.context import ClientContext, Trainer
from ..client.fit import fit
from ..client.scoring import score
from ..client.worker import ClientWorker
from ..core.errors import ClientError
from ..core.local import Predictor
from ..core.payload import Bytes, Payload
from ..core.rng import key
from ..metrics.registry import DEFAULT

T = TypeVar("T")
Kind = Literal["hello", "client", "before", "common"]


@dataclass(frozen=True)
class Task:
    """What one worker does in one go.

    `hello` and `client` are the method's hooks. `before` scores client's personal model from a download. `common`
    scores the common model on several clients' samples; its `down` is the server.
    """

    kind: Kind
    round: int
    clients: tuple[int, ...]
    down: Payload = field(default_factory=Payload)
    state: Payload = field(default_factory=Payload)
    splits: tuple[str, ...] = ()  # which samples to score (after training, for `client`)
    work: float = 1.0
    metric: str = DEFAULT  # the headline, which validation samples are scored by

    def encode(self, down: bytes | None = None, repeats: bool = False) -> list[Bytes]:
        """The task as bytes, in parts. `down` is the download as bytes, if they are known already; it is left out if it
        `repeats` that of the task before."""
        told = Payload(
            kind=self.kind,
            round=self.round,
            clients=torch.tensor(self.clients),
            splits=" ".join(self.splits),
            work=self.work,
            metric=self.metric,
            repeats=repeats,
        )
        download = [] if repeats else self.down.parts() if down is None else [down]
        return _packed(told.parts(), download, self.state.parts())

    @staticmethod
    def decode(data: bytes | memoryview, before: Payload | None = None) -> Task:
        """The task whose parts these are, one after another; `before` is the download of the task before."""
        told, down, state = _unpacked(data, kept=True)
        p: Any = told
        if p["repeats"] and before is not None:
            down = before.copy()
        return Task(
            p["kind"],
            p["round"],
            tuple(p["clients"].tolist()),
            down,
            state,
            tuple(p["splits"].split()),
            p["work"],
            p["metric"],
        )


@dataclass(frozen=True)
class Result:
    """What came of a task. `scores` maps a split to a row per client of the task, see
    `client.scoring.score`. `settled` says that nothing which a client may receive has a part in them: they hold
    until it trains again."""

    clients: tuple[int, ...]
    upload: Payload = field(default_factory=Payload)
    state: Payload = field(default_factory=Payload)
    scores: dict[str, Tensor] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    settled: bool = False

    def encode(self) -> list[Bytes]:
        """The result as bytes, in parts."""
        told = Payload(
            clients=torch.tensor(self.clients),
            scores=Payload(self.scores),
            losses=Payload(self.losses),
            settled=self.settled,
        )
        return _packed(told.parts(), self.upload.parts(), self.state.parts())

    @staticmethod
    def decode(data: bytes | memoryview) -> Result:
        """The result whose parts these are, one after another."""
        told, upload, state = _unpacked(data)
        p: Any = told
        scores, losses = dict(p.group("scores")), dict(p.group("losses"))
        return Result(tuple(p["clients"].tolist()), upload, state, scores, losses, p["settled"])


def _packed(*payloads: Sequence[Bytes]) -> list[Bytes]:
    return [*(sum(map(len, parts)).to_bytes(8, "little") for parts in payloads), *chain(*payloads)]


def _unpacked(data: bytes | memoryview, kept: bool = False) -> list[Payload]:
    """The three payloads, sealed: a state, which may be large, is unpacked by the client alone. The second is made of
    bytes, which copies share, if it will be `kept`."""
    place, payloads = 24, []
    for i in range(3):
        end = place + int.from_bytes(data[8 * i : 8 * i + 8], "little")
        payloads.append(Payload.sealed((bytes if kept and i == 1 else bytearray)(data[place:end])))
        place = end
    return payloads


Results = Generator[Result, None, None]


class LastPayload(Generic[T]):
    """What `make` gives for a payload, kept for as long as the same one comes again.

    Many methods send the same download to everybody.
    """

    def __init__(self, make: Callable[[Payload], T]) -> None:
        self._make = make
        self._kept: tuple[Payload, tuple[object, ...], T] | None = None

    def __call__(self, payload: Payload) -> T:
        mark = payload.mark()
        if self._kept is None or self._kept[1] != mark:
            # The payload is held on to: while it exists, no other one has its mark.
            self._kept = payload, mark, self._make(payload)
        return self._kept[2]


class Executor(Protocol):
    """Runs tasks. Results come in the order of the tasks, whoever finishes first.

    `remote` says that clients are elsewhere: some may not answer, then their results are missing; and the server as a
    whole (the task `common`) is not shown to them. `eager` says that tasks are begun before their results are asked
    for, so that a stream may go on with what comes next while the first results are looked at.
    """

    @property
    def remote(self) -> bool:
        """Whether clients are elsewhere."""
        ...

    @property
    def eager(self) -> bool:
        """Whether tasks are begun before their results are asked for."""
        ...

    def run(self, tasks: Iterable[Task]) -> Results:
        """Execute the tasks; they are drawn one by one, as there is room."""
        ...

    @property
    def processes(self) -> list[int]:
        """The ids of worker processes."""
        ...

    def close(self) -> None:
        """Give back processes and settings."""
        ...


def execute(worker: ClientWorker, task: Task, trainer: Trainer = fit) -> Result:
    """Do a task with what a worker has. A failure names round, client and step.

    `trainer` does the training of the hook `client`; see `ClientContext`.
    """
    local = ClientContext(worker, task.clients[0], task.round, task.work, trainer)
    # The model's own randomness (dropout) has its key too, and the caller's generator is left alone.
    with torch.random.fork_rng(devices=[]):
        # Not `torch.manual_seed`: it formats a stack trace for devices that are not there, a millisecond each time.
        torch.default_generator.manual_seed(key(worker.seed, task.round, local.id, task.kind))
        try:
            return _execute(worker, task, local)
        except Exception as error:
            step = f", step {local.step}" if local.step else ""
            said = f"{type(error).__name__}: {error}"
            raise ClientError(
                f"{task.kind} failed in round {task.round}, client {local.id}{step}: {said}"
            ) from error


def _execute(worker: ClientWorker, task: Task, local: ClientContext) -> Result:
    method = worker.method
    if task.kind == "hello":
        return Result(task.clients, upload=method.hello(local))
    if task.kind == "client":
        update = method.client(task.down, task.state, local)
        # Prediction gets a `Local` of its own: what a method trains before it predicts (fine-tuning) is no part of the
        # round's losses, and a straggler is slow in training only.
        fresh = ClientContext(worker, local.id, task.round)
        trained = Payload.sealed(update.trained)
        predict = method.personal(trained, update.state, fresh) if task.splits else None
        scores = _scores(worker, predict, task)
        # What a method trains before it predicts meets other noise in the task `before`.
        settled = bool(scores) and not trained.opened and not fresh.trained
        return Result(task.clients, update.upload, update.state, scores, local.losses(), settled)
    if task.kind == "before":
        predict = method.personal(task.down, task.state, local)
        return Result(task.clients, scores=_scores(worker, predict, task))
    return Result(task.clients, scores=_scores(worker, method.common(task.down, worker), task))


def _scores(worker: ClientWorker, predict: Predictor | None, task: Task) -> dict[str, Tensor]:
    return score(worker, predict, task.clients, task.splits, task.metric)

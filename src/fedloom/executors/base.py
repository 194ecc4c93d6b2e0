"""The unit of work: a `Task` goes to a client, a `Result` comes back. Both can become bytes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from ..client.context import ClientContext, Trainer
from ..client.fit import fit
from ..client.memory import GROUP as MEMORY
from ..client.memory import Memory, without_memory
from ..client.scaling import GROUP, LossScaler, without_scale
from ..client.scoring import score
from ..client.standard import standard_in, with_group, without_group
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

    `hello` and `client` are the method's hooks. `before` scores a client's personal model from a
    download. `common` scores the common model on several clients' samples; its `down` is the
    server.
    """

    kind: Kind
    round: int
    clients: tuple[int, ...]
    down: Payload = field(default_factory=Payload)
    state: Payload = field(default_factory=Payload)
    splits: tuple[str, ...] = ()  # which samples to score (after training, for `client`)
    work: float = 1.0
    metric: str = DEFAULT  # the headline, which decides what is counted

    def encode(self, down: bytes | None = None, repeats: bool = False) -> list[Bytes]:
        """The task as bytes, in parts.

        `down` is the download as bytes, if they exist already. The download is left out if it
        `repeats` that of the task before.
        """
        fields = Payload(
            kind=self.kind,
            round=self.round,
            clients=torch.tensor(self.clients),
            splits=" ".join(self.splits),
            work=self.work,
            metric=self.metric,
            repeats=repeats,
        )
        download: list[Bytes] = []
        if not repeats:
            download = self.down.parts() if down is None else [down]
        return _packed(fields.parts(), download, self.state.parts())

    @staticmethod
    def decode(data: bytes | memoryview, before: Payload | None = None) -> Task:
        """The task in these bytes; `before` is the download of the task before."""
        fields, down, state = _unpacked(data, share_second=True)
        p: Any = fields
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
    """The outcome of a task.

    `scores` maps a split to a row per client of the task, see `client.scoring.score`. `settled`
    says that nothing that the client may receive affects them: they hold until it trains again.
    """

    clients: tuple[int, ...]
    upload: Payload = field(default_factory=Payload)
    state: Payload = field(default_factory=Payload)
    scores: dict[str, Tensor] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    settled: bool = False

    def encode(self) -> list[Bytes]:
        """The result as bytes, in parts."""
        fields = Payload(
            clients=torch.tensor(self.clients),
            scores=Payload(self.scores),
            losses=Payload(self.losses),
            settled=self.settled,
        )
        return _packed(fields.parts(), self.upload.parts(), self.state.parts())

    @staticmethod
    def decode(data: bytes | memoryview) -> Result:
        """The result in these bytes."""
        fields, upload, state = _unpacked(data)
        p: Any = fields
        scores = dict(p.group("scores"))
        losses = dict(p.group("losses"))
        return Result(tuple(p["clients"].tolist()), upload, state, scores, losses, p["settled"])


def _packed(*payloads: Sequence[Bytes]) -> list[Bytes]:
    """The lengths of the payloads, then the payloads."""
    lengths = [sum(map(len, parts)).to_bytes(8, "little") for parts in payloads]
    return [*lengths, *chain(*payloads)]


def _unpacked(data: bytes | memoryview, share_second: bool = False) -> list[Payload]:
    """The three payloads, sealed: only the client itself unpacks its state, which may be large.

    With `share_second`, copies of the second payload share its bytes.
    """
    start = 24
    payloads = []
    for i in range(3):
        end = start + int.from_bytes(data[8 * i : 8 * i + 8], "little")
        kind = bytes if share_second and i == 1 else bytearray
        payloads.append(Payload.sealed(kind(data[start:end])))
        start = end
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

    `remote` says that clients are elsewhere: some may not answer, so results may be missing, and
    they never see the server as a whole (the task `common`). `eager` says that tasks begin before
    anybody asks for their results, so that workers are busy while the first results are used.
    """

    @property
    def remote(self) -> bool:
        """Whether clients are elsewhere."""
        ...

    @property
    def eager(self) -> bool:
        """Whether tasks begin before anybody asks for their results."""
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
    worker = worker.of(task.clients[0])
    local = ClientContext(worker, task.clients[0], task.round, task.work, trainer)
    # The model's own randomness (dropout) has its key too; the caller's generators stay untouched.
    with worker.device.seeded(key(worker.seed, task.round, local.id, task.kind)):
        try:
            return _execute(worker, task, local)
        except Exception as error:
            step = f", step {local.step}" if local.step else ""
            reason = f"{type(error).__name__}: {error}"
            raise ClientError(
                f"{task.kind} failed in round {task.round}, client {local.id}{step}: {reason}"
            ) from error


def _execute(worker: ClientWorker, task: Task, local: ClientContext) -> Result:
    """Do a task on the worker's device: what arrives moves there, what leaves moves to the CPU."""
    method = worker.method
    down, state = worker.arrived(task.down), worker.arrived(task.state)
    worker.standard = standard = None
    if worker.standardise != "raw" and task.kind != "hello":
        worker.adopt(local.id, down, state)
        standard = standard_in(down, state)
        down, state = without_group(down), without_group(state)
    if worker.training.precision == "fp16":
        local.scaler = LossScaler(worker.device.torch, state)
        state = without_scale(state)
    if worker.training.keep_optimizer:
        if task.kind == "client":
            local.memory = Memory(state)
        state = without_memory(state)
    if task.kind == "hello":
        hello = method.hello(local)
        if worker.standardise == "common":
            hello = with_group(hello, worker.report(local.id))
        return Result(task.clients, upload=worker.leaving(hello))
    if task.kind == "client":
        update = method.client(down, state, local)
        # Prediction has its own context: what a method trains before it predicts (fine-tuning) does
        # not count for the round's losses, and a straggler is slow only in training.
        fresh = ClientContext(worker, local.id, task.round)
        trained = Payload.sealed(update.trained)
        predict = method.personal(trained, update.state, fresh) if task.splits else None
        scores = _scores(worker, predict, task, fresh)
        # What a method trains before it predicts draws other random numbers in the task `before`.
        settled = bool(scores) and not trained.opened and not fresh.trained
        upload, kept = worker.leaving(update.upload), worker.leaving(update.state)
        if standard is not None:
            kept = worker.leaving(with_group(kept, standard))
        if local.scaler is not None:
            kept = kept.replace(**{GROUP: local.scaler.state()})
        if local.memory is not None:
            kept = kept.replace(**{MEMORY: worker.leaving(local.memory.state())})
        return Result(task.clients, upload, kept, scores, local.losses(), settled)
    if task.kind == "before":
        predict = method.personal(down, state, local)
        return Result(task.clients, scores=_scores(worker, predict, task, local))
    predict = method.common(down, worker)
    return Result(task.clients, scores=_scores(worker, predict, task, local))


def _scores(
    worker: ClientWorker, predict: Predictor | None, task: Task, local: ClientContext
) -> dict[str, Tensor]:
    if predict is not None:
        local.settle_statistics()
    return score(worker, predict, task.clients, task.splits, task.metric)

"""The contract that every method passes, on a small made-up federation; usable on a user's own method.

From a test file:  `@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)` and `check(MyMethod())`.
From a shell:      `fedloom check mymethod.py`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..client.context import ClientWorker
from ..client.training import Training
from ..core.errors import FedloomError
from ..core.lookup import find, make
from ..core.method import Method
from ..core.payload import Payload
from ..core.rng import key, numpy_rng
from ..data.federation import Client, Dataset, Federation
from ..encoders import Context, Dual, Encoder, Preprocess, TextEncoder
from ..encoders.texts import Hashed
from ..engine.checkpoint import Checkpoint, Store
from ..engine.engine import Engine
from ..engine.schedule import Schedule
from ..executors.base import Executor, Result, Results, Task
from ..executors.inplace import Inplace
from ..executors.pool import Pool
from ..models import Split

Check = Callable[[Method], None]
CHECKS: list[Check] = []
ROUNDS = 3


@dataclass(frozen=True)
class CheckResult:
    """How a check ended: passed, failed (then `error` says why), or not for this method (then `about` says why)."""

    name: str
    about: str
    error: str | None = None
    applies: bool = True


class NotApplicable(Exception):
    """Raised by a check that has nothing to check in a method; the message says why."""


def run_checks(method: str | Method) -> Iterator[CheckResult]:
    """Put a method through all checks, one by one."""
    made = make(method) if isinstance(method, str) else method
    for check in CHECKS:
        name, about = check.__name__.removeprefix("check_"), (check.__doc__ or "").split("\n")[0]
        try:
            check(made)
        except NotApplicable as reason:
            yield CheckResult(name, str(reason), applies=False)
        except Exception as error:  # a check reports whatever goes wrong in the method
            yield CheckResult(
                name,
                about,
                f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
            )
        else:
            yield CheckResult(name, about)


# -- the small world ------------------------------------------------------------------------------------------------
def network(classes: int = 4) -> Split:
    """A network with BatchNorm (buffers) and dropout (its own randomness), small enough for many runs."""
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


def federation(
    sizes: Iterable[int] = (24, 40, 16, 32), only: dict[int, list[int]] | None = None
) -> Federation:
    """Clients of two domains. Class 3 exists by name, but nobody has it; `only` restricts clients to some classes."""
    rng = numpy_rng("checks", "data")
    patterns = rng.normal(size=(3, 8, 8))
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


def small_dual() -> Dual:
    """The dual encoder of the small world: an image is its pixels without their mean, a class name its pattern.

    It reads the world's three names; any other text is a pseudo-random vector. Context vectors shift a class's row.
    """
    patterns = numpy_rng("checks", "data").normal(size=(3, 8, 8)).reshape(3, 64).astype(np.float32)
    known = {
        name: torch.from_numpy(p) for name, p in zip(("zero", "one", "two"), patterns, strict=True)
    }

    def embed(texts: Sequence[str]) -> torch.Tensor:
        spoken = [next((w for w in re.findall(r"\w+", text) if w in known), None) for text in texts]
        return torch.stack(
            [known[w] if w else Hashed(64).word(t) for w, t in zip(spoken, texts, strict=True)]
        )

    def prompted(classes: Sequence[str], context: torch.Tensor) -> torch.Tensor:
        return embed(classes) * (1 + context.mean(0)) + 0.1 * context.mean(0)

    size = Preprocess(8)
    return Dual(
        "checks", Encoder("checks", 64, size, nn.Flatten, settings="checks"), TextEncoder("checks", 64, embed, "{}"),
        lambda: 10.0, Context(64, prompted),
    )  # fmt: skip


def place(
    method: Method, world: Federation | None = None, training: Training | None = None
) -> ClientWorker:
    """A worker in the small world, as the method wants it: images, or the features of a dual encoder."""
    world, model = world or federation(), network()
    if method.traits.world == "dual":
        x = world.data.x[torch.arange(len(world.data.x))].float().flatten(1)
        x = F.normalize(x - x.mean(1, keepdim=True), dim=1)
        world = replace(world, data=replace(world.data, x=x, encoder="checks"))
        model = Split(nn.Flatten(), nn.Linear(64, len(world.data.classes)), 64)
    return ClientWorker(
        method, world, model, training or Training(**{**method.traits.training, "batch": 8}), seed=7
    )


@dataclass
class Trace:
    """A run, kept in memory: metrics and what server and clients remember in the end."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    states: list[list[bytes]] = field(default_factory=list)  # per round, per client
    server: Payload = field(default_factory=Payload)

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Note what there is after a round."""
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
    **schedule: Any,
) -> Trace:
    """Run a method in the small world, with its own local training or with another method's."""
    worker = place(
        method, world, Training(**{**(trained_as or method).traits.training, "batch": 8})
    )
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
    """The plain run once more, with notes on all that crossed the boundary, computed once per method."""
    token = (type(method), repr(method.params()))
    if token not in _WATCHED:
        notes = Notes()
        _WATCHED[token] = trace(method, wrap=lambda worker: _Watching(worker, notes)), notes
    return _WATCHED[token]


def same(a: Trace, b: Trace, what: str) -> None:
    """Fail unless two runs agree to the last bit."""
    for mine, theirs in zip(a.metrics, b.metrics, strict=True):
        for name in mine:
            assert mine[name] == theirs[name], f"{what}: round {mine['round']} differs in {name!r}"
    assert a.server.equal(b.server), f"{what}: the server differs"
    assert a.states[-1] == b.states[-1], f"{what}: a client's state differs"


def check(fn: Check) -> Check:
    """Add a function to the contract."""
    CHECKS.append(fn)
    return fn


# -- the contract ---------------------------------------------------------------------------------------------------
@check
def check_defaults(method: Method) -> None:
    """It can be made without arguments, is frozen, and refuses unknown settings by name."""
    made = find(type(method).origin or method.name)()
    try:
        made.name_that_no_method_has = 1  # type: ignore[attr-defined]
    except AttributeError:  # frozen
        pass
    else:
        raise AssertionError("attributes can be set on the method: it could remember things")
    try:
        make(type(method).origin or method.name, {"no_such_setting": 1})
    except FedloomError as error:
        assert "no_such_setting" in str(error)
    else:
        raise AssertionError("an unknown setting was accepted")


@check
def check_deterministic(method: Method) -> None:
    """The same seed gives the same bits."""
    same(usual(method), watched(method)[0], "second run")


@check
def check_pool(method: Method) -> None:
    """A worker process for each client gives the same bits as one process for all."""
    same(usual(method), trace(method, wrap=partial(Pool, workers=4)), "4 workers")


@check
def check_order(method: Method) -> None:
    """It does not matter in which order clients finish."""
    same(usual(method), trace(method, wrap=_Backwards), "clients finishing in reverse order")


@check
def check_resume(method: Method) -> None:
    """A run that stops after every round and goes on from its files ends as one that never stopped."""
    with tempfile.TemporaryDirectory() as folder:
        for stop in range(1, ROUNDS + 1):
            rest = trace(method, folder=Path(folder), rounds=stop)
            where = f"stopped before round {stop}"
            assert rest.metrics == usual(method).metrics[stop - 1 : stop], (
                f"{where}: metrics differ"
            )
            assert rest.states[-1] == usual(method).states[stop - 1], (
                f"{where}: a client's state differs"
            )
        assert rest.server.equal(usual(method).server), (
            "stopped after every round: the server differs"
        )


@check
def check_neutral(method: Method) -> None:
    """With its neutral values it is the method it grew out of, step by step."""
    if method.traits.neutral is None:
        raise NotApplicable("it declares no neutral values")
    values, parent = method.traits.neutral
    quiet, plain = type(method)(**{**method.params(), **values}), make(parent)
    _alike(
        usual(quiet),
        trace(plain, trained_as=method),
        method.traits.stage,
        f"with {dict(values)}",
        parent,
    )


@check
def check_alone(method: Method) -> None:
    """With one client (and neutral values) it is plain training."""
    if method.traits.alone is None:
        raise NotApplicable("it says that one client is not plain training (alone = None)")
    values = {**(method.traits.neutral[0] if method.traits.neutral else {}), **method.traits.alone}
    quiet, world = type(method)(**{**method.params(), **values}), federation(sizes=(40,))
    what = f"one client{f', with {values}' if values else ''} (the attribute `alone` says which values, or None)"
    _alike(
        trace(quiet, world),
        trace(make("local"), world, trained_as=method),
        "after",
        what,
        "local",
        digits=6,
    )


def _alike(
    ours: Trace, theirs: Trace, stage: str, what: str, parent: str, digits: int = 16
) -> None:
    """Fail unless clients' models score the same, and, where both report it, the plain loss is the same."""
    for mine, other in zip(ours.metrics, theirs.metrics, strict=True):
        for k, (a, b) in enumerate(
            zip(mine["clients"][stage], other["clients"][stage], strict=True)
        ):
            same = a == b or (a is not None and b is not None and round(a - b, digits) == 0)
            where = f"{what}: in round {mine['round']} the model of client {k}"
            assert same, f"{where} scores {a}, that of {parent} {b}"
        a, b = mine["loss"].get("ce"), other["loss"].get("ce")
        close = (
            a is None or b is None or abs(a - b) <= 10.0 ** (-min(digits, 6) + 2) * max(1, abs(b))
        )
        assert close, f"{what}: in round {mine['round']} the loss 'ce' is {a}, that of {parent} {b}"


@check
def check_hard_clients(method: Method) -> None:
    """One sample, one class, the highest class missing, a class nobody has: it works, with finite numbers."""
    world = federation(sizes=(1, 30, 12, 9), only={1: [0], 2: [0, 1], 3: [2]})
    _finite(trace(method, world), "hard clients")


@check
def check_absence(method: Method) -> None:
    """Half the cohort gone, clients never sampled: it works, and an absent client's state does not change."""
    lost = {1: [1, 3], 2: [0, 1, 2, 3]}
    seen = trace(method, dropouts=lost)
    _finite(seen, "drop-outs")
    assert seen.states[0][1] == Payload().encode(), "a client that was lost in round 1 has a state"
    assert seen.states[0] == seen.states[1], "everybody was lost in round 2, yet a state changed"
    few = trace(method, ratio=0.25, rounds=4)
    _finite(few, "a quarter of the clients a round")
    for before, after in zip(few.states, few.states[1:], strict=False):
        changed = [k for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        assert len(changed) <= 1, f"one client took part, yet the states of {changed} changed"


@check
def check_stragglers(method: Method) -> None:
    """Clients that manage only part of their steps are still of use."""
    _finite(trace(method, stragglers=0.5, straggler_work=0.3), "stragglers")


@check
def check_evaluation(method: Method) -> None:
    """Evaluating every round or only at the end gives the same server and states."""
    rarely = trace(method, eval_every=ROUNDS)
    assert rarely.server.equal(usual(method).server), "evaluation changes the server"
    assert rarely.states[-1] == usual(method).states[-1], "evaluation changes a client's state"
    assert rarely.metrics[-1]["personal"] == usual(method).metrics[-1]["personal"], (
        "evaluation changes accuracy"
    )


@check
def check_inputs(method: Method) -> None:
    """What it is given is not changed: downloads, states, the server."""
    changed = watched(method)[1].changed
    assert not changed, changed[0]
    worker = place(method)
    server = usual(method).server
    before = server.encode()
    for k in range(worker.clients):
        method.download(server, k)
    method.common(server, worker)
    assert server.encode() == before, "download or common changes the server"


@check
def check_copies(method: Method) -> None:
    """The server keeps no tensor of an upload: changing one afterwards changes nothing."""
    worker = place(method)
    server = usual(method).server
    states = [Payload.decode(s) for s in usual(method).states[-1]]
    tasks = (
        Task("client", ROUNDS + 1, (k,), method.download(server, k), states[k])
        for k in range(worker.clients)
    )
    executor = Inplace(worker)
    uploads = [(r.clients[0], r.upload) for r in executor.run(tasks)]
    executor.close()
    was = server.encode()
    after = method.aggregate(server, iter(uploads))
    encoded = after.encode()
    for _, upload in uploads:
        for value in upload.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
    assert after.encode() == encoded, "the server holds on to an upload's memory"
    assert server.encode() == was, "aggregate changes the server it was given"


@check
def check_bytes(method: Method) -> None:
    """The bytes it reports are the bytes of what was serialised."""
    seen, notes = watched(method)
    reported = seen.metrics[-1]["bytes_total"]
    assert reported == notes.bytes, f"reported {reported}, serialised {notes.bytes}"


@check
def check_roles(method: Method) -> None:
    """Tensors that stay with the client, and frozen ones, are not in any upload."""
    worker = place(method)
    kept = {f"/{n}" for n in (*worker.roles.names("private"), *worker.roles.names("frozen"))}
    leaked = sorted(n for n in watched(method)[1].sent if any(n.endswith(k) for k in kept))
    assert not leaked, f"private or frozen tensor {leaked[0]!r} was sent"


@check
def check_common(method: Method) -> None:
    """If it says that all clients use the common model, they do."""
    if method.traits.personalised:
        raise NotApplicable("it gives each client its own model")
    record = usual(method).metrics[-1]
    assert record["common"] is not None, "personalised = False, but there is no common model"
    worker = place(method)
    server, states = usual(method).server, usual(method).states[-1]
    tasks = (
        Task(
            "before", ROUNDS, (k,), method.download(server, k), Payload.decode(states[k]), ("test",)
        )
        for k in range(worker.clients)
    )
    executor = Inplace(worker)
    own = [r.scores["test"][0].tolist() for r in executor.run(tasks)]
    executor.close()
    assert [c / n for c, n in own] == record["clients"]["common"], (
        "a client's own model differs from the common one"
    )


@check
def check_learns(method: Method) -> None:
    """It beats chance on an easy task."""

    def best(seen: Trace) -> float:
        return max(m["personal"]["accuracy_mean"] for m in seen.metrics)

    reached = best(usual(method))  # most need no more rounds than these
    reached = reached if reached > 0.5 else best(trace(method, rounds=6))
    assert reached > 0.5, (
        f"only {100 * reached:.0f} % after 6 rounds on three easy classes (chance is 33 %)"
    )


# -- executors that watch -------------------------------------------------------------------------------------------
class _Backwards(Inplace):
    """Executes the last task first, so also a round before the evaluation of the one before it; hands results on in the
    order of tasks, as an executor must."""

    eager = True

    def run(self, tasks: Iterable[Task]) -> Results:
        results = list(super().run(reversed(list(tasks))))
        yield from reversed(results)


class _Watching(Inplace):
    """Notes what its tasks are given and give, and whether executing one changes its payloads."""

    def __init__(self, worker: ClientWorker, notes: Notes) -> None:
        super().__init__(worker)
        self.notes = notes

    def run(self, tasks: Iterable[Task]) -> Results:
        from ..executors.base import execute

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


def _finite(seen: Trace, what: str) -> None:
    for record in seen.metrics:
        values = [record["personal"]["accuracy_mean"], *record["loss"].values()]
        assert np.isfinite(values).all(), f"{what}: round {record['round']} has {values}"
    for name, value in seen.server.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert torch.isfinite(value).all(), f"{what}: the server's {name!r} is not finite"

"""The contract that every method passes, on a small made-up federation.

From a shell: `fedloom check mymethod.py`. From a test file:

    @pytest.mark.parametrize("check", applicable(MyMethod()), ids=str)
    def test_contract(check):
        check(MyMethod())
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..client.worker import ClientWorker
from ..core.errors import FedloomError
from ..core.lookup import find, make
from ..core.method import Method
from ..core.payload import Payload
from ..core.roles import frozen_in
from ..deploy import export, load
from ..executors.base import Executor, Task
from ..executors.inplace import Inplace
from ..executors.pool import Pool
from ..models.onnx import close
from . import on_device
from .exports import exportable, scores_of
from .small_world import (
    ROUNDS,
    Backwards,
    Notes,
    Trace,
    Watching,
    federation,
    network,
    place,
    same,
    trace,
    usual,
    watched,
    with_frozen_stem,
)


@dataclass(frozen=True)
class Check:
    """One clause of the contract: call it with a method, and it raises what is wrong."""

    run: Callable[[Method], None]
    # Why a method cannot be put to this check, known without running it; None: it can.
    why_not: Callable[[Method], str | None]

    @property
    def name(self) -> str:
        """The name of the check, as `fedloom check` prints it."""
        return self.run.__name__.removeprefix("check_")

    @property
    def about(self) -> str:
        """What the check demands, in one sentence."""
        return (self.run.__doc__ or "").split("\n")[0]

    def __str__(self) -> str:
        return self.name

    def __call__(self, method: Method) -> None:
        self.run(method)


@dataclass(frozen=True)
class CheckResult:
    """How a check ended: passed, failed (`error` says why) or not applicable (`about` says why)."""

    name: str
    about: str
    error: str | None = None
    applies: bool = True


CHECKS: list[Check] = []


def applicable(method: Method) -> list[Check]:
    """The checks that apply to a method."""
    return [check for check in CHECKS if check.why_not(method) is None]


def run_checks(method: str | Method) -> Iterator[CheckResult]:
    """Put a method through all checks, one by one; those that do not apply say why."""
    if isinstance(method, str):
        method = make(method)
    for check in CHECKS:
        reason = check.why_not(method)
        if reason is not None:
            yield CheckResult(check.name, reason, applies=False)
            continue
        try:
            check(method)
        except Exception as error:  # a check reports whatever goes wrong in the method
            words = type(error).__name__
            if str(error):
                words = f"{words}: {error}"
            yield CheckResult(check.name, check.about, words)
        else:
            yield CheckResult(check.name, check.about)


def _always(method: Method) -> None:
    return None


def check(why_not: Callable[[Method], str | None] = _always) -> Callable[[Any], Check]:
    """Add a function to the contract, for all methods or for those without a reason against it."""

    def add(run: Callable[[Method], None]) -> Check:
        CHECKS.append(Check(run, why_not))
        return CHECKS[-1]

    return add


def _without_neutral(method: Method) -> str | None:
    if method.traits.neutral is None:
        return "it declares no neutral values"
    return None


def _never_alone(method: Method) -> str | None:
    if method.traits.alone is None:
        return "it says that one client is not plain training (alone = None)"
    return None


def _transductive(method: Method) -> str | None:
    if method.traits.transductive:
        return "what it predicts for a sample depends on the others that are asked about with it"
    return None


def _on_features(method: Method) -> str | None:
    if method.traits.world == "dual":
        return "its network is a head on features of a frozen encoder"
    return None


def _personalised(method: Method) -> str | None:
    if method.traits.personalised:
        return "it gives each client its own model"
    return None


@check()
def check_defaults(method: Method) -> None:
    """It can be made without arguments, is frozen, and refuses unknown settings by name."""
    instance = find(type(method).origin or method.name)()
    try:
        instance.name_that_no_method_has = 1  # type: ignore[attr-defined]
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


@check()
def check_deterministic(method: Method) -> None:
    """The same seed gives the same bits."""
    same(usual(method), watched(method)[0], "second run")


@check()
def check_pool(method: Method) -> None:
    """A worker process for each client gives the same bits as one process for all."""
    same(usual(method), trace(method, wrap=partial(Pool, workers=4)), "4 workers")


@check(on_device.why_not)
def check_device(method: Method) -> None:
    """An accelerator computes what the CPU does, and training waits for it at most once per fit."""
    on_device.compare(method)


@check()
def check_order(method: Method) -> None:
    """It does not matter in which order clients finish."""
    same(usual(method), trace(method, wrap=Backwards), "clients finishing in reverse order")


@check()
def check_resume(method: Method) -> None:
    """A run that stops after every round and resumes ends as one that never stopped."""
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


@check(_without_neutral)
def check_neutral(method: Method) -> None:
    """With its neutral values it is the method it grew out of, step by step."""
    assert method.traits.neutral is not None
    values, parent = method.traits.neutral
    quiet, plain = type(method)(**{**method.params(), **values}), make(parent)
    _alike(
        usual(quiet),
        trace(plain, trained_as=method),
        method.traits.stage,
        f"with {dict(values)}",
        parent,
    )


@check(_never_alone)
def check_alone(method: Method) -> None:
    """With one client (and neutral values) it is plain training."""
    assert method.traits.alone is not None
    values = {**(method.traits.neutral[0] if method.traits.neutral else {}), **method.traits.alone}
    quiet, world = type(method)(**{**method.params(), **values}), federation(sizes=(40,))
    what = "one client"
    if values:
        what = f"{what}, with {values}"
    what = f"{what} (the trait `alone` says with which values, or None)"
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
    """Fail unless clients' models score the same and, where both report it, the loss is equal."""
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


@check()
def check_hard_clients(method: Method) -> None:
    """One sample, one class, the highest class missing, a class nobody has: numbers stay finite."""
    world = federation(sizes=(1, 30, 12, 9), only={1: [0], 2: [0, 1], 3: [2]})
    _finite(trace(method, world), "hard clients")


@check()
def check_absence(method: Method) -> None:
    """Half the cohort gone, clients never sampled: it works, and absent clients' states stay."""
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


@check()
def check_stragglers(method: Method) -> None:
    """Clients that manage only part of their steps are still of use."""
    _finite(trace(method, stragglers=0.5, straggler_work=0.3), "stragglers")


@check()
def check_evaluation(method: Method) -> None:
    """Evaluating every round or only at the end gives the same server and states."""
    rarely = trace(method, eval_every=ROUNDS)
    assert rarely.server.equal(usual(method).server), "evaluation changes the server"
    assert rarely.states[-1] == usual(method).states[-1], "evaluation changes a client's state"
    assert rarely.metrics[-1]["personal"] == usual(method).metrics[-1]["personal"], (
        "evaluation changes accuracy"
    )


@check()
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


@check()
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


@check()
def check_bytes(method: Method) -> None:
    """The bytes it reports are the bytes of what was serialised."""
    seen, notes = watched(method)
    reported = seen.metrics[-1]["bytes_total"]
    assert reported == notes.bytes, f"reported {reported}, serialised {notes.bytes}"


@check()
def check_roles(method: Method) -> None:
    """Tensors that stay with the client, and frozen ones, are not in any upload."""
    worker = place(method)
    kept = {f"/{n}" for n in (*worker.roles.names("private"), *worker.roles.names("frozen"))}
    leaked = sorted(n for n in watched(method)[1].sent if any(n.endswith(k) for k in kept))
    assert not leaked, f"private or frozen tensor {leaked[0]!r} was sent"


@check(_on_features)
def check_frozen(method: Method) -> None:
    """What the owner of a network has frozen stays as it is, is not sent and not remembered."""
    places: list[ClientWorker] = []
    notes = Notes()

    first: dict[str, Tensor] = {}  # what is frozen of the network that the method gets

    def wrap(worker: ClientWorker) -> Executor:
        places.append(worker)
        tensors = worker.given.state_dict()
        first.update({name: tensors[name].clone() for name in frozen_in(worker.given)})
        return Watching(worker, notes)

    seen = trace(method, wrap=wrap, model=with_frozen_stem(network()), rounds=2)
    frozen = places[0].tree("frozen")
    assert len(first) >= 7, "the stem alone has so many tensors"
    for name, tensor in first.items():
        inside = name.removeprefix("body.")  # a method may have wrapped the body
        same = [torch.equal(t, tensor) for n, t in frozen.items() if n.endswith(inside)]
        assert any(same), "a frozen tensor changed, or is not frozen"
    told = {*notes.sent, *seen.server}
    for state in seen.states[-1]:
        told |= set(Payload.decode(state))
    leaked = sorted(name for name in told if name.endswith(tuple(f"/{n}" for n in frozen)))
    assert not leaked, f"frozen tensor {leaked[0]!r} was sent or is remembered"


@check(_transductive)
def check_export(method: Method) -> None:
    """What it predicts with can be written to a file, and predicts the same when read again."""
    with tempfile.TemporaryDirectory() as folder:
        for what, served in exportable(method):
            module, _ = load(
                export(served, folder), trust=True, network=copy.deepcopy(served.worker.given)
            )
            with torch.no_grad():
                read_again = module(served.raw.take(torch.arange(len(served.raw.y))))
            assert close(read_again, scores_of(served)), (
                f"{what}: the exported model gives other scores than the method"
            )


@check(_personalised)
def check_common(method: Method) -> None:
    """If it says that all clients use the common model, they do."""
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
    personal = [r.scores["test"][0].tolist() for r in executor.run(tasks)]
    executor.close()
    assert [c / n for c, n, *_ in personal] == record["clients"]["common"], (
        "a client's own model differs from the common one"
    )


@check()
def check_learns(method: Method) -> None:
    """It beats chance on an easy task."""

    def best(seen: Trace) -> float:
        return max(m["personal"]["accuracy_mean"] for m in seen.metrics)

    reached = best(usual(method))  # most need no more rounds than these
    reached = reached if reached > 0.5 else best(trace(method, rounds=6))
    assert reached > 0.5, (
        f"only {100 * reached:.0f} % after 6 rounds on three easy classes (chance is 33 %)"
    )


def _finite(seen: Trace, what: str) -> None:
    for record in seen.metrics:
        values = [record["personal"]["accuracy_mean"], *record["loss"].values()]
        assert np.isfinite(values).all(), f"{what}: round {record['round']} has {values}"
    for name, value in seen.server.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert torch.isfinite(value).all(), f"{what}: the server's {name!r} is not finite"

"""Heads trained together are the heads trained one by one, to 1e-5."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedloom.client.context import ClientContext
from fedloom.client.fast import stacked as stacked_ways
from fedloom.client.fast.stacked import Entry, Trained
from fedloom.client.fit import fit
from fedloom.client.job import Job
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import ClientError
from fedloom.core.local import Fit
from fedloom.core.lookup import make
from fedloom.core.method import Method, Update
from fedloom.core.payload import Payload
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.executors.stacked import Vmap
from fedloom.models import Task, build
from fedloom.models.base import Split
from fedloom.testing import small_world


def close(a: Payload, b: Payload) -> bool:
    assert list(a) == list(b)
    return all(
        torch.allclose(v.double(), b.tensor(n).double(), atol=1e-5)
        if isinstance(v, torch.Tensor)
        else v == b[n]
        for n, v in a.items()
    )


def both(
    name: str, sizes: tuple[int, ...] = (16, 16, 16, 16), **schedule: object
) -> list[small_world.Trace]:
    world = small_world.federation(sizes=sizes)
    return [small_world.trace(make(name), world, wrap=kind, **schedule) for kind in (Inplace, Vmap)]


def sizes_of_stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients are in each stack that is trained from now on."""
    sizes: list[int] = []
    train = stacked_ways.train

    def counted(entries: list[Entry]) -> list[Trained]:
        sizes.append(len(entries))
        return train(entries)

    monkeypatch.setattr(stacked_ways, "train", counted)
    return sizes


@pytest.mark.parametrize("name", ["fedpact", "cachefl", "tip-adapter-f"])
def test_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = sizes_of_stacks(monkeypatch)
    one, all_ = both(name)
    assert stacked and set(stacked) == {4}
    assert close(one.server, all_.server)
    for a, b in zip(one.states[-1], all_.states[-1], strict=True):
        assert close(Payload.decode(a), Payload.decode(b))
    for m, n in zip(one.metrics, all_.metrics, strict=True):
        assert m["clients"] == n["clients"] and m["bytes"] == n["bytes"]
        assert m["loss"] == pytest.approx(n["loss"], abs=1e-5)


def test_clients_of_other_sizes_and_stragglers() -> None:
    one, all_ = both("fedpact", sizes=(16, 9, 16, 1), stragglers={1: [0]}, dropouts={2: [2]})
    assert close(one.server, all_.server)


MODELS = ["linear", "mlp", "projection"]
HOW = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "epochs": 2},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "epochs": 2},
    "cosine": {"lr": 0.1, "cosine": True, "drop_last": True},
}


@pytest.mark.parametrize(
    ("model", "how"), [*[(m, "sgd") for m in MODELS], *[("mlp", h) for h in HOW if h != "sgd"]]
)
@pytest.mark.parametrize("name", ["fedavg", "fedper"])
def test_small_models_are_stacked_whole(
    name: str, model: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacked = sizes_of_stacks(monkeypatch)
    found = []
    for kind in (Inplace, Vmap):
        world = small_world.federation(sizes=(20, 9, 16, 1, 0))
        shape = tuple(world.data.x.shape[1:])
        torch.manual_seed(0)
        net = build(
            model,
            Task(shape, len(world.data.classes)),
            **({"hidden": [12]} if model == "mlp" else {}),
        )
        worker = ClientWorker(make(name), world, net, Training(batch=8, **HOW[how]), seed=3)
        executor = kind(worker)
        engine = Engine(worker, executor, Schedule(rounds=2, stragglers={2: [0]}))
        engine.run()
        executor.close()
        found.append((engine.server, [engine.store.get(k) for k in range(5)]))
    (one, mine), (all_, ours) = found
    assert close(one, all_) and all(close(a, b) for a, b in zip(mine, ours, strict=True))
    assert max(stacked) == (4 if how != "cosine" else 3)  # cosine: those that take as many steps


def test_several_vectors_for_a_sample_are_not_stacked() -> None:
    """Layers that are shown several vectors of a sample are trained one client after another."""
    found = []
    for kind in (Inplace, Vmap):
        world = small_world.federation(sizes=(20, 9, 16))
        channels, *sides = world.data.x.shape[1:]
        torch.manual_seed(0)
        body = nn.Sequential(nn.Flatten(2), nn.Linear(math.prod(sides), 4), nn.ReLU(), nn.Flatten())
        net = Split(body, nn.Linear(4 * channels, len(world.data.classes)), 4 * channels)
        worker = ClientWorker(make("fedavg"), world, net, Training(batch=8), seed=3)
        executor = kind(worker)
        engine = Engine(worker, executor, Schedule(rounds=2))
        engine.run()
        executor.close()
        found.append(engine.server)
    assert found[0].equal(found[1])


def outcome(kind: type, method: Method, freeze: str = "") -> Payload:
    world = small_world.federation(sizes=(20, 9, 16))
    torch.manual_seed(0)
    net = build("mlp", Task(tuple(world.data.x.shape[1:]), len(world.data.classes)), hidden=[12, 6])
    for name, p in net.named_parameters():
        p.requires_grad_(not (freeze and name.startswith(freeze)))
    executor = kind(ClientWorker(method, world, net, Training(batch=8), seed=3))
    engine = Engine(executor.worker, executor, Schedule(rounds=2))
    engine.run()
    executor.close()
    return engine.server


@pytest.mark.parametrize("freeze", ["body.1", "body.1.bias", "body.3.weight", "head"])
def test_what_does_not_want_a_gradient_stays(freeze: str) -> None:
    assert close(outcome(Inplace, make("fedavg"), freeze), outcome(Vmap, make("fedavg"), freeze))


class Refilled(type(make("fedavg"))):  # type: ignore[misc]
    """Sends everybody other weights, in tensors that it fills anew."""

    def download(self, server: Payload, k: int) -> Payload:
        if not hasattr(self, "buffer"):
            self.buffer = server.tree("model").clone()
        for name, t in server.tree("model").items():
            self.buffer[name].copy_(t * (1 + 0.01 * k))
        return Payload(model=self.buffer)


def test_a_download_may_be_written_over_for_the_next_client() -> None:
    assert close(outcome(Inplace, Refilled()), outcome(Vmap, Refilled()))


class Broken(type(make("fedavg"))):  # type: ignore[misc]
    """Fails before it trains."""

    def train(self, down: Payload, state: Payload, local: ClientContext) -> Fit:
        raise ValueError("no idea")


def test_a_failure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClientError, match="round 1, client 0: ValueError: no idea"):
        outcome(Vmap, Broken())
    monkeypatch.setattr("fedloom.client.fast.stacked.through", lambda *_: 1 / 0)
    with pytest.raises(ClientError, match="round 1, clients 0, 2, 1: ZeroDivisionError"):
        outcome(Vmap, make("fedavg"))


def test_a_failure_of_the_first_asking_alone_is_named() -> None:
    class Impure(type(make("fedavg"))):  # type: ignore[misc]
        """Changes something outside of what it returns, which breaks the contract."""

        calls: ClassVar[list[int]] = []

        def train(self, down: Payload, state: Payload, local: ClientContext) -> Fit:
            self.calls.append(local.id)
            if self.calls.count(local.id) == 1:
                raise ValueError("only once")
            return super().train(down, state, local)

    with pytest.raises(ClientError, match="round 1, client 0: ValueError: only once"):
        outcome(Vmap, Impure())


class Careful(type(make("fedavg"))):  # type: ignore[misc]
    """Handles every failure of its training itself."""

    def train(self, down: Payload, state: Payload, local: ClientContext) -> Fit:
        try:
            return super().train(down, state, local)
        except Exception:
            raise AssertionError("training is no failure") from None


def test_a_method_that_handles_failures_is_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = sizes_of_stacks(monkeypatch)
    assert close(outcome(Inplace, Careful()), outcome(Vmap, Careful()))
    assert stacked == [3, 3]


def test_a_client_that_trains_nothing_is_executed_once() -> None:
    calls = []

    class Silent(type(make("fedavg"))):  # type: ignore[misc]
        """Sends back what it got."""

        def client(self, down: Payload, state: Payload, local: ClientContext) -> Update:
            calls.append(local.id)
            return Update(Payload(model=down.tree("model")), trained=down)

    assert outcome(Inplace, Silent()).equal(outcome(Vmap, Silent()))
    assert calls == [0, 2, 1] * 4  # two executors, two rounds; the largest client comes first


def test_training_that_cannot_be_stacked_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []

    def counted(job: Job) -> Fit:
        trained.append(job.client)
        return fit(job)

    monkeypatch.setattr("fedloom.executors.stacked.fit", counted)
    outcome(Vmap, make("fedprox"))  # its gradient is pulled
    assert trained == [0, 2, 1] * 2


def test_stacks_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = sizes_of_stacks(monkeypatch)
    monkeypatch.setenv("FEDLOOM_FAST", "dense,lowrank")
    assert outcome(Vmap, make("fedavg")).equal(outcome(Inplace, make("fedavg")))
    assert not stacked
    monkeypatch.setenv("FEDLOOM_FAST", "stacked")
    outcome(Vmap, make("fedavg"))
    assert stacked


def test_networks_with_maps_and_other_losses_are_left_alone() -> None:
    for name in ("fedavg", "fedpga", "fedclip"):
        one, all_ = both(name)
        assert one.server.equal(all_.server) and one.states == all_.states

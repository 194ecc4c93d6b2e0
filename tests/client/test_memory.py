"""Optimisers that are kept: what they remember goes on in a client's next round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.client.memory import GROUP, without_memory
from fedloom.client.training import Training
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.engine.checkpoint import Checkpoint, Store
from fedloom.engine.config import build
from fedloom.engine.engine import Engine
from fedloom.engine.run import execute
from fedloom.engine.schedule import Schedule
from fedloom.engine.setup import Trained
from fedloom.executors import make as make_executor
from fedloom.executors.base import Executor
from fedloom.executors.inplace import Inplace
from fedloom.testing.small_world import place

KEPT = Training(batch=8, lr=0.05, momentum=0.9, keep_optimizer=True)


def weight_after(parabolas: Any, rounds: int, **training: Any) -> float:
    """The common weight of FedAvg with one client, whose loss is w^2 / 2, from w = 8 on."""
    worker = parabolas(a=[0], n=[1]).worker(make("fedavg"), 8.0, **training)
    engine = Engine(worker, Inplace(worker), Schedule(rounds=rounds))
    engine.run()
    return engine.server.tensor("model/body.value").item()


def test_momentum_goes_on(parabolas: Any) -> None:
    """By hand: v = 8, w = 4; then v = 0.5 * 8 + 4 = 8, w = 0. Anew: v = 4, w = 2."""
    given = {"lr": 0.5, "steps": 1, "momentum": 0.5}
    assert weight_after(parabolas, 2, **given, keep_optimizer=True) == 0.0
    assert weight_after(parabolas, 2, **given) == 2.0


@pytest.mark.parametrize(
    "given",
    [
        {"momentum": 0.9, "nesterov": True},
        {"optimizer": "adam"},
        {"optimizer": "adam", "amsgrad": True},
        {"optimizer": "adamw", "weight_decay": 0.1},
    ],
)
def test_three_rounds_of_a_step_are_one_round_of_three(parabolas: Any, given: Any) -> None:
    given = {"lr": 0.3, "keep_optimizer": True, **given}
    once = weight_after(parabolas, 1, steps=3, **given)
    assert weight_after(parabolas, 3, steps=1, **given) == once
    assert weight_after(parabolas, 3, steps=1, **{**given, "keep_optimizer": False}) != once


def run(
    folder: Path | None, rounds: int, executor: str = "inplace", training: Training = KEPT
) -> Engine:
    """Ditto, which trains twice in a round, with clients that are sometimes absent."""
    worker = place(make("ditto"), training=training)
    store = Store(folder)
    saved = store.load()
    hands: Executor = make_executor(executor, worker, 2)
    engine = Engine(worker, hands, Schedule(rounds=rounds, ratio=0.7), (), store)
    engine.run(saved if saved.server is not None else None)
    hands.close()
    if folder is not None:
        store.save(Checkpoint(engine.round, engine.server, {"bytes": engine.bytes}))
    return engine


def states(engine: Engine) -> list[bytes]:
    return [engine.store.get(k).encode() for k in range(engine.worker.clients)]


def test_every_call_has_a_memory_of_its_own_and_a_resumed_run_the_same_bytes(
    tmp_path: Path,
) -> None:
    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 1)
    parts = run(tmp_path / "parts", 4)
    assert parts.server.equal(whole.server) and states(parts) == states(whole)
    kept = whole.store.get(0).group(GROUP)
    assert {name.partition("/")[0] for name in kept} == {"0", "1"}
    common, personal = (kept.tensor(f"{call}/head.weight/momentum") for call in (0, 1))
    assert not torch.equal(common, personal)
    anew = run(None, 4, training=KEPT.changed(keep_optimizer=False))
    assert not anew.server.equal(whole.server)


def test_workers_and_stacks_have_the_same_bytes() -> None:
    alone = run(None, 3)
    for executor in ("pool", "vmap"):
        other = run(None, 3, executor)
        assert other.server.equal(alone.server) and states(other) == states(alone)


def test_stacks_train_heads_with_a_memory_as_one_client_after_another() -> None:
    """A linear model, which would be stacked: clients with a memory are trained one by one."""
    few = {"limit_train": 4, "limit_test": 1, "rounds": 2, "size": 8, "flatten": True}
    given = {"method": "fedavg", "data": "digits4", "clients": 4, "model": "linear"}
    results = []
    for executor in ("inplace", "vmap"):
        changes = {**few, "optimizer": "adam", "keep_optimizer": True, "executor": executor}
        results.append(execute(build(given, changes)).metrics)
    assert results[0] == results[1]


def test_methods_and_views_never_see_it(tmp_path: Path) -> None:
    state = Payload(model=Payload(w=torch.ones(1)), optimizer=Payload({"0/w/momentum": 1.0}))
    assert list(without_memory(state)) == ["model/w"]
    few = {"limit_train": 2, "limit_test": 1, "rounds": 1, "width": 4, "features": 8}
    given = {"method": "fedper", "data": "digits4", "clients": 4}
    made = execute(build(given, {**few, "momentum": 0.5, "keep_optimizer": True}), out=tmp_path)
    trained = Trained.from_folder(made)
    assert any(name.startswith(GROUP) for name in trained.store.get(0))
    assert not any(name.startswith(GROUP) for name in trained.state(0))


def test_folders_of_older_runs_keep_their_names() -> None:
    given = {"method": "fedavg", "data": "digits4"}
    assert build(given).hash() == build(given, {"keep_optimizer": False}).hash()
    assert build(given).hash() != build(given, {"keep_optimizer": True}).hash()


def test_so_do_those_of_a_partition_with_a_new_option() -> None:
    config = build({"method": "fedavg", "data": "digits4", "partition": "dif"})
    options = dict(config.partitioning)
    assert options.pop("volume") == "geometric"
    assert config.model_copy(update={"partitioning": options}).hash() == config.hash()
    equal = build({"method": "fedavg", "data": "digits4", "partition": "dif"}, {"volume": "equal"})
    assert equal.hash() != config.hash()

"""fp16 and the scale of its losses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedloom.client.optim import SGD
from fedloom.client.scaling import BACKOFF, FIRST, GROWTH, PATIENCE, LossScaler, without_scale
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.engine.checkpoint import Checkpoint, Store
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.testing.small_world import place

CPU = torch.device("cpu")


def test_an_overflow_takes_no_step_and_halves_the_scale() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    scaler, optimizer = LossScaler(CPU), SGD([weight], lr=0.5, momentum=0.9)
    weight.grad = torch.tensor([torch.inf])
    scaler.unscale([weight])
    scaler.step(optimizer, [weight])
    assert weight.item() == 1.0
    assert scaler.state()["scale"] == FIRST * BACKOFF
    weight.grad = torch.tensor([2.0]) * scaler.scale
    scaler.unscale([weight])
    scaler.step(optimizer, [weight])
    assert weight.item() == 0.0  # 1 - 0.5 * 2


def test_the_scale_grows_after_many_calm_steps() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    scaler, optimizer = LossScaler(CPU), SGD([weight], lr=0.0)
    for _ in range(PATIENCE):
        weight.grad = torch.ones(1)
        scaler.unscale([weight])
        scaler.step(optimizer, [weight])
    assert scaler.state()["scale"] == FIRST * GROWTH


def test_the_scale_is_no_part_of_what_a_method_remembers() -> None:
    state = Payload(fp16=Payload(scale=2.0, calm=3), alpha=0.5)
    assert dict(without_scale(state)) == {"alpha": 0.5}
    assert not without_scale(Payload(fp16=Payload(scale=2.0, calm=3)))
    assert LossScaler(CPU, state).state() == Payload(scale=2.0, calm=3)


def engine(folder: Path, rounds: int) -> Engine:
    worker: ClientWorker = place(make("fedavg"), training=Training(batch=8, precision="fp16"))
    store = Store(folder)
    saved = store.load()
    run = Engine(worker, Inplace(worker), Schedule(rounds=rounds), (), store)
    run.run(saved if saved.server is not None else None)
    store.save(Checkpoint(run.round, run.server, {"bytes": run.bytes}))
    return run


def test_a_resumed_run_has_the_same_scale_and_the_same_bytes(tmp_path: Path) -> None:
    whole = engine(tmp_path / "whole", 3)
    engine(tmp_path / "parts", 1)
    parts = engine(tmp_path / "parts", 3)
    assert parts.server.equal(whole.server)
    for k in range(whole.worker.clients):
        state = whole.store.get(k)
        assert state["fp16/calm"] > 0 or state["fp16/scale"] != FIRST
        assert parts.store.get(k).encode() == state.encode()


def test_tf32_is_for_cuda() -> None:
    with pytest.raises(FedloomError, match="tf32 is for CUDA devices, not for cpu"):
        place(make("fedavg"), training=Training(precision="tf32"))

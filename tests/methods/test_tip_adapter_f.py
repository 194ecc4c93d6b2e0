"""Tip-Adapter-F: keys that are trained once."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedloom.client.context import ClientContext
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.engine.engine import first
from fedloom.methods.tip_adapter_f import TipAdapterF
from fedloom.testing.small_world import trace


def test_keys_are_trained_in_the_first_round_only(place: Callable[..., ClientWorker]) -> None:
    worker, method = place(TipAdapterF()), TipAdapterF()
    down = method.download(first(worker), 0)
    before = method.cache(down, Payload(), ClientContext(worker, 0, 1)).keys
    one = method.client(down, Payload(), ClientContext(worker, 0, 1))
    assert not torch.equal(one.state.tensor("keys"), before)
    two = method.client(Payload(), one.state, ClientContext(worker, 0, 2))
    assert two.state.equal(one.state) and not two.upload


def test_training_lowers_the_loss_and_prediction_uses_the_trained_keys(
    place: Callable[..., ClientWorker],
) -> None:
    method = TipAdapterF(text="hash", scale=1.0, alpha=0.1)
    worker = place(method, lr=0.01)
    down = method.download(first(worker), 1)
    local = ClientContext(worker, 1, 1)
    state = method.client(down, Payload(), local).state
    x, y = worker.federation.samples(1)
    after = torch.nn.functional.cross_entropy(method.personal(down, state, local)(x), y)
    before = torch.nn.functional.cross_entropy(method.personal(down, Payload(), local)(x), y)
    assert after < before


def test_nothing_travels_up() -> None:
    seen = trace(TipAdapterF())
    assert [m["bytes"]["up"] for m in seen.metrics][1:] == [0, 0]

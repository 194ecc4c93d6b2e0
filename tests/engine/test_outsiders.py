"""Clients that never train: they are scored, and nobody else notices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedloom
from fedloom.client.context import ClientContext
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make, names
from fedloom.core.payload import Payload
from fedloom.data.clients import NEW
from fedloom.data.federation import Federation, Outsider, federate
from fedloom.engine.setup import widened
from fedloom.executors.pool import Pool
from fedloom.testing.small_world import federation, place, trace

SETTINGS = {
    "clients": 8,
    "model": "mlp",
    "rounds": 2,
    "flatten": True,
    "size": 8,
    "limit_train": 20,
    "limit_test": 10,
}


def world(outside: int = 2) -> Federation:
    """Six clients, of which the last ones stay outside."""
    whole = federation(sizes=[24, 40, 16, 32, 20, 28])
    apart = []
    for k in range(6 - outside, 6):
        client = whole.clients[k]
        apart.append(Outsider(client.train, client.validation, client.test, client.domain))
    return replace(whole, clients=whole.clients[: 6 - outside], outside=tuple(apart))


@pytest.mark.parametrize("name", [name for name in names() if make(name).traits.world == "any"])
def test_whoever_trains_notices_nothing(name: str) -> None:
    """Every line of metrics and the server are as without the clients outside."""
    method = make(name)
    watched = trace(method, world(), rounds=2)
    plain = trace(method, replace(world(), outside=()), rounds=2)
    for line, other in zip(watched.metrics, plain.metrics, strict=True):
        scored = line.pop("outside")[NEW]
        assert line == other
        for stage in ("before", "after"):
            own = method.traits.personalised and method.traits.by_client is not None
            assert bool(scored[stage]) == own
        assert bool(scored["common"]) == bool(line["common"])
    assert watched.server.keys() == plain.server.keys()
    for key, value in watched.server.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(plain.server[key])), key


def test_a_client_outside_is_treated_as_a_newcomer() -> None:
    """Its own model, before and after a round of its own, worked out step by step."""
    method, whole = make("fedrep"), world(1)
    seen = trace(method, whole, rounds=1)
    worker = place(method, whole)
    worker.load()
    server = widened(seen.server, method, 5).replace(round=2)
    server = method.join(server, {5: method.hello(ClientContext(worker, 5, 2))})
    down = method.download(server, 5)
    x, y = whole.samples(5, "test")

    def accuracy(held: Payload, state: Payload) -> float:
        predict = method.personal(held, state, ClientContext(worker, 5, 2))
        return float((predict(x).argmax(1) == y).double().mean())

    before = accuracy(down, Payload())
    update = method.client(down, Payload(), ClientContext(worker, 5, 2))
    told = seen.metrics[-1]["outside"][NEW]
    assert told["before"]["accuracy_mean"] == pytest.approx(before)
    after = accuracy(update.trained, update.state)
    assert told["after"]["accuracy_mean"] == pytest.approx(after)
    assert before != after


@pytest.mark.parametrize("name", ["fedavg", "fedper"])
def test_a_pool_scores_them_alike(name: str) -> None:
    method = make(name)
    alone = trace(method, world(), rounds=2)
    shared = trace(method, world(), lambda worker: Pool(worker, 2), rounds=2)
    assert alone.metrics == shared.metrics


def test_a_domain_that_nobody_trains_on() -> None:
    data = federation(sizes=[24, 40, 16, 32]).data
    dealt = federate(data, "iid", clients=3, hold_out=data.domains[1])
    (apart,) = dealt.outside
    assert apart.group == apart.domain == data.domains[1]
    for client in dealt.clients:
        rows = np.concatenate([client.train, client.validation, client.test])
        assert len(rows) and (data.domain[rows] == 0).all()
    every = np.concatenate([apart.train, apart.validation, apart.test])
    assert sorted(every) == np.flatnonzero(data.domain.numpy() == 1).tolist()
    with pytest.raises(FedloomError, match="domain 'sketsh'"):
        federate(data, "iid", clients=3, hold_out="sketsh")


def test_new_clients_are_those_that_would_have_trained() -> None:
    data = federation(sizes=[24, 40, 16, 32]).data
    whole = federate(data, "iid", clients=6)
    dealt = federate(data, "iid", clients=6, new_clients=2)
    assert (len(dealt), len(dealt.outside)) == (4, 2)
    had = {client.train.tobytes() for client in whole.clients}
    assert {c.train.tobytes() for c in (*dealt.clients, *dealt.outside)} == had
    with pytest.raises(FedloomError, match="new_clients=6"):
        federate(data, "iid", clients=6, new_clients=6)


def test_summary_and_resume(tmp_path: Path) -> None:
    run = fedloom.run(
        "fedper",
        partition="domains",
        hold_out="photo",
        new_clients=1,
        out=tmp_path / "whole",
        **SETTINGS,
    )
    told = run.summary["outside"]
    assert set(told) == {"photo", NEW}
    assert told["photo"]["common"] is None
    line = run.metrics[-1]["outside"]["photo"]
    assert told["photo"]["after"]["last"] == line["after"]["accuracy_mean"]
    assert [about["group"] for about in run.federation["outside"]] == ["photo", NEW]
    assert len(run.federation["clients"]) == 7


def test_settings_that_are_not_used_leave_the_hash() -> None:
    from fedloom.engine import config as configs

    plain = configs.build({"method": "fedavg"})
    assert "hold_out" in plain.what()
    assert plain.hash() == configs.build({"method": "fedavg", "new_clients": 0}).hash()
    assert plain.hash() != configs.build({"method": "fedavg", "hold_out": "photo"}).hash()

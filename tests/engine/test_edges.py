"""A tree of servers gives what a flat one gives."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import fedloom
from fedloom.core.lookup import make, names, plugins
from fedloom.core.method import Method
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.engine.checkpoint import Store
from fedloom.engine.config import build
from fedloom.engine.edges import Edges, merges
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.engine.setup import Setup
from fedloom.executors.inplace import Inplace
from fedloom.testing.small_world import place

ROUNDED = {"rtol": 1e-5, "atol": 1e-6}


SPECS = [*names(), *(f"fedavg+{name}" for name in plugins())]


class Watching(Engine):
    """An engine that also aggregates what would come through edges, and keeps both servers."""

    edges = 2

    def _aggregate(self, turn, uploads):  # type: ignore[no-untyped-def]
        arrived = list(uploads)
        method, before = self.worker.method, self.server
        edges = Edges(method, before, self.edges)
        self.tree = method.aggregate(before, edges.passed_on(copied(arrived)))
        self.sent = sum(up.nbytes for _, up in arrived)
        self.passed = edges.nbytes
        self.flat = method.aggregate(before, copied(arrived))
        return self.flat


def copied(pairs: Iterable[tuple[int, Payload]]) -> Iterable[tuple[int, Payload]]:
    """Uploads of which the originals stay as they are."""
    return iter([(k, up.copy()) for k, up in pairs])


def round_of(method: Method) -> Watching:
    """One round of four clients in the small world."""
    worker = place(method)
    engine = Watching(worker, Inplace(worker), Schedule(rounds=1, eval_every=2), (), Store())
    engine.run()
    return engine


QUICK = (
    *("fedavg", "fedbn", "scaffold", "term", "fedpac", "fedit", "fedproto", "fedpcl", "fedgcr"),
    *("f2dc", "fedavg+fedadam", "fedavg+fedgr", "fedavg+ga", "fedavg+dp", "fedavg+krum"),
)
REST = [pytest.param(s, marks=pytest.mark.slow) for s in SPECS if s not in QUICK]


@pytest.mark.parametrize("spec", [*QUICK, *REST])
def test_the_tree_is_the_flat_server(spec: str) -> None:
    engine = round_of(make(spec))
    assert set(engine.tree) == set(engine.flat)
    for name, value in engine.flat.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(engine.tree[name], value, **ROUNDED, msg=name)
        else:
            assert engine.tree[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_an_edge_passes_on_one_model() -> None:
    """Two edges of two clients: half of what would arrive, and some names."""
    engine = round_of(make("fedavg"))
    assert merges(make("fedavg"))
    assert engine.passed < 0.55 * engine.sent
    nothing_to_add = round_of(make("fedproto"))
    assert nothing_to_add.passed == nothing_to_add.sent


def test_methods_that_look_into_models_are_passed_on() -> None:
    for spec in ("term", "fedpac", "fedit", "fedavg+median", "fedavg+krum", "fedavg+dp+fedadam"):
        assert not merges(make(spec)), spec
    for spec in ("fedprox", "fedbn", "fedgcr", "f2dc", "fedavg+fedadam", "fedavg+fedgr"):
        assert merges(make(spec)), spec


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("fedavg", "cnn"),
        ("f2dc", "cnn"),
        ("fedpcl", "projection"),
        pytest.param("fedgcr", "vpt", marks=pytest.mark.slow),
    ],
)
def test_ten_edges_are_the_flat_server(method: str, model: str) -> None:
    """Twenty clients of the embedded digits, one round: every number of the server, to 1e-6."""
    small: dict[str, Any] = {"width": 4, "features": 16}
    if model != "cnn":
        small = {"encoder": "vit-mini", "pixels": model == "vpt"}
    config = build(
        {"method": method, "data": "digits4", "clients": 20, "model": model},
        {**small, "steps": 1, "batch": 4, "limit_train": 20, "limit_test": 5},
    )
    setup = Setup.from_config(config)
    engine = Watching(setup.worker, Inplace(setup.worker), Schedule(rounds=1, eval_every=2))
    engine.edges = 10
    engine.run()
    for name, value in engine.flat.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(engine.tree[name], value, rtol=1e-6, atol=1e-6, msg=name)
    assert engine.passed <= engine.sent


def test_ten_edges_in_a_run() -> None:
    """Two rounds: the same losses, and what reached the root is told."""
    settings: dict[str, Any] = {"clients": 20, "rounds": 2, "steps": 1, "batch": 8, "seed": 1}
    settings |= {"limit_train": 40, "limit_test": 10}
    settings |= {"model": "cnn", "width": 4, "features": 16}
    flat = fedloom.run("fedavg", "digits4", **settings)
    tree = fedloom.run("fedavg", "digits4", edges=10, **settings)
    for one, other in zip(flat.metrics, tree.metrics, strict=True):
        assert one["loss"]["ce"] == pytest.approx(other["loss"]["ce"], abs=1e-5)
        assert one["bytes"] == other["bytes"]
        assert 0 < other["bytes_root"] < 0.9 * other["bytes"]["up"]


def test_edges_add_up_uneven_groups_exactly() -> None:
    """Weights 1, 2 and 4 over edges {0, 2} and {1}: (1*1 + 2*10 + 4*100) / 7."""
    method = make("fedavg")
    server = Payload(model=Tree({"w": torch.zeros(1)}), sizes=torch.tensor([1, 2, 4]))
    values = {0: 1.0, 1: 10.0, 2: 100.0}
    uploads = [(k, Payload(model=Tree({"w": torch.tensor([v])}))) for k, v in values.items()]
    edges = Edges(method, server, 2)
    through = dict(edges.passed_on(iter(uploads)))
    assert through[0].tensor("model/w").item() == pytest.approx((1 + 400) / 5)
    assert through[1].tensor("model/w").item() == 10.0
    after = method.aggregate(server, iter(through.items()))
    assert after.tensor("model/w").item() == pytest.approx((1 + 20 + 400) / 7)

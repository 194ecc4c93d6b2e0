"""Evaluations of a sample of the clients: who is drawn, and that nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make
from fedloom.data.clients import Clients
from fedloom.data.dataset import Dataset
from fedloom.data.federation import Federation
from fedloom.engine.folder import Run
from fedloom.engine.panel import panel, quotas
from fedloom.engine.run import run as carried_out
from fedloom.engine.schedule import Schedule
from fedloom.metrics.distribution import MANY, Distribution
from fedloom.models import Task, build

CLIENTS = 30


def world(clients: int = CLIENTS, untested: int = 0) -> Federation:
    """Clients with two samples to train on and two to be judged by; every third is of domain b."""
    rng = np.random.default_rng(5)
    n = 4 * clients
    owner, place = np.repeat(np.arange(clients), 4), np.arange(n) % 4
    test = (place == 3) & (owner >= untested)
    held = (place == 2) & (owner >= untested)
    domain = (np.arange(clients) % 3 == 0).astype(int)
    y = rng.integers(0, 3, n)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    x[np.arange(n), y] += 1
    data = Dataset(
        torch.from_numpy(x),
        torch.from_numpy(y),
        torch.from_numpy(domain[owner]),
        torch.from_numpy(test),
        ("x", "y", "z"),
        ("a", "b"),
        "hand",
    )
    return Federation(data, Clients.owned(owner, test, held, domain, ("a", "b")))


def worker(federation: Federation, seed: int = 0) -> ClientWorker:
    model = build("linear", Task((4,), 3))
    return ClientWorker(make("fedavg"), federation, model, Training(), seed)


def run(method: str, **settings: Any) -> Run:
    given = {"rounds": 3, "ratio": 0.4, "batch": 2, "model": "linear", **settings}
    return carried_out(method, given.pop("world", None) or world(), **given)


def test_quotas_are_shares_with_the_largest_remainders_rounded_up() -> None:
    assert quotas(np.array([5, 3, 2]), 5) == [3, 1, 1]  # 2.5, 1.5 and 1.0: the first comes first
    assert quotas(np.array([70, 20, 10]), 6) == [4, 1, 1]  # 4.2, 1.2 and 0.6
    assert quotas(np.array([0, 4]), 4) == [0, 4]


def test_each_domain_is_drawn_in_proportion_and_only_who_can_be_judged() -> None:
    someone = worker(world(untested=3))
    chosen = panel(9, someone)
    assert chosen is not None and len(set(chosen.tolist())) == 9 and chosen.min() >= 3
    assert chosen.tolist() == sorted(chosen.tolist())
    assert sum(k % 3 == 0 for k in chosen.tolist()) == 3  # b has 9 of the 27
    again = panel(9, someone)
    assert again is not None and again.tolist() == chosen.tolist()
    other = panel(9, worker(world(untested=3), seed=1))
    assert other is not None and other.tolist() != chosen.tolist()
    assert panel(27, someone) is None and Schedule().scored(someone) is None


@pytest.mark.parametrize("method", ["fedavg", "fedper", "local", "fedavg+fedgr"])
def test_a_sample_has_the_figures_that_its_clients_have_anyway(method: str) -> None:
    whole = run(method)
    sample = run(method, eval_clients=10)
    chosen = panel(10, worker(world()))
    assert chosen is not None
    domains = ["b" if k % 3 == 0 else "a" for k in chosen.tolist()]
    for all_of, some in zip(whole.metrics, sample.metrics, strict=True):
        for stage, listing in all_of["clients"].items():
            values = np.array([listing[k] for k in chosen], dtype=float)
            expected = Distribution.of(values, domains)
            assert Distribution.read(some["clients"][stage]) == expected
            assert some[stage]["accuracy_mean"] == pytest.approx(values.mean())
        assert {k: some[k] for k in ("loss", "bytes", "lost")} == {
            k: all_of[k] for k in ("loss", "bytes", "lost")
        }
    last, at_end = whole.metrics[-1], sample.summary["everybody"]
    assert at_end["before"]["accuracy_mean"] == last["before"]["accuracy_mean"]
    assert at_end["before"]["domains"] == last["before"]["domains"]
    assert at_end["clients"] == CLIENTS
    assert sample.config.hash() != whole.config.hash()


def test_the_last_look_at_all_can_be_left_out() -> None:
    assert "everybody" not in run("fedavg", eval_clients=10, eval_all=False).summary
    assert "everybody" not in run("fedavg").summary


def test_a_sample_of_everybody_is_everybody() -> None:
    assert run("fedavg", eval_clients=CLIENTS).metrics == run("fedavg").metrics


class Stop:
    """Ends a run after its second round, as a kill would."""

    def after_round(self, engine: Any, record: Any) -> None:
        if engine.round == 2:
            raise KeyboardInterrupt


def test_a_sampled_run_that_was_killed_ends_with_the_same_bytes(tmp_path: Path) -> None:
    settings = {"eval_clients": 10, "metric": "nll"}
    straight = run("fedper", out=tmp_path / "straight", **settings)
    with pytest.raises(KeyboardInterrupt):
        run("fedper", out=tmp_path / "cut", callbacks=[Stop()], **settings)
    resumed = run("fedper", out=tmp_path / "cut", **settings)
    assert resumed.summary["everybody"] == straight.summary["everybody"]
    lines = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("straight", "cut")]
    assert lines[0] == lines[1] and len(lines[0].splitlines()) == 3


def test_very_many_clients_are_not_listed() -> None:
    n = MANY + 1
    done = run("fedavg", world=world(n), rounds=1, ratio=5 / n)
    assert done.clients == [] and done.spread is not None and done.spread.n == n
    assert sum(count for count, _, _ in done.spread.domains.values()) == n
    assert len(json.dumps(done.metrics[0])) < 50_000 and done.summary["clients"] == n


def test_very_many_clients_have_a_folder_and_a_report(tmp_path: Path) -> None:
    n, out = MANY + 1, tmp_path / "many"
    settings = {"rounds": 1, "ratio": 5 / n, "batch": 2, "model": "linear", "eval_clients": 50}
    done = fedloom.run("fedavg", world(n), out=out, **settings)
    assert done.spread is not None and done.spread.n == 50
    assert (out / "clients.safetensors").is_file() and Run.load(out).spread == done.spread
    page = (out / "report.html").read_text()
    assert "are not listed" in page and f"All {n:,} clients, scored once at the end" in page

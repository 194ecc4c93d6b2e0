"""Drift, variance, smoothness and the gap of losses: by hand, and of a finished run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.engine.config import build
from fedloom.engine.run import execute
from fedloom.experiments.recipe import recipe
from fedloom.experiments.theory import Observer, gap, sampling_term, spread, theory


def test_one_step_down_a_parabola(parabolas: Any) -> None:
    """The loss is c w^2 / 2 with c = 2: from w = 8, a step of 0.25 goes to 4.

    The gradient falls from 16 to 8, by 2 for each unit of the way. One sample has no variance.
    """
    method = make("fedavg")
    worker = parabolas(a=[0], n=[1], curvature=[2.0]).worker(method, 8.0, lr=0.25, steps=1)
    observer = Observer()
    local = ClientContext(worker, 0, 1, trainer=observer)
    down = Payload(model=Tree(worker.first.items()))
    update = method.client(down, Payload(), local)
    (seen,) = observer.seen
    assert (seen.drift, seen.variance, seen.smoothness) == pytest.approx((4.0, 0.0, 2.0))
    assert seen.gap is None  # nobody has test samples here
    # What was looked at has changed nothing.
    plain = method.client(down, Payload(), ClientContext(worker, 0, 1))
    assert plain.upload.equal(update.upload)


def test_sums_by_hand() -> None:
    gradients = [Tree({"w": torch.tensor([1.0, 0.0])}), Tree({"w": torch.tensor([3.0, 0.0])})]
    assert spread(gradients) == pytest.approx(2.0)  # (1 + 1) / (2 - 1)
    assert gap([0.5, -0.1, None], [1, 3, 9]) == pytest.approx(0.2 / 4)
    assert gap([None], [1]) is None
    # Two samples, a client, one class: sqrt(log(2 / 0.05)).
    assert sampling_term(2, 1, 1) == pytest.approx(math.sqrt(math.log(40)))


def test_a_finished_run_is_measured_and_stays_as_it_is(tmp_path: Path) -> None:
    few = {"limit_train": 4, "limit_test": 2, "rounds": 1, "batch": 8, "width": 4, "features": 8}
    run = execute(
        build({"method": "feddtr", "data": "digits4", "clients": 4}, few), out=tmp_path / "run"
    )
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    told = theory(run)
    assert all(value is not None and math.isfinite(value) for value in told.values())
    assert told["drift"] > 0 and told["variance"] > 0 and told["smoothness"] > 0
    assert told["sampling"] == sampling_term(144, 4, 10)  # a tenth is held out
    assert {path: path.read_bytes() for path in files} == before
    assert theory(run) == told


def test_tables_ask_for_it() -> None:
    for name, wanted in (("feddtr-theory", "theory.drift"), ("fedpcl-theory", "theory.gap")):
        (setting,) = recipe(name).settings
        assert [wanted] in setting.columns.values()

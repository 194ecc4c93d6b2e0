"""Runs in processes of their own, and figures that columns of tables ask for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedloom.cli.progress import Watch
from fedloom.engine.config import Config, build
from fedloom.experiments.asked import parameters, until_best
from fedloom.experiments.plan import carry_out
from fedloom.experiments.recipe import recipe

FEW = {"limit_train": 2, "limit_test": 1, "rounds": 1, "steps": 1, "width": 4, "features": 8}


@pytest.fixture
def watch() -> Watch:
    return Watch(Console(), 1, quiet=True)


def config(method: str, **changes: object) -> Config:
    return build({"method": method, "data": "digits4", "clients": 4}, {**FEW, **changes})


def test_a_run_apart_is_the_same_and_leaves_this_process_alone(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run is refused in its process, and the reason comes back."""
    small = config("feddtr", text="hash")
    wrong = config("scaffold", momentum=0.9)
    here = carry_out([small], tmp_path / "here", watch, report=False)
    monkeypatch.setattr("fedloom.engine.run.Engine", None)  # nothing can be computed here now
    done, refused = carry_out([small, wrong], tmp_path / "apart", watch, report=False, apart=True)
    assert done.run and here[0].run and done.run.metrics == here[0].run.metrics
    assert done.run.summary["peak_rss_mb"] > 0
    assert refused.run is None and "scaffold needs plain SGD" in str(refused.error)
    # One linear layer from 8 to 8 numbers behind the words, with its bias.
    assert parameters(done.run)["text"] == pytest.approx((8 * 8 + 8) / 1e6)
    assert parameters(done.run)["all"] > parameters(done.run)["text"]


def test_the_time_until_the_best_round() -> None:
    timing = [
        {"round": turn, "seconds": seconds} for turn, seconds in ((1, 2.0), (2, 1.0), (3, 4.0))
    ]
    run = SimpleNamespace(summary={"chosen_rounds": {"best": 2}}, timing=timing)
    assert until_best(run) == 3.0  # type: ignore[arg-type]
    run.summary["chosen_rounds"]["best"] = None
    assert until_best(run) is None  # type: ignore[arg-type]


def test_tables_of_time_and_memory_are_computed_apart() -> None:
    assert [recipe(name).apart for name in ("feddtr-4", "feddtr-5", "f2dc-4", "fedpcl-1")] == [
        True
    ] * 4
    assert not recipe("feddtr-1").apart
    total = recipe("feddtr-5")
    for row, (minutes, rounds, each) in total.figures.items():
        gap = abs(float(rounds) * float(each) - float(minutes))
        assert gap <= 0.5 + 0.005 * float(rounds), row  # as far as rounding allows
    paper = recipe("feddtr-9").figures
    assert [paper[row][0] for row in recipe("feddtr-9").rows] == [
        "89",
        "9.3",
        "2.63",
        "1.31",
        "0.26",
    ]

"""The tables that `compare` and `sweep` print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedloom.cli import experiments
from fedloom.experiments.leaderboard import CHOSEN, COLUMNS, EXTRA, metric_columns


def board(metric: str, seeds: list[int]) -> dict[str, Any]:
    """A made-up leaderboard of two methods, in which every share is 0.75 and nll is 1.25."""
    rows = []
    for name in ("fedavg-after", "local"):
        row: dict[str, Any] = {"method": name, "seeds": seeds, "failed": [], "note": None}
        row |= {"remarks": [], "target_reached": 0}
        others = [metric.name for metric in metric_columns()]
        for column in (*CHOSEN, *COLUMNS, *EXTRA, *others):
            row[column] = 0.75
            row[f"{column}_std"] = 0.0125 if len(seeds) > 1 else None
        rows.append(row | {"nll": 1.25, "balanced_accuracy": 0.625, "seconds": 123.0})
    majority = {"name": "majority", "label": "Majority class", "value": 0.31, "std": None}
    return {
        "title": "two methods",
        "settings": {"metric": metric, "seeds": seeds, "against": "local"},
        "verdict": None,
        "rows": rows,
        "references": [{**majority, "explanation": "Accuracy of the most frequent class."}],
        "tests": [],
    }


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch):
    """What the function prints on a terminal of 80 columns."""

    def show(metric: str, seeds: list[int]) -> str:
        console = Console(width=80)
        monkeypatch.setattr(experiments, "console", console)
        with console.capture() as captured:
            experiments._print_leaderboard(board(metric, seeds), Path("out"))
        return captured.get()

    return show


def test_the_leaderboard_ends_with_the_majority_class(printed) -> None:
    lines = printed("accuracy", [0]).splitlines()
    names = "method personal last common std worst better gain MB up time"
    assert lines[1].split() == names.split()
    majority = next(line for line in lines if line.startswith("majority"))
    assert majority.split() == ["majority", "31.0", *["-"] * 8]
    assert lines.index(majority) > lines.index(next(x for x in lines if x.startswith("local")))


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_the_headline_has_the_first_column(printed, seeds: list[int]) -> None:
    text = printed("balanced_accuracy", seeds)
    lines = text.splitlines()
    assert lines[1].split() == ["balanced"] and lines[2].split()[:2] == ["method", "accuracy"]
    row = next(line for line in lines if line.startswith("local")).split()
    spread = ["±1.2"] if len(seeds) > 1 else []
    assert row[1 : 3 + len(spread)] == ["62.5", *spread, "75.0"]
    majority = next(line for line in lines if line.startswith("majority"))
    assert majority.split()[1:3] == ["-", "31.0"]
    assert "balanced accuracy: mean recall" in " ".join(text.split()) and "by val" not in text


def test_a_headline_that_is_no_percentage_is_shown_as_it_is(printed) -> None:
    text = printed("nll", [0])
    row = next(line for line in text.splitlines() if line.startswith("local"))
    assert row.split()[1:3] == ["1.250", "75.0"]
    assert "Not in percent." in " ".join(text.split())

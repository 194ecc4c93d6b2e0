"""The leaderboard's metrics: their columns, their order, and a model that says one class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedloom
from fedloom.data.dataset import Dataset
from fedloom.data.federation import Client, Federation
from fedloom.experiments.leaderboard import leaderboard
from fedloom.experiments.leaderboard_text import MOST_CLASSES, markdown
from fedloom.experiments.plan import Cell

CLIENTS = 3


def unequal_classes() -> Federation:
    """Inputs that say nothing and two classes 83:17, so the best answer is the larger class."""
    samples = 200 * CLIENTS
    x = torch.zeros(samples, 4)
    y = (torch.arange(samples) % 100 >= 83).long()
    nowhere = torch.zeros(samples, dtype=torch.int64)
    tested = torch.arange(samples) % 200 >= 100
    data = Dataset(x, y, nowhere, tested, ("large", "small"), ("only",), "unequal")
    clients = []
    for k in range(CLIENTS):
        rows = np.arange(200 * k, 200 * (k + 1))
        clients.append(Client(rows[:100], rows[:0], rows[100:]))
    return Federation(data, tuple(clients))


def test_a_model_that_always_says_the_larger_class_is_called_out(tmp_path: Path) -> None:
    run = fedloom.run(
        "fedavg",
        unequal_classes(),
        model="linear",
        rounds=5,
        lr=0.5,
        metric="auc",
        out=tmp_path / "run",
    )
    personal = run.summary["personal"]
    assert personal["accuracy_mean"]["last"] == pytest.approx(0.83)
    assert personal["balanced_accuracy_mean"]["last"] == pytest.approx(0.5)
    assert personal["majority_mean"]["last"] == pytest.approx(0.83)
    assert personal["recall_classes"]["last"] == [1.0, 0.0]
    assert personal["auc_mean"]["last"] == pytest.approx(0.5)
    assert run.summary["remarks"] == [f"predicts one class at {CLIENTS} of {CLIENTS} clients"]
    board = leaderboard([Cell(run.config, tmp_path / "run", run=run)], "unequal")
    text = markdown(board)
    assert f"fedavg predicts one class at {CLIENTS} of {CLIENTS} clients." in text
    assert "| majority class | 83.0 |" in text
    assert board["rows"][0]["balanced_accuracy"] == pytest.approx(0.5)
    assert board["settings"]["classes"] == ["large", "small"]
    _, _, names, _, row, *_ = text[text.index("## Recall by class (%)") :].splitlines()
    assert (names, row) == ("| method | large | small |", "| fedavg | 100.0 | 0.0 |")
    many = {**board["settings"], "classes": [str(k) for k in range(MOST_CLASSES + 1)]}
    assert "Recall by class" not in markdown({**board, "settings": many})
    page = (tmp_path / "run/report.html").read_text()
    assert f"predicts one class at {CLIENTS} of {CLIENTS} clients" in page


def test_the_headline_orders_the_rows() -> None:
    from fedloom.experiments.leaderboard import _sort
    from fedloom.metrics.registry import METRICS

    rows = [
        {"method": "a", "personal": 0.9, "nll": 2.0},
        {"method": "b", "personal": 0.5, "nll": 1.0},
        {"method": "c", "personal": None, "nll": None},
    ]
    _sort(rows, METRICS.find("accuracy"))
    assert [row["method"] for row in rows] == ["a", "b", "c"]
    _sort(rows, METRICS.find("nll"))  # less is better
    assert [row["method"] for row in rows] == ["b", "a", "c"]


def test_classes_are_averaged_over_the_seeds_that_have_them() -> None:
    from fedloom.experiments.leaderboard import _averaged_classes

    runs = [{"classes": {"recall": [0.2, None]}}, {"classes": {"recall": [0.4, 0.5]}}]
    means, stds = _averaged_classes([*runs, {"classes": {}}])
    assert means == {"recall": [pytest.approx(0.3), 0.5]}
    assert stds == {"recall": [pytest.approx(0.02**0.5), None]}

"""Sections on clients that never train, and on clients whose networks differ."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest

from fedloom.report import RunData, render
from tests.report.test_page import Balance


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are left blank: only tables are read here."""
    monkeypatch.setattr("fedloom.report.page.page_svg", lambda figure, id: "<svg></svg>")


def words(runs: list[RunData]) -> str:
    return " ".join(" ".join(Balance(render(runs, "A")).text).split())


def test_who_never_trained_has_a_table(comparison, undrawn) -> None:
    assert "Clients that never trained" not in words(comparison)
    runs = []
    for run in comparison:
        metrics = copy.deepcopy(run.metrics)
        scored = {"accuracy_mean": 0.125}
        for line in metrics:
            line["outside"] = {"sketch": {"common": scored, "before": None, "after": None}}
        runs.append(replace(run, metrics=metrics))
    said = words(runs)
    assert "Clients that never trained" in said
    assert "sketch Method common model" in said and "As sent" in said
    assert "own model, as sent" not in said
    after = said.partition("sketch Method common model")[2]
    assert re.search(r"\b12\.5\b", after[: after.index("As sent")])


def test_networks_that_differ_have_a_table(comparison, undrawn) -> None:
    assert "Clients with different networks" not in words(comparison)
    runs = []
    for run in comparison:
        federation = copy.deepcopy(run.federation)
        for k, client in enumerate(federation["clients"]):
            client["network"] = ("cnn", "mlp")[k % 2]
        runs.append(replace(run, federation=federation))
    count = len(comparison[0].federation["clients"])
    said = words(runs)
    assert f"cnn ({-(-count // 2)} clients)" in said and f"mlp ({count // 2} clients)" in said

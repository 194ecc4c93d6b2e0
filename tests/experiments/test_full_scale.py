"""Tables at full scale on replicas of their data, with tiny weights in the published forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedloom.cli.progress import Watch
from fedloom.experiments.blocks import Order, planned
from fedloom.experiments.recipe import recipe, tables
from fedloom.experiments.reproduce import carry_out_table
from fedloom.experiments.table import Brought, Recipe
from fedloom.report.callback import Picture
from tests.experiments.full_scale import SMALL, import_replica, weights_for

# Not in any paper: its data are features that fedloom made of theirs.
OWN = {"f2dc-surf"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("full")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks as thin as they can be, and no pictures."""
    real = Recipe.config

    def config(*given: Any) -> Any:
        made = real(*given)
        return made.model_copy(update={"network": made.network | SMALL.get(made.model, {})})

    monkeypatch.setattr(Recipe, "config", config)
    monkeypatch.setattr(Picture, "before_run", lambda *given: None)


def run(name: str, world: Path, out: Path, **order: Any) -> dict[str, Any]:
    table = recipe(name)
    settings = order.get("settings", ())
    for setting in table.settings:
        if "full" not in setting.missing and (not settings or setting.name in settings):
            import_replica(setting.data, world)
    changes = {"rounds": 1, "steps": 1, "training.batch": 2}
    brought = Brought(weights_for(table, world / "weights"), changes, [0])
    execution = {"data_root": str(world / "data"), "executor": "inplace"}
    asked = Order("full", execution=execution, brought=brought, **order)
    watch = Watch(Console(), 1, quiet=True)
    return carry_out_table(table, asked, planned(table, asked), out, watch)


def test_one_table_of_images(world: Path, tmp_path: Path, small: None) -> None:
    board = run("f2dc-1", world, tmp_path, only=["fedprox"], settings=["Office-Caltech"])
    rows = {row["row"]: row for row in board["settings"][0]["rows"]}
    assert rows["FedProx"]["remark"] is None and rows["FedProx"]["ours"][4]["mean"] is not None
    said = board["settings"][0]["differs"]
    assert "schedule.rounds = 1 (paper: 100)" in said and "1 seed, not 3" in said
    assert not any("Caltech" in line or "channels" in line for line in said)  # those of mini


def test_one_table_with_a_published_clip(world: Path, tmp_path: Path, small: None) -> None:
    board = run("fedpact-figure2", world, tmp_path, settings=["DTD"])
    (block,) = [block for block in board["settings"] if block["name"] == "DTD"]
    assert all(row["remark"] is None and row["ours"] for row in block["rows"])
    assert "RN50.pt" in board["title"] and len(block["rows"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in tables() if name not in OWN])
def test_every_table_runs_on_replicas(name: str, world: Path, tmp_path: Path, small: None) -> None:
    board = run(name, world, tmp_path)
    table = recipe(name)
    seen = 0
    for setting, block in zip(table.settings, board["settings"], strict=True):
        for row in block["rows"]:
            if "full" in setting.missing:
                assert row["remark"] == f"not run: {setting.missing['full']}"
            else:
                assert row["remark"] is None and row["ours"], (setting.name, row)
                seen += 1
    assert seen >= 2

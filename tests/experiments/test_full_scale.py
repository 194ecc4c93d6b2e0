"""Tables at full scale on replicas of their data, with tiny weights in the published forms.

The command is `fedloom reproduce TABLE --scale full --set rounds=1 --set steps=1`. Beside that and
the data and weights (`full_scale.py`), four things are smaller than a reader's, or all tables would
take hours: networks that are trained from random weights are as thin as `SMALL` says, there is one
seed and not three, clients are executed in this process (the results are those of a pool), and the
pictures of federations, which belong to no table, are left out. Batches, clients, partitions, image
sizes, optimisers and hyper-parameters are the paper's. One setting of each paper runs without any
of this, typed in a shell.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloom.experiments.recipe import recipe, tables
from fedloom.experiments.table import Recipe
from fedloom.report.callback import Picture
from tests.experiments.full_scale import SMALL, import_replica, weights_for

# Not in any paper.
OWN = {"f2dc-surf", "leave-one-domain-out"}

CommandLine = Callable[..., tuple[int, str, str]]
Reproduce = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("full")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks as thin as they can be, and no pictures of federations."""
    real = Recipe.config

    def config(*given: Any) -> Any:
        made = real(*given)
        return made.model_copy(update={"network": made.network | SMALL.get(made.model, {})})

    monkeypatch.setattr(Recipe, "config", config)
    monkeypatch.setattr(Picture, "before_run", lambda *given: None)


def typed(table: Recipe, world: Path, settings: tuple[str, ...] = ()) -> list[str]:
    """The command for a table, or for some of its settings, whose data and weights are made."""
    for setting in table.settings:
        if "full" not in setting.missing and (not settings or setting.name in settings):
            import_replica(setting.data, world)
    command = ["reproduce", table.name, "--scale", "full", "--set", "rounds=1", "--set", "steps=1"]
    for slot, encoder in weights_for(table, world / "weights").items():
        command += ["--encoder", f"{slot}={encoder}"]
    for name in settings:
        command += ["--settings", name]
    return [*command, "--data-root", str(world / "data"), "--json"]


@pytest.fixture
def reproduce(world: Path, tmp_path: Path, small: None, fedloom: CommandLine) -> Reproduce:
    """The command on a table at full scale, with one step in one round; gives what it writes.

    Tables share a folder, and so the runs that they have in common, unless they are about time.
    """

    def call(name: str, *options: str, settings: tuple[str, ...] = ()) -> dict[str, Any]:
        table = recipe(name)
        out = tmp_path if table.apart else world / "runs"
        command = typed(table, world, settings)
        command += ["--out", str(out), "--executor", "inplace", "--seeds", "0"]
        code, said, err = fedloom(*command, *options)
        assert code == 0, err
        board = dict(json.loads(said))
        for picture in board["pictures"]:
            for file in (out / picture, (out / picture).with_suffix(".pdf")):
                assert file.stat().st_size > 1000
        return board

    return call


def test_one_table_of_images(reproduce: Reproduce) -> None:
    board = reproduce("f2dc-1", "--only", "fedprox", settings=("Office-Caltech",))
    rows = {row["row"]: row for row in board["settings"][0]["rows"]}
    assert rows["FedProx"]["remark"] is None and rows["FedProx"]["ours"][4]["mean"] is not None
    said = board["settings"][0]["differs"]
    assert "schedule.rounds = 1 (paper: 100)" in said and "1 seed, not 3" in said
    setting = recipe("f2dc-1").settings[0]
    assert setting.stand_in is not None
    of_mini = setting.mini.differs + setting.stand_in.differs
    assert len(of_mini) == 2 and not set(of_mini) & set(said)
    assert set(setting.paper.differs) < set(said)


def test_one_table_with_a_published_clip(reproduce: Reproduce) -> None:
    board = reproduce("fedpact-figure2", settings=("DTD",))
    (block,) = [block for block in board["settings"] if block["name"] == "DTD"]
    assert all(row["remark"] is None and row["ours"] for row in block["rows"])
    assert "RN50.pt" in board["title"] and len(block["rows"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in tables() if name not in OWN])
def test_every_table_runs_on_replicas(name: str, reproduce: Reproduce) -> None:
    board = reproduce(name)
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
    assert len(board["pictures"]) == len(table.drawings) >= ("figure" in name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("f2dc-6", "Office-Caltech"),
        ("feddtr-6", "MNIST"),
        ("fedgcr-4", "Digit-Five, DIF 1"),
        ("fedpact-figure2", "DTD"),
        ("fedpcl-2", "several backbones"),
    ],
)
def test_a_setting_of_each_paper_as_a_reader_types_it(
    name: str, setting: str, world: Path, tmp_path: Path
) -> None:
    """In a shell, with the paper's networks and seeds, and the executor that the table has."""
    table = recipe(name)
    command = [sys.executable, "-m", "fedloom", *typed(table, world, (setting,))]
    ended = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    board = json.loads(ended.stdout)
    assert board["seeds"] == table.seeds["full"]
    (block,) = [block for block in board["settings"] if block["name"] == setting]
    assert len(block["rows"]) >= 2
    for row in block["rows"]:
        assert row["remark"] is None and row["ours"], row
    assert len(list(tmp_path.glob("*/summary.json"))) >= 2 * len(board["seeds"])

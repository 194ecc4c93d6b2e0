"""FedPACT's tables and figures: whole recipes, printed figures without slips, columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from fedloom.cli.progress import Watch
from fedloom.experiments import recipe as recipes
from fedloom.experiments.board import markdown, side_by_side
from fedloom.experiments.needs import lacking, titled, told
from fedloom.experiments.recipe import recipe, tables
from fedloom.experiments.reproduce import reproduce
from fedloom.experiments.table import NOTHING, Brought, parse_encoders

OURS = [name for name in tables() if name.startswith("fedpact-")]


def test_all_are_there() -> None:
    wanted = [f"fedpact-{n}" for n in ("1", "2", "3", "4", "5", "figure2", "figure3", "figure4")]
    assert wanted == OURS


@pytest.mark.parametrize("name", OURS)
def test_a_recipe_is_whole_and_names_its_encoder(name: str) -> None:
    table = recipe(name)
    assert "lite-clip" in titled(table, "mini") and "none at hand" in titled(table, "full")
    assert table.seeds["mini"] == [0, 1, 2] and len(table.settings) >= 10
    for setting in table.settings:
        for row in setting.rows:
            config = table.config(setting, "mini", row, 0, {})
            assert (
                config.schedule.rounds == 10
                and config.partition == "fewshot"
                and config.validation == 0
            )
            if config.method == "fedpact":
                assert (
                    config.training.lr == config.hyper["server_lr"] and config.training.epochs == 20
                )


@pytest.mark.parametrize("name", ["fedpact-1", "fedpact-2", "fedpact-4", "fedpact-5"])
def test_printed_means_are_those_of_the_printed_columns(name: str) -> None:
    """A slip of the pen would show.

    In Table 2 the paper prints DTD's figure under Pets for FedPGA (its mean implies 90.45), and
    some means are rounded down.
    """
    table, wrong, seen = recipe(name), [], 0
    for row, line in table.figures.items():
        for block, mean in enumerate(table.means[row]):
            values = line[10 * block : 10 * block + 10]
            if mean == "-":
                assert set(values) == {"-"}
                continue
            seen += 1
            gap = abs(sum(map(float, values)) / 10 - float(mean))
            if gap > 0.011:
                wrong.append((row, block))
    assert seen == 13
    assert wrong == ([("FedPGA", 0)] if name == "fedpact-2" else [])


@pytest.mark.parametrize("name", ["fedpact-4", "fedpact-5"])
def test_descriptions_of_classes_are_brought_or_said_to_be_lacking(name: str) -> None:
    table = recipe(name)
    setting = table.settings[0]
    mini = table.config(setting, "mini", "CLIP", 0, {})
    assert mini.hyper["prompts"] == "ensemble"
    assert any("eight templates" in line for line in told(table, setting, "mini", None, NOTHING))
    wanted = lacking(table, setting, "full", "CLIP", None, NOTHING)
    assert "GPT-3's sentences" in str(wanted) and "prompts=FOLDER" in str(wanted)
    brought = Brought(parse_encoders(table, "clip=lite-clip,prompts=sentences"))
    full = table.config(setting, "full", "FedPACT-P", 0, {}, brought)
    assert full.hyper["prompts"] == "sentences" and full.encoder == "lite-clip"
    assert lacking(table, setting, "full", "CLIP", None, brought) is None


TINY = """
title = "Made up (ours: {encoder})"
paper = "Nobody"
measure = "Accuracy."
minutes = 1
seeds = { mini = [0], full = [0] }
executor = "inplace"
extra = []
[methods]
"G" = { method = "fedavg", who = "common" }
"P" = "fedavg"
"Quick" = { method = "fedavg", training = { lr = 0.2 } }
[paper_figures]
"G" = "50.00 60.00"
[paper_means]
"G" = "55.00"
[all]
data = "digits4"
clients = 4
model = "cnn"
network = { width = 4, features = 16 }
schedule = { rounds = 1 }
[mini]
encoder = "{clip}"
[encoders.clip]
paper = "CLIP"
give = "clip:PATH"
[[settings]]
name = "both"
columns = { "first" = ["accuracy.last", "personal.accuracy_mean.last"] }
of.fedavg = { training = { lr = 0.07 } }
[[settings]]
name = "both"
columns = { "second" = ["accuracy.last", "personal.accuracy_mean.last"] }
all = { clients = 8 }
"""


def test_settings_of_one_name_stand_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package/tables").mkdir(parents=True)
    (tmp_path / "package/tables/made-1.toml").write_text(TINY)
    monkeypatch.setattr(recipes, "files", lambda _: tmp_path / "package")
    watch = Watch(Console(), 1, quiet=True)
    lacking = reproduce("made-1", "mini", tmp_path / "none", watch)
    assert all(
        row["remark"] == "not run: it needs CLIP, say --encoder clip:PATH"
        for block in lacking["settings"]
        for row in block["rows"]
    )
    (tmp_path / "package/tables/made-1.toml").write_text(
        TINY.replace(" (ours: {encoder})", "").split("[mini]")[0]
        + "[[settings]]"
        + TINY.split("[[settings]]", 1)[1]
    )
    board = reproduce("made-1", "mini", tmp_path / "R", watch)
    (block,) = side_by_side(board)
    assert block["columns"] == ["first", "second", "Mean"]
    rows = {row["row"]: row for row in block["rows"]}
    assert rows["G"]["paper"] == ["50.00", "60.00", "55.00"] and rows["P"]["paper"] == [
        "-",
        "-",
        "-",
    ]
    first, second, mean = (f["mean"] for f in rows["G"]["ours"])
    assert mean == pytest.approx((first + second) / 2)
    assert rows["G"]["ours"] == rows["P"]["ours"]  # FedAvg's personal model is the common one
    runs = sorted(p.name for p in (tmp_path / "R").glob("fedavg-*"))
    assert len(runs) == 4  # two rows show the same run
    rates = {json.loads(json.dumps(recipe("made-1").config(s, "mini", r, 0, {}).training.lr))
             for s in recipe("made-1").settings for r in ("P", "Quick")}  # fmt: skip
    assert rates == {0.07, 0.05, 0.2}
    assert "| G |" in markdown(board) and "Mean, ours" in markdown(board)

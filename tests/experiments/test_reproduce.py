"""The papers' tables: whole recipes, reasons for rows that are not run, measured figures."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import fedloom.cli.main
from fedloom.cli.progress import Watch
from fedloom.core.errors import FedloomError
from fedloom.engine.checkpoint import Store
from fedloom.engine.folder import Run
from fedloom.experiments import recipe as recipes
from fedloom.experiments.blocks import Order, differences, planned
from fedloom.experiments.needs import locate_data, overview
from fedloom.experiments.recipe import recipe, tables
from fedloom.experiments.reproduce import reproduce
from fedloom.experiments.table import available

COMPARISONS = [
    "f2dc-1",
    "f2dc-2",
    "f2dc-surf",
    "feddtr-1",
    "fedgcr-1",
    "fedpcl-2",
    "fedpcl-2official",
    "fedpcl-3",
]  # a row is a method
TABLES = tables()  # in the others rows have settings of their own
TINY = """
title = "Made up, Table 1"
paper = "Nobody"
measure = "Accuracy."
minutes = 1
seeds = { mini = [0], full = [0, 1] }
extra = ["fedper"]
[methods]
"FedAvg" = "fedavg"
"FedNone" = "fednone"
[paper_figures]
"FedAvg" = "50.00(1.00) 10.00 20.00"
"FedNone" = "60.00 11.00 21.00"
[all]
data = "digits4"
clients = 4
source = { limit_train = 10, limit_test = 5 }
[all.schedule]
rounds = 100
[mini]
network = { width = 4, features = 16 }
schedule = { rounds = 2 }
[[settings]]
name = "first"
who = "common"
columns = { "Avg" = "domain_avg.last", "Photo" = ["domains.nothing.last", "domains.photo.last"] }
differs = ["smaller images"]
[[settings]]
name = "second"
columns = { "Avg" = "domain_avg.last" }
all = { data = "nowhere_to_be_found" }
"""


@pytest.fixture
def watch() -> Watch:
    return Watch(Console(), 1, quiet=True)


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of recipes with one small table in it."""
    (tmp_path / "package/tables").mkdir(parents=True)
    (tmp_path / "package/tables/made-1.toml").write_text(TINY)
    monkeypatch.setattr(recipes, "files", lambda _: tmp_path / "package")


def test_all_tables_are_there_and_listed() -> None:
    assert set(TABLES) <= set(tables())
    found = {row["table"]: row for row in overview()}
    assert set(found) == set(tables()) and all(row["minutes"] > 0 for row in found.values())


@pytest.mark.parametrize("name", TABLES)
def test_a_recipe_is_whole(name: str) -> None:
    table = recipe(name)
    assert len(table.rows) >= (7 if name in COMPARISONS else 2)
    for setting in table.settings:
        known = [row for row in setting.rows if available(table.method(row))]
        assert len(known) >= 2
        for scale in ("mini", "full"):
            configs = [table.config(setting, scale, row, 0, {}) for row in known]
            assert [c.method for c in configs] == [table.method(row) for row in known]
            shown = {
                (c.hash(), table.rows[row].get("who"))
                for c, row in zip(configs, known, strict=True)
            }
            assert len(shown) == len(known)  # no two rows show the same figures of the same run
            assert all(c.schedule.rounds <= 100 for c in configs) or scale == "full"
        for row in table.figures:
            printed = dict(zip(setting.columns, table.printed(row, setting), strict=True))
            shares = [figure for column, figure in printed.items() if column not in table.plain]
            assert all(re.fullmatch(r"-|\d+\.\d+(\(\d+\.\d+\))?", figure) for figure in shares)
            assert all(0 < float(figure.split("(")[0]) <= 100 for figure in shares if figure != "-")


def test_tables_go_by_two_names() -> None:
    assert recipe("fedpcl-table2") == recipe("fedpcl-2") and recipe("f2dc-table-1").name == "f2dc-1"
    assert recipe("fedpcl-fig3").name == recipe("fedpcl-figure3").name == "fedpcl-figure3"


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("f2dc-1", (4, 4)),
        ("f2dc-2", (4,)),
        ("f2dc-3", (4,)),
        ("f2dc-6", (4, 4)),
        ("f2dc-7", (4,)),
        ("fedpcl-2", (5, 5)),
    ],
)
def test_printed_averages_are_those_of_the_printed_domains(
    name: str, columns: tuple[int, ...]
) -> None:
    """A slip of the pen in a figure would show."""
    table, wrong, seen = recipe(name), set(), 0
    printed = [
        s for s in table.settings if set(table.printed(next(iter(table.figures)), s)) != {"-"}
    ]
    for setting, domains in zip(printed, columns, strict=True):
        for row in table.figures:
            values = [
                float(figure.split("(")[0]) for figure in table.printed(row, setting)[: domains + 1]
            ]
            seen += 1
            if abs(sum(values[:domains]) / domains - values[domains]) > 0.011:
                wrong.add((setting.name, row))
    assert seen == len(table.figures) * len(columns)
    # This one average is printed as 56.24 where its domains give 56.255.
    assert wrong == (
        {("Office-Caltech", "FedRCL")}
        if name == "f2dc-1"
        else {("Office-Caltech, SURF", "FedRCL")}
        if name == "f2dc-surf"
        else set()
    )


def test_a_table_is_measured_and_says_what_is_not(
    made_up: None, tmp_path: Path, watch: Watch
) -> None:
    board = reproduce("made-1", "mini", tmp_path / "R", watch)
    assert json.loads((tmp_path / "R/table.json").read_text()) == board
    first, second = board["settings"]
    rows = {r["row"]: r for r in first["rows"]}
    assert list(rows) == ["FedAvg", "FedNone", "fedper"]
    (folder,) = (tmp_path / "R").glob("fedavg-s0-*")
    run = Run.load(folder)
    summary = run.summary
    train = {client["domain"]: np.array(client["counts"]) for client in run.federation["clients"]}
    most_frequent = int(sum(train.values()).argmax())
    own = int(train["photo"].argmax())
    assert [f["mean"] for f in rows["FedAvg"]["ours"]] == [
        summary["common"]["domain_avg"]["last"],
        summary["common"]["domains"]["photo"]["last"],
    ]
    assert rows["FedAvg"]["paper"] == ["50.00(1.00)", "10.00"] and rows["FedAvg"]["remark"] is None
    assert (
        rows["FedNone"]["ours"] is None
        and rows["FedNone"]["remark"] == "not run: method not available"
    )
    assert rows["fedper"]["paper"] == ["-", "-"] and rows["fedper"]["ours"][0]["mean"] is not None
    assert all(
        r["remark"].startswith("not run: data set nowhere_to_be_found not at hand (its folder")
        for r in second["rows"]
    )
    assert second["rows"][1]["paper"] == ["21.00"]
    test = {client["domain"]: client["test_counts"] for client in run.federation["clients"]}
    assert {floor["row"]: floor["ours"][1]["mean"] for floor in first["floors"]} == {
        "chance": pytest.approx(0.1),
        "majority": pytest.approx(test["photo"][most_frequent] / sum(test["photo"])),
        "own majority": pytest.approx(test["photo"][own] / sum(test["photo"])),
    }
    assert second["floors"] == []
    text = (tmp_path / "R/table.md").read_text()
    for said in (
        "| chance | 10.00 | - | 10.00 | - |  |",
        "- smaller images",
        "- schedule.rounds = 2 (paper: 100)",
        "- network.width = 4 (paper: 32)",
        "not run: method not available",
        "Ours: 4 clients with 400 training samples.",
    ):
        assert said in text, text
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "R").glob("*/metrics.jsonl")}
    assert len(stamps) == 2 and reproduce("made-1", "mini", tmp_path / "R", watch) == board
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in stamps.items())


@pytest.mark.parametrize(
    ("name", "words", "changed"),
    [
        ("fedpcl-2", "Lite0", "partitioning.test_per_class = 30"),
        ("fedgcr-2", "vit-mini", "schedule.rounds = "),
    ],
)
def test_a_network_that_is_not_the_papers_is_told_in_words(
    name: str, words: str, changed: str
) -> None:
    table = recipe(name)
    setting = table.settings[-1]
    said = differences(table, setting, Order("mini"))
    assert words in " ".join(said)
    assert any(s.startswith(changed) for s in said)
    assert not any(s.startswith(("network", "encoder")) for s in said)
    at_full_scale = differences(table, setting, Order("full"))
    assert words not in " ".join(at_full_scale) and "fonts" not in " ".join(at_full_scale)


@pytest.mark.parametrize(("times", "printed"), [(3, "50.00(1.00)"), (5, "50.00")])
def test_the_printed_table_fits_80_columns(
    times: int,
    printed: str,
    made_up: None,
    tmp_path: Path,
    watch: Watch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from fedloom.cli import reproduce as cli

    monkeypatch.setattr(cli, "console", Console(width=80))
    board = reproduce("made-1", "mini", tmp_path / "R", watch, only=["fedavg"])
    first = board["settings"][0]
    first["columns"] *= times
    first["plain"] *= times
    for row in first["rows"]:
        row["paper"] *= times
        row["ours"] = row["ours"] and row["ours"] * times
    for row in first["floors"]:
        row["ours"] *= times
    cli._print_board(board, tmp_path / "R")
    out = capsys.readouterr().out.split("table: ")[0]  # a path is not folded
    assert "…" not in out and max(map(len, out.splitlines())) <= 80
    lines = [line.split() for line in out.splitlines()]
    assert ["paper", *[printed, "10.00"] * times] in lines
    assert not any(line[:1] == ["fedper"] for line in lines)  # neither run nor in the paper
    assert any(line[:2] == ["FedAvg", "ours"] and len(line) == 2 + 2 * times for line in lines)


ROWS = """
title = "Made up, Table 2"
paper = "Nobody"
measure = "Accuracy, and what is sent."
minutes = 1
seeds = { mini = [0], full = [0] }
extra = []
plain = ["sent", "like"]
similar = "local"
[methods]
"both" = { method = "fedpcl", hyper = { loss = "both" } }
"local" = { method = "fedpcl", hyper = { loss = "local" } }
"alone" = "local"
[paper_figures]
"both" = "2560 - 50.00"
[all]
data = "digits4"
partition = "feature_shift"
model = "projection"
clients = 4
source = { flatten = true, size = 8, limit_train = 4, limit_test = 2 }
schedule = { rounds = 2 }
[[settings]]
name = "one"
rows = ["both", "local"]
columns = { "sent" = "floats.up", "like" = "similarity.photo", "Avg" = "domain_avg.last" }
[[drawings]]
kind = "heat"
name = "alike"
[[drawings]]
kind = "by-setting"
panels = [{ name = "what is sent", label = "", settings = ["one"] }]
"""


def test_rows_with_settings_of_their_own_and_plain_columns(
    made_up: None, tmp_path: Path, watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "package/tables/made-2.toml").write_text(ROWS)
    board = reproduce("made-table2", "mini", tmp_path / "R", watch)
    assert board["table"] == "made-2"
    (block,) = board["settings"]
    assert [r["row"] for r in block["rows"]] == [
        "both",
        "local",
    ]  # `alone` has no figures in this setting
    losses = {Run.load(f).config.hyper["loss"] for f in (tmp_path / "R").glob("fedpcl-s0-*")}
    assert losses == {"both", "local"}
    both, local = (r["ours"] for r in block["rows"])
    assert both[0]["mean"] == 2560.0 and local[1]["mean"] is None
    sets = [
        Store(f / "checkpoint").load().server.tensor("every")
        for loss in ("both", "local")
        for f in (tmp_path / "R").glob("fedpcl-s0-*")
        if Run.load(f).config.hyper["loss"] == loss
    ]
    like = torch.einsum("kcd,kcd->k", *sets)
    domains = [
        c["domain"] for c in Run.load(next((tmp_path / "R").glob("fedpcl-*"))).federation["clients"]
    ]
    assert both[1]["mean"] == pytest.approx((like / like.sum())[domains.index("photo")].item())
    text = (tmp_path / "R/table.md").read_text()
    assert re.search(r"\| both \| 2560 \| 2560 \| 0\.\d\d \| - \| \d+\.\d\d \| 50\.00 \|", text), (
        text
    )
    assert "| local | 2560 | - | - | - |" in text
    assert board["pictures"] == ["made-2-alike.svg", "made-2.svg"]
    heat, chart = ((tmp_path / "R" / name).read_text() for name in board["pictures"])
    assert (tmp_path / "R/made-2.pdf").read_bytes().startswith(b"%PDF")
    assert heat.startswith("<svg") and ">both<" in heat and f"{both[1]['mean']:.2f}" in heat
    assert chart.startswith("<svg") and ">both<" in chart and ">local<" in chart


def test_curves_by_round(made_up: None, tmp_path: Path, watch: Watch) -> None:
    """A panel for each setting that was run, with the rows that were."""
    table = tmp_path / "package/tables/made-1.toml"
    drawing = '[[drawings]]\nkind = "by-round"\nmeasure = "domain_avg"\n'
    table.write_text(table.read_text().replace("[[settings]]", f"{drawing}[[settings]]", 1))
    board = reproduce("made-1", "mini", tmp_path / "R", watch)
    assert board["pictures"] == ["made-1.svg"]
    picture = (tmp_path / "R/made-1.svg").read_text()
    assert ">first<" in picture and ">second<" not in picture
    assert ">FedAvg<" in picture and ">FedNone<" not in picture
    assert "![made-1](<made-1.svg>)" in (tmp_path / "R/table.md").read_text()


def test_only_some_methods(made_up: None, tmp_path: Path, watch: Watch) -> None:
    board = reproduce("made-1", "mini", tmp_path / "R", watch, only=["fedper"])
    remarks = {r["row"]: r["remark"] for r in board["settings"][0]["rows"]}
    assert remarks["FedAvg"] == "not run: left out" and remarks["fedper"] is None
    with pytest.raises(
        FedloomError, match="unknown method in table made-1 'fedpre'; did you mean 'fedper'"
    ):
        reproduce("made-1", "mini", tmp_path / "R", watch, only=["fedpre"])


@pytest.mark.slow
def test_mini_runs_some_rows_and_others_by_name(made_up: None, tmp_path: Path) -> None:
    file = tmp_path / "package/tables/made-1.toml"
    file.write_text(TINY.replace('name = "first"', 'name = "first"\nmini_rows = ["FedAvg"]'))
    table = recipe("made-1")
    left_out = planned(table, Order("mini"))[0].reasons
    assert left_out["FedAvg"] is None and "unless --only" in str(left_out["fedper"])
    assert planned(table, Order("mini", ["fedper"]))[0].reasons["fedper"] is None
    assert planned(table, Order("full"))[0].reasons["fedper"] is None


def test_another_precision_is_used_and_told(made_up: None, tmp_path: Path, watch: Watch) -> None:
    board = reproduce("made-1", "mini", tmp_path, watch, only=["fedper"], precision="bf16")
    assert any("training.precision = bf16 (paper: fp32)" in s["differs"] for s in board["settings"])
    configs = [tomllib.loads(p.read_text()) for p in tmp_path.rglob("config.toml")]
    assert configs and all(c["training"]["precision"] == "bf16" for c in configs)


def test_only_some_settings(made_up: None, tmp_path: Path, watch: Watch) -> None:
    names = [s.name for s in recipe("made-1").settings]
    board = reproduce(
        "made-1", "mini", tmp_path / "R", watch, only=["fedper"], settings=[names[0].upper()]
    )
    out = {b["name"]: {r["remark"] for r in b["rows"]} for b in board["settings"]}
    assert None in out[names[0]] and len(names) > 1
    assert all(
        "not run: left out" in remarks and None not in remarks
        for n, remarks in out.items()
        if n != names[0]
    )
    with pytest.raises(FedloomError, match="unknown setting of table made-1 'nowhere'"):
        reproduce("made-1", "mini", tmp_path / "R", watch, settings=["nowhere"])


def test_unknown_table_and_scale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for args, said in (
        (["feddtr1"], "unknown table 'feddtr1'; did you mean 'feddtr-1'?"),
        (["feddtr-1", "--scale", "minni"], "unknown scale 'minni'; did you mean 'mini'?"),
    ):
        monkeypatch.setattr(sys, "argv", ["fedloom", "reproduce", *args])
        with pytest.raises(SystemExit) as stop:
            fedloom.cli.main.main()
        assert stop.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("FEDLOOM_DATA"),
    reason="FEDLOOM_DATA says where real data lie; it is not set",
)
def test_every_setting_at_hand_can_be_dealt_out() -> None:
    from fedloom.experiments.plan import Dealer

    cases = []
    for name in sorted(TABLES):
        table = recipe(name)
        for setting in table.settings:
            if locate_data(setting, "mini", None)[1] is None:
                row = next(row for row in setting.rows if available(table.method(row)))
                paths = [p for paths in setting.columns.values() for p in paths]
                wanted = {d for p in paths for d in re.findall(r"(?:domains|similarity)\.(\w+)", p)}
                cases.append(
                    (table.config(setting, "mini", row, 0, {}), wanted, f"{name}, {setting.name}")
                )
    assert len(cases) >= 60
    dealer = Dealer()  # keeps its last federation, so what is dealt out alike comes together
    for config, wanted, where in sorted(cases, key=lambda case: Dealer.key(case[0])):
        missing = wanted - {c.domain for c in dealer(config).clients}
        assert missing <= {"caltech", "syn"}, (where, missing)


def test_settings_are_chosen_by_their_data_set_too() -> None:
    table = recipe("fedpact-3")  # whose settings are called K = 10, K = 20 and K = 50
    by_set = [setting for setting in table.settings if setting.chosen(["DTD"])]
    assert [setting.name for setting in by_set] == ["K = 10", "K = 20", "K = 50"]
    assert {setting.data for setting in by_set} == {"dtd"}
    assert sum(setting.chosen(["K = 10", "dtd"]) for setting in table.settings) == 12
    mnist = [
        setting for setting in recipe("feddtr-1").settings if setting.chosen(["fashion_mnist"])
    ]
    assert {setting.data for setting in mnist} == {"fashion_mnist"}
    with pytest.raises(FedloomError, match=r"unknown setting .* 'dt'; did you mean 'dtd'"):
        table.has([], ["dt"])

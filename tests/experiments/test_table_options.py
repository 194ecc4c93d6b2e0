"""What a user brings to a table or wants otherwise: encoders, changes, shards; what it costs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedloom.cli.progress import Watch
from fedloom.core.errors import FedloomError
from fedloom.data.published import published
from fedloom.engine.engine import Engine
from fedloom.experiments import recipe as recipes
from fedloom.experiments.blocks import Order, all_configs, differences, planned
from fedloom.experiments.cost import A100, _passes, cost_of, span
from fedloom.experiments.needs import overview
from fedloom.experiments.recipe import recipe, tables
from fedloom.experiments.reproduce import reproduce
from fedloom.experiments.shards import of_shard, parse_shard
from fedloom.experiments.table import Brought, parse_encoders, split_names

FIRST = """
title = "Made up, Table 1 (ours: {encoder})"
paper = "Nobody"
measure = "Accuracy."
minutes = 1
seeds = { mini = [0], full = [0, 1, 2] }
[methods]
"FedAvg" = "fedavg"
"FedProx" = { method = "fedprox", hyper = { mu = 0.5 } }
"FedProx, strong" = { method = "fedprox", hyper = { mu = 5.0 } }
[all]
clients = 4
schedule = { rounds = 9 }
differs = ["nobody knows"]
[mini]
schedule = { rounds = 1 }
network = { width = 2, features = 4 }
differs = ["one round"]
[sets.mnist]
all.source = { size = 28, limit_train = 6 }
[sets.mnist.stand_in]
data = "digits4"
source = { limit_train = 5, limit_test = 2 }
differs = ["not MNIST"]
[encoders.first]
paper = "the first network"
give = "hf:FOLDER"
stand_in = "vit-mini"
differs = "vit-mini in place of the first network"
[encoders.second]
paper = "the second network"
give = "clip:FILE"
[[settings]]
name = "digits, all"
columns = { "Avg" = "domain_avg.last" }
all = { data = "mnist", partition = "iid" }
[[settings]]
name = "broken"
columns = { "Avg" = "domain_avg.last" }
all = { data = "BROKEN" }
"""
SECOND = """
extends = "made-1"
title = "Made up, Table 2"
measure = "The same with features."
minutes = 1
[methods]
"one" = { method = "fedavg", model = "linear", encoder = "{first}" }
"two" = { method = "fedavg", model = "linear", encoder = "{first},{second}" }
[all]
clients = 5
"""


@pytest.fixture(autouse=True)
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small tables, a data set that is damaged, and no other data."""
    (tmp_path / "package/tables").mkdir(parents=True)
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    first = FIRST.replace("BROKEN", str(tmp_path / "broken.npz"))
    (tmp_path / "package/tables/made-1.toml").write_text(first)
    (tmp_path / "package/tables/made-2.toml").write_text(SECOND)
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(recipes, "files", lambda _: tmp_path / "package")


def test_a_table_extends_another() -> None:
    table = recipe("made-2")
    assert list(table.rows) == ["one", "two"] and table.paper == "Nobody"
    assert [setting.name for setting in table.settings] == ["digits, all", "broken"]
    config = table.config(table.settings[0], "full", "one", 0, {})
    assert config.clients == 5 and config.schedule.rounds == 9 and config.source.size == 28


def test_a_stand_in_gives_way_to_the_real_set(tmp_path: Path) -> None:
    table = recipe("made-1")
    setting = table.settings[0]
    before = table.config(setting, "mini", "FedAvg", 0, {})
    assert before.data == "digits4" and before.source.size is None
    assert table.config(setting, "full", "FedAvg", 0, {}).data == "mnist"  # no stand-ins there
    assert "not MNIST" in differences(table, setting, Order("mini"))
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data/mnist.npz", x=np.zeros(1))
    after = table.config(setting, "mini", "FedAvg", 0, {})
    assert after.data == "mnist" and after.source.size == 28 and after.source.limit_train == 6
    assert "not MNIST" not in differences(table, setting, Order("mini"))
    full = differences(table, setting, Order("full"))
    assert "nobody knows" in full and "one round" not in full
    assert any("was not imported" in line for line in full)


def test_encoders_fill_their_slots_and_stand_ins_only_at_mini() -> None:
    table = recipe("made-2")
    assert parse_encoders(table, "hf:a,clip:b") == {"first": "hf:a", "second": "clip:b"}
    assert parse_encoders(table, "second=clip:b=c") == {"second": "clip:b=c"}
    for text, said in (
        ("a,b,c", "table made-2 has 2 encoders .first, second., but 3 are given"),
        ("frist=a", "unknown encoder of table made-2 'frist'; did you mean 'first'"),
    ):
        with pytest.raises(FedloomError, match=said):
            parse_encoders(table, text)
    with pytest.raises(FedloomError, match="has no frozen encoder: leave --encoder out"):
        parse_encoders(replace(table, encoders={}), "vit-mini")
    reasons = planned(table, Order("mini"))[0].reasons
    assert reasons["one"] is None
    assert reasons["two"] == (
        "not run: it needs the second network, say --encoder second=clip:FILE"
    )
    setting = table.settings[0]
    brought = Brought({"first": "hf:a", "second": "clip:b"})
    assert table.config(setting, "full", "two", 0, {}, brought).encoder == "hf:a,clip:b"
    assert "vit-mini in place of the first network" in differences(table, setting, Order("mini"))
    given = differences(table, setting, Order("mini", brought=brought))
    assert not any("vit-mini" in line for line in given)


def test_names_with_commas_are_told_from_lists() -> None:
    names = ["Practical, MNIST", "Practical, AG News", "CIFAR-10"]
    assert split_names(["Practical, AG News"], names) == ["Practical, AG News"]
    assert split_names(["Practical, MNIST,CIFAR"], names) == ["Practical, MNIST", "CIFAR"]
    assert split_names(["cifar", "practical, ag"], names) == ["cifar", "practical, ag"]
    assert split_names(["CIFAR,MNIST"], names) == ["CIFAR", "MNIST"]


def test_changes_reach_the_runs_they_can_and_are_refused_elsewhere() -> None:
    table = recipe("made-1")

    def plan(**changes: object) -> list:
        keys = {key.replace("_", ".", 1): value for key, value in changes.items()}
        return planned(table, Order("mini", brought=Brought(changes=keys, seeds=[3, 4])))

    configs = all_configs(plan(rounds=2, steps=1))
    assert {config.seed for config in configs} == {3, 4}
    assert {(c.schedule.rounds, c.training.steps) for c in configs} == {(2, 1)}
    for changes, said in (
        ({"rouns": 2}, "setting 'digits, all', row 'FedAvg': unknown key 'rouns'"),
        ({"mu": 1.0}, "'mu' is a setting of fedprox only: say --set fedprox.mu=1.0"),
        ({"fedprox_mu": 1.0}, "--set fedprox.mu=1.0 would make alike what table made-1 compares"),
        ({"seed": 1}, "a table's seeds are given with --seeds"),
        ({"method": "ditto"}, "--only chooses methods of the table"),
        ({"ditto_lam": 1.0}, "ditto is not among the methods compared"),
    ):
        with pytest.raises(FedloomError, match=said):
            plan(**changes)
    brought = Brought(changes={"source.size": 8, "rounds": 2})
    said = differences(table, table.settings[0], Order("full", brought=brought))
    assert "schedule.rounds = 2 (paper: 9)" in said and "source.size = 8 (paper: 28)" in said


def test_settings_that_a_table_compares_are_not_made_alike(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()  # the papers' own tables
    table = recipe("feddtr-2")
    (tmp_path / "cifar100").mkdir()

    def plan(settings: list[str], **changes: object) -> list:
        execution = {"data_root": str(tmp_path)}
        brought = Brought(changes=changes)
        return planned(table, Order("full", ["ditto"], settings, execution, brought))

    said = "--set clients=5 would make alike .* 'CIFAR-100, 10 clients' and .* '.*, 20 clients'"
    with pytest.raises(FedloomError, match=said):
        plan([], clients=5)
    (config,) = all_configs(plan(["20 clients"], clients=5))
    assert config.clients == 5
    assert len(all_configs(plan([], rounds=1, steps=1, batch=2))) == 4


def test_shards_and_a_damaged_data_set(tmp_path: Path) -> None:
    """Two shards have all runs between them; what cannot be read is told and costs no other row."""
    watch = Watch(Console(), 1, quiet=True)
    out = tmp_path / "out"
    first = reproduce("made-1", "mini", out, watch, shard=(1, 2))
    ours = [row["ours"] is not None for row in first["settings"][0]["rows"]]
    assert ours == [True, False, True]
    assert "another shard's" in first["settings"][0]["rows"][1]["remark"]
    second = reproduce("made-1", "mini", out, watch, shard=(2, 2))  # sees what the first has done
    assert all(row["ours"] for row in second["settings"][0]["rows"])
    whole = reproduce("made-1", "mini", out, watch)
    assert [row["remark"] for row in whole["settings"][0]["rows"]] == [None, None, None]
    for broken in whole["settings"][1]["rows"]:
        assert broken["ours"] is None and broken["remark"].startswith("not run: ")
        assert "broken.npz" in broken["remark"]


def test_shards_of_two_machines_merge_into_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(Console(), 1, quiet=True)
    whole = reproduce("made-1", "mini", tmp_path / "whole", watch)
    for i in (1, 2):
        reproduce("made-1", "mini", tmp_path / f"machine-{i}", watch, shard=(i, 2))
        shutil.copytree(tmp_path / f"machine-{i}", tmp_path / "merged", dirs_exist_ok=True)
    monkeypatch.setattr(Engine, "run", None)  # nothing is left to compute
    merged = reproduce("made-1", "mini", tmp_path / "merged", watch)
    assert merged["settings"][0]["rows"] == whole["settings"][0]["rows"]
    assert all(row["ours"] for row in merged["settings"][0]["rows"])


def test_every_run_belongs_to_one_shard(tmp_path: Path) -> None:
    configs = all_configs(planned(recipe("made-1"), Order("mini")))
    parts = [of_shard(configs, (i, 3), tmp_path) for i in (1, 2, 3)]
    assert sorted(id(c) for part in parts for c in part) == sorted(map(id, configs))
    assert parse_shard("2/3") == (2, 3)
    for text in ("0/3", "4/3", "2", "a/b"):
        with pytest.raises(FedloomError, match="--shard wants I/N, such as 2/3"):
            parse_shard(text)


def test_what_runs_cost_is_told_before_data_are_there(tmp_path: Path) -> None:
    """MNIST: 70 000 images, of which 52 500 are trained on, in batches of 10."""
    from fedloom.engine.config import build

    given = {
        "data": "mnist",
        "partition": "dirichlet",
        "clients": 20,
        "split": "merged",
        "validation": 0.0,
        "model": "cnn",
        "network": {"width": 2, "features": 4},
        "schedule": {"rounds": 2000, "eval_every": 2000},
        "training": {"batch": 10, "drop_last": True},
    }
    cost = cost_of([build(given), build(given)], tmp_path)
    assert cost.runs == 1 and not cost.unknown
    assert cost.work.steps == pytest.approx(2000 * 5250, rel=0.01)
    hours = A100.seconds(cost.work) / 3600
    assert 0.5 < hours < 30 and "on an NVIDIA A100 (8 TFLOP/s" in cost.line(A100)
    fitted = cost_of([build({**given, "method": "ditto"})], tmp_path)
    assert fitted.work.steps == pytest.approx(2 * cost.work.steps)
    assert span(17 * 86400) == "17 days" and span(60) == "a minute"


@pytest.mark.parametrize(
    ("method", "passes"), [("fedprox", 1), ("moon", 5 / 3), ("fedsam", 2), ("pfedme", 5)]
)
def test_passes_through_the_network_are_counted(method: str, passes: float) -> None:
    assert _passes(method, "{}") == pytest.approx(passes)


def test_options_that_a_list_cannot_use_are_refused(
    fedloom: Callable[..., tuple[int, str, str]],
) -> None:
    for option, *value in (
        ("--seeds", "0"), ("--scale", "full"), ("--device", "cpu"), ("--executor", "inplace"),
        ("--workers", "2"), ("--precision", "bf16"), ("--quiet",),
    ):  # fmt: skip
        code, _, err = fedloom("reproduce", "--list", option, *value)
        assert code == 2 and f"{option} is for one table: name it" in err
    code, out, _ = fedloom("reproduce", "--list", "--quiet", "--json")  # as everywhere: JSON alone
    assert code == 0 and len(json.loads(out)) == 2
    code, _, err = fedloom("reproduce", "made-1", "--seeds", "0,1,0")
    assert code == 2 and "--seeds names 0 twice" in err
    code, _, err = fedloom("reproduce", "made-1", "--rounds", "2", "--set", "rounds=1")
    assert code == 2 and "say the same" in err
    code, out, _ = fedloom("reproduce", "made-1", "--plan", "--out", "nowhere")
    assert code == 0 and "cost: 3 runs to do; " in out and "FLOP" in out


def test_encoders_that_no_chosen_row_uses_are_refused() -> None:
    table = recipe("made-2")

    def plan(only: list[str], **encoders: str) -> None:
        planned(table, Order("full", only, brought=Brought(encoders)))

    plan([], first="hf:a", second="clip:b")
    one = replace(table, rows={"one": table.rows["one"]})
    one = replace(one, settings=[replace(setting, rows=["one"]) for setting in table.settings])
    none = replace(table, settings=[replace(setting, rows=[]) for setting in table.settings])
    with pytest.raises(FedloomError, match=r"--encoder second=clip:b: no row that is chosen uses"):
        planned(one, Order("full", brought=Brought({"first": "hf:a", "second": "clip:b"})))
    with pytest.raises(FedloomError, match=r"\(they use: none\); leave it out"):
        planned(none, Order("full", brought=Brought({"first": "hf:a"})))


def test_training_is_not_changed_where_nobody_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the papers' own tables
    table = recipe("fedpact-1")

    def plan(only: list[str], **changes: object) -> None:
        keys = {key.replace("_", ".", 1): value for key, value in changes.items()}
        planned(table, Order("mini", only, brought=Brought(changes=keys)))

    for only, changes, names in (
        (["zeroshot"], {"lr": 5.0}, "zeroshot"),
        (["zeroshot", "ecalp"], {"training_batch": 4}, "zeroshot, ecalp"),
        ([], {"tip-adapter_epochs": 2}, "tip-adapter"),
    ):
        with pytest.raises(FedloomError, match=rf"nothing: none of these trains \({names}\)"):
            plan(only, **changes)
    plan(["zeroshot", "fedpga"], lr=5.0)
    plan(["zeroshot"], training_precision="bf16")  # scores depend on it


def test_a_plan_counts_what_is_not_at_hand(
    monkeypatch: pytest.MonkeyPatch, fedloom: Callable[..., tuple[int, str, str]]
) -> None:
    """The whole of a table, from the published counts, on a machine that has no data."""
    monkeypatch.undo()  # the papers' own tables
    command = ("reproduce", "fedpcl-4", "--scale", "full", "--plan", "--data-root", "/nowhere")
    code, out, _ = fedloom(*command, "--seeds", "0", "--json")
    told = json.loads(out)
    assert code == 0 and told["runs"] == 0 and told["not_at_hand"]["runs"] == 6
    command = ("reproduce", "feddtr-9", "--scale", "full", "--plan", "--data-root", "/nowhere")
    code, out, _ = fedloom(*command)
    (line,) = [line for line in out.splitlines() if line.startswith("not at hand: ")]
    assert code == 0 and "cost: 0 runs to do" in out
    assert "not at hand: 5 runs to do; " in line and "on an NVIDIA A100" in line
    assert "5 rows not run: data set cifar10 not at hand" in out


def test_the_list_names_what_to_type_on_a_machine_with_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # the papers' own tables
    found = {row["table"]: row for row in overview("/nowhere/at/all")}
    assert set(found) == set(tables())
    for name, row in found.items():
        table = recipe(name)
        wanted = [s.data for s in table.settings if "full" not in s.missing]
        commands = {published()[data].command for data in wanted if data in published()}
        assert set(row["get"]) == commands and len(row["get"]) == len(commands), name
        assert all(data in published() for data in wanted) or name == "leave-one-domain-out"
        assert bool(wanted) == (name != "f2dc-surf")
        assert [line.split(" (")[0] for line in row["bring"]] == [
            f"--encoder {'' if len(table.encoders) == 1 else f'{slot}='}{given.give}"
            for slot, given in table.encoders.items()
        ], name
    gets = {name: row["get"] for name, row in found.items()}
    assert gets["f2dc-3"] == ["fedloom data get pacs"]
    assert gets["f2dc-2"] == ["fedloom data import digits RAW"]  # only a browser gets it
    assert gets["fedpcl-3"] == ["fedloom data get office_caltech", "fedloom data get domainnet10"]
    assert gets["fedgcr-3"] == gets["fedpcl-2"] == ["fedloom data get digit_five"]
    assert gets["feddtr-4"] == ["fedloom data get amazon_reviews"]
    assert len(gets["fedpact-1"]) == 10
    assert found["fedpact-2"]["bring"] == ["--encoder clip:ViT-B-16.pt (CLIP with a ViT-B/16)"]
    assert len(found["fedpcl-4"]["bring"]) == 9 and found["feddtr-9"]["bring"]

"""Comparisons: what runs, what is reused, what a crash leaves, and what the leaderboard says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import fedloom.cli.main
from fedloom import run
from fedloom.cli.progress import Watch
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import CheckpointError, FedloomError
from fedloom.core.lookup import make
from fedloom.engine.building import network
from fedloom.engine.config import build, parse_set
from fedloom.engine.folder import Run
from fedloom.engine.run import execute as run_config
from fedloom.engine.setup import deal
from fedloom.executors.base import Task, execute
from fedloom.experiments.compare import compare, with_references
from fedloom.experiments.flops import flops_per_round
from fedloom.experiments.leaderboard import figures, leaderboard
from fedloom.experiments.leaderboard_text import markdown
from fedloom.experiments.plan import Cell, Dealer, folder_of, plan
from fedloom.report.sections import SECTIONS

GIVEN = {
    "data": "digits4",
    "partition": "domains",
    "clients": 8,
    "source": {"limit_train": 30, "limit_test": 10},
}
FEW = {"limit_train": 10, "limit_test": 5}
TINY = {"rounds": 2, "width": 4, "features": 16, "steps": 4, "checkpoint_every": 1} | FEW
CRASHES = """
from fedloom.core.lookup import method
from fedloom.methods.fedavg import FedAvg

@method("mine")
class Mine(FedAvg):
    def train(self, down, state, local):
        if local.worker.seed == 1 and local.round == 2:
            raise RuntimeError("out of luck")
        return local.fit()
"""


@pytest.fixture
def watch() -> Watch:
    return Watch(Console(), 1, quiet=True)


def tiny(methods: list[str], seeds: list[int], **changes: object) -> list:
    return plan(methods, seeds, GIVEN, TINY | changes)


def steady(board: dict) -> dict:
    """The board without what depends on the machine."""
    changing = {
        f"{name}{end}" for name in board["settings"]["machine_dependent"] for end in ("", "_std")
    }
    assert len(changing) == 6
    return board | {
        "rows": [{k: v for k, v in row.items() if k not in changing} for row in board["rows"]]
    }


# -- what is run ----------------------------------------------------------------------------------
def test_everything_is_named_once_and_the_references_are_always_there() -> None:
    assert with_references(["fedper", "local", "fedper"]) == ["fedper", "local", "fedavg"]
    configs = tiny(["local", "fedavg", "local"], [1, 0, 1])
    assert [(c.seed, c.method) for c in configs] == [
        (1, "local"),
        (1, "fedavg"),
        (0, "local"),
        (0, "fedavg"),
    ]


def test_settings_of_one_method_and_of_all() -> None:
    configs = tiny(
        ["fedavg", "fedprox"], [0], **{"fedprox.mu": 0.5, "fedavg.training.lr": 0.2, "batch": 16}
    )
    assert (
        configs[0].training.lr == 0.2
        and configs[1].hyper == {"mu": 0.5}
        and configs[1].training.lr == 0.05
    )
    assert {c.training.batch for c in configs} == {16}


def test_a_named_section_is_never_a_methods() -> None:
    """FedHeal has a beta of its own, and so has the Dirichlet partition."""
    given = GIVEN | {"partition": "dirichlet"}
    configs = plan(["fedavg", "fedheal"], [0], given, {"partitioning.beta": 0.7})
    own = build({"method": "fedheal"}).hyper["beta"]
    assert own != 0.7 and configs[1].hyper["beta"] == own
    assert [config.partitioning["beta"] for config in configs] == [0.7, 0.7]
    both = {"partitioning.beta": 0.7, "fedheal.beta": 0.6}
    assert plan(["fedavg", "fedheal"], [0], given, both)[1].hyper["beta"] == 0.6
    with pytest.raises(FedloomError, match="of fedheal and of the partition: say --set fed"):
        plan(["fedavg", "fedheal"], [0], given, {"beta": 0.5})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mu": 0.1}, "'mu' is a setting of fedprox only: say --set fedprox.mu=0.1."),
        ({"hyper.mu": 0.1}, "'mu' is a setting of fedprox only: say --set fedprox.mu=0.1."),
        ({"fedporx.mu": 0.1}, "unknown method or section 'fedporx'; did you mean 'fedprox'?"),
        ({"fedprox.nu": 0.1}, "unknown key 'nu'"),
        (
            {"scaffold.server_lr": 1.0},
            "scaffold is not among the methods compared (local, fedavg, fedprox).",
        ),
        ({"epoch": 3}, "unknown key 'epoch'; did you mean 'epochs'?"),
    ],
)
def test_wrong_settings_point_to_the_right_ones(changes: dict, said: str) -> None:
    with pytest.raises(FedloomError) as error:
        tiny(["local", "fedavg", "fedprox"], [0], **changes)
    assert said in str(error.value)


# -- reuse ----------------------------------------------------------------------------------------
def test_the_folder_changes_with_whatever_matters_and_with_nothing_else(tmp_path: Path) -> None:
    def folder(method: str = "fedprox", given: dict | None = None, **changes: object) -> str:
        return folder_of(
            tmp_path, build({**GIVEN, **(given or {}), "method": method}, TINY | changes)
        ).name

    first = folder()
    assert first == folder(executor="pool", workers=3, checkpoint_every=2, data_root="elsewhere")
    changed = [
        folder("fedavg"),
        folder(given={"clients": 9}),
        folder(given={"partition": "iid"}),
        folder(given={"seed": 1}),
        folder(given={"data": "pacs"}),
        folder(norm=True),
        folder(mu=0.5),
        folder(lr=0.1),
        folder(batch=8),
        folder(epochs=2),
        folder(momentum=0.5),
        folder(rounds=3),
        folder(ratio=0.5),
        folder(eval_every=2),
        folder(dropouts=0.1),
        folder(validation=0.2),
        folder(split="merged"),
        folder(size=16),
        folder(label_noise=0.1),
        folder(width=8),
        folder(features=8),
        folder(augment=["flip"]),
    ]
    assert len({first, *changed}) == 23


def test_an_edited_method_file_is_another_run(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(CRASHES)
    config = build({**GIVEN, "method": str(mine)}, TINY)
    before = folder_of(tmp_path, config)
    assert before.name.startswith("mine-s0-")
    mine.write_text(CRASHES + "\n# changed\n")
    assert folder_of(tmp_path, config) != before


def test_a_folder_of_an_older_format_says_so_before_anything_is_run(
    tmp_path: Path, watch: Watch
) -> None:
    configs = tiny(["local", "fedavg"], [0])
    old = folder_of(tmp_path, configs[1])
    old.mkdir()
    text = configs[1].toml()
    assert "\nformat = 1\n" in text
    (old / "config.toml").write_text(text.replace("\nformat = 1\n", "\n"))
    with pytest.raises(
        CheckpointError,
        match=r"was written by an older version of fedloom \(format 0, this one has",
    ):
        compare(configs, tmp_path, watch, "t")
    assert not folder_of(tmp_path, configs[0]).exists()
    (old / "config.toml").write_text(text.replace("\nformat = 1\n", "\nformat = 99\n"))
    with pytest.raises(CheckpointError, match="another version of fedloom"):
        Run.load(old)
    assert run_config(configs[1], out=old, fresh=True).finished  # as the sentence advises


# -- a whole comparison ---------------------------------------------------------------------------
@pytest.mark.slow
def test_a_comparison_and_the_same_again(tmp_path: Path, watch: Watch) -> None:
    configs = tiny(with_references(["fedprox"]), [0, 1], **{"fedprox.mu": 0.5})
    board = compare(configs, tmp_path, watch, "made up")
    assert json.loads((tmp_path / "leaderboard.json").read_text()) == board
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    rows = {r["method"]: r for r in board["rows"]}
    assert set(rows) == {"local", "fedavg", "fedavg-after", "fedprox"}
    assert [r["personal"] for r in board["rows"]] == sorted(
        (r["personal"] for r in rows.values()), reverse=True
    )
    for name, row in rows.items():
        assert row["seeds"] == [0, 1] and row["failed"] == [] and row["personal_std"] is not None
        assert (row["better_than_local"] is None) == (name == "local")
        assert set(row["domains"]) == {"handwritten", "photo", "printed", "street"}
        assert (
            row["worst_client"] <= row["worst_decile"] <= row["personal"]
            and row["flops_per_round"] > 1e8
        )
    assert (
        rows["fedavg-after"]["note"].startswith("FedAvg's models after")
        and rows["fedavg-after"]["common"] is None
    )
    alone = [Run.load(tmp_path / r["folder"]) for r in board["runs"] if r["method"] == "local"]
    reached = [r.summary["personal"]["accuracy_mean"]["last"] for r in alone]
    assert (
        board["settings"]["target"] == pytest.approx(sum(reached) / 2) and len(board["tests"]) == 6
    )
    assert {r["status"] for r in board["runs"]} == {"finished"} and len(board["runs"]) == 6
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/metrics.jsonl")}
    assert len(stamps) == 6
    assert compare(configs, tmp_path, watch, "made up") == board
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/metrics.jsonl")} == stamps


def test_the_derived_row_is_fedavg_fine_tuned(tmp_path: Path, watch: Watch) -> None:
    """It is FedAvg's model after one round, trained at every client with the keys of round 2."""
    (config,) = tiny(["fedavg"], [0])
    row = next(
        r for r in compare([config], tmp_path, watch, "t")["rows"] if r["method"] == "fedavg-after"
    )
    federation = deal(config)
    short = run("fedavg", federation, model="cnn", out=tmp_path / "one", **(TINY | {"rounds": 1}))
    from fedloom.engine.checkpoint import Store

    server = Store(tmp_path / "one/checkpoint").load().server
    assert short.config.schedule.rounds == 1 and server is not None
    worker = ClientWorker(
        make("fedavg"), federation, network(config, federation), config.training, seed=0
    )
    scores = []
    for k in range(8):
        down = worker.method.download(server, k)
        task = Task("client", 2, (k,), down, splits=("test",))
        correct, total = execute(worker, task).scores["test"][0, :2].tolist()
        scores.append(correct / total)
    assert row["personal"] == pytest.approx(sum(scores) / 8, abs=1e-12)


def test_clients_that_did_not_train_are_owned_up_to(tmp_path: Path, watch: Watch) -> None:
    board = compare(tiny(["fedavg"], [0], ratio=0.5), tmp_path, watch, "t")
    note = next(r["note"] for r in board["rows"] if r["method"] == "fedavg-after")
    assert note.endswith("4 clients did not train in the last round and count untrained.")


@pytest.mark.slow
def test_a_crash_leaves_the_others_standing(tmp_path: Path, watch: Watch) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(CRASHES)
    board = compare(tiny([str(mine), "local", "fedavg"], [0, 1]), tmp_path / "C", watch, "t")
    rows = {r["method"]: r for r in board["rows"]}
    assert rows["mine"]["seeds"] == [0] and rows["mine"]["personal"] is not None
    (failed,) = rows["mine"]["failed"]
    assert (
        failed["seed"] == 1
        and "RuntimeError: out of luck" in failed["error"]
        and "round 2" in failed["error"]
    )
    assert rows["local"]["seeds"] == rows["fedavg"]["seeds"] == [0, 1]
    (bad,) = [r for r in board["runs"] if r["status"] == "failed"]
    assert "Traceback" in (tmp_path / "C" / bad["folder"] / "error.txt").read_text()
    text = (tmp_path / "C/leaderboard.md").read_text()
    assert "## Failed runs" in text and "- mine, seed 1: client failed in round 2" in text


def test_a_method_that_never_runs_is_marked_and_comes_last(tmp_path: Path, watch: Watch) -> None:
    board = compare(tiny(["scaffold", "local"], [0], momentum=0.5), tmp_path, watch, "t")
    assert board["rows"][-1]["method"] == "scaffold" and board["rows"][-1]["personal"] is None
    assert board["rows"][-1]["failed"][0]["error"].startswith("scaffold needs plain SGD")
    assert "| scaffold | - |" in markdown(board)


@pytest.mark.slow
def test_killed_half_way_and_run_again_gives_the_same_board(tmp_path: Path, fedloom) -> None:
    """A real kill, while the third of four runs is under way."""

    def command(out: str) -> list[str]:
        return [
            "compare",
            "local",
            "fedavg",
            "--clients",
            "4",
            "--rounds",
            "4",
            "--seeds",
            "0,1",
            "--set",
            "width=4",
            "--set",
            "features=16",
            "--set",
            "limit_train=20",
            "--set",
            "limit_test=10",
            "--executor",
            "inplace",
            "--quiet",
            "--out",
            str(tmp_path / out),
        ]

    killed = subprocess.Popen([sys.executable, "-m", "fedloom", *command("killed")])
    for _ in range(6000):
        third = list((tmp_path / "killed").glob("local-s1-*/metrics.jsonl"))
        if third and len(third[0].read_bytes().splitlines()) >= 2:
            break
        assert killed.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert len(list((tmp_path / "killed").glob("*/summary.json"))) == 2
    assert not (tmp_path / "killed/leaderboard.json").exists()
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "killed").glob("*-s0-*/metrics.jsonl")}
    assert fedloom(*command("killed"))[0] == fedloom(*command("calm"))[0] == 0
    boards = [
        json.loads((tmp_path / out / "leaderboard.json").read_text()) for out in ("killed", "calm")
    ]
    assert steady(boards[0]) == steady(boards[1])
    assert len(stamps) == 2 and all(p.stat().st_mtime_ns == stamp for p, stamp in stamps.items())


# -- figures --------------------------------------------------------------------------------------
def made_up(method: str, seed: int, curve: list[float]) -> Cell:
    """A finished run with these accuracies by round; a round takes 1 MB each way and 2 seconds."""
    from fedloom.metrics.summary import summarise_run

    config = build({**GIVEN, "method": method, "seed": seed}, {"rounds": len(curve)})
    metrics = []
    for i, value in enumerate(curve, start=1):
        found = {
            "accuracy_mean": value,
            "accuracy_weighted": value,
            "accuracy_std": 0.0,
            "worst_client": value,
            "domains": {"d": value},
            "domain_avg": value,
            "domain_std": None,
            "sigma_type": None,
            "sigma_client": 0.0,
        }
        metrics.append(
            {
                "round": i,
                "participants": 2,
                "lost": [],
                "bytes_total": {"up": i * 10**6, "down": i * 10**6},
                "personal": found,
                "before": found,
                "after": found,
                "common": None,
                "validation": {"personal": value, "common": None},
                "clients": {"before": [value] * 2, "after": [value] * 2},
            }
        )
    timing = [{"round": i, "seconds": 2.0, "peak_rss_mb": 1.0} for i in range(1, len(curve) + 1)]
    summary = {
        **summarise_run(metrics, timing),
        "stage": "before",
        "seed": seed,
        "better_than_local": None,
    }
    federation = {"clients": [{}, {}], "classes": ["a", "b"]}
    return Cell(
        config, Path(f"{method}-s{seed}"), Run(config, None, federation, metrics, timing, summary)
    )


def test_costs_to_a_target() -> None:
    run = made_up("fedavg", 0, [0.3, 0.5, 0.7]).run
    assert run is not None
    found = figures(run, 0.5)
    assert (found["rounds_to_target"], found["bytes_to_target"], found["seconds_to_target"]) == (
        2,
        4 * 10**6,
        4.0,
    )
    assert (
        figures(run, 0.71)["rounds_to_target"] is None
        and figures(run, None)["bytes_to_target"] is None
    )


def test_means_and_spreads_over_seeds() -> None:
    cells = [made_up("local", 0, [0.5]), made_up("fedper", 0, [0.6]), made_up("local", 1, [0.5]),
             made_up("fedper", 1, [0.8])]  # fmt: skip
    board = leaderboard(cells, "t", target=0.65)
    first, last = board["rows"]
    assert (first["method"], last["method"]) == ("fedper", "local")
    assert first["personal"] == pytest.approx(0.7) and first["personal_std"] == pytest.approx(
        0.2 / 2**0.5
    )
    assert first["better_than_local"] == 1.0 and first["gain_over_local"] == pytest.approx(0.2)
    assert first["target_reached"] == 1 and last["target_reached"] == 0
    assert "1.0 (1 of 2 seeds)" in markdown(board)
    assert board["tests"][0]["sentence"].startswith(
        ("fedper beats local", "No significant difference")
    )


def test_one_seed_is_called_one_seed() -> None:
    board = leaderboard([made_up("local", 0, [0.5]), made_up("fedper", 0, [0.9])], "t")
    assert "one seed proves nothing" in markdown(board) and board["rows"][0]["personal_std"] is None


def test_the_table_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedloom.cli import experiments as cli

    monkeypatch.setattr(cli, "console", Console(width=80))
    cells = [
        made_up(m, s, [0.8 + s / 100])
        for m in ("local", "fedavg", "fedprox", "scaffold")
        for s in (0, 1, 2)
    ]
    board = leaderboard(cells, "t")
    for row in board["rows"]:  # the widest figures there may be
        row |= {
            "personal": 1.0,
            "personal_std": 0.123,
            "common": 1.0,
            "common_std": 0.123,
            "better_than_local": 1.0,
            "gain_over_local": -0.123,
            "bytes_up_per_round": 1234.5e6,
            "seconds": 86400.0,
        }
    cli._print_leaderboard(board, Path("C"))
    out = capsys.readouterr().out
    lines = out.split("report:")[0].splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if "100.0 ±12.3" in line]
    assert [len(r) for r in rows] == [12] * 5 and "±: std over seeds" in " ".join(out.split())
    assert "…" not in out


def test_flops_by_hand(tmp_path: Path) -> None:
    """A linear model costs 2 operations per weight and sample forwards, and 2 for the gradient."""
    given = {"clients": 8, "model": "linear", "rounds": 1, "limit_train": 10, "limit_test": 5}
    made = run("fedavg", "digits4", out=tmp_path / "A", ratio=0.5, **given)
    federation = Dealer()(made.config)
    samples = sum(len(c.train) for c in federation.clients)
    assert flops_per_round(made, federation) == pytest.approx(4 * 3072 * 10 * samples * 0.5)
    twice = run("fedavg", "digits4", out=tmp_path / "B", epochs=2, **given)
    assert flops_per_round(twice, federation) == pytest.approx(8 * 3072 * 10 * samples)
    steps = run("fedavg", "digits4", out=tmp_path / "C", steps=3, **given)
    assert flops_per_round(steps, federation) == pytest.approx(4 * 3072 * 10 * 32 * 3 * 8)


def test_methods_on_features_are_compared_and_counted(
    tmp_path: Path, watch: Watch, tiny_vit: Callable[..., Path]
) -> None:
    """The FLOPs are those of the head on features, not on the images they come from."""
    given = GIVEN | {"clients": 4, "encoder": f"hf:{tiny_vit()}"}
    configs = plan(["fedavg", "local"], [0], given, {"rounds": 1, "epochs": 1, "batch": 1000})
    board = compare(configs, tmp_path, watch, "t")
    samples = sum(len(client.train) for client in Dealer()(configs[0]).clients)
    for row in board["rows"]:
        assert row["flops_per_round"] == pytest.approx(4 * 16 * 10 * samples)
    assert (tmp_path / "report.html").exists()


def test_a_method_that_equals_local_is_noted_so(tmp_path: Path, watch: Watch) -> None:
    """On a linear model FedPer's body has no weights, so there is nothing to share."""
    configs = plan(["fedper", "local"], [0, 1], GIVEN | {"model": "linear"}, {"rounds": 2})
    board = compare(configs, tmp_path, watch, "t")
    notes = {row["method"]: row["note"] for row in board["rows"]}
    assert notes["fedper"].startswith("gives every client exactly what training alone gives it")
    assert notes["local"] is None
    assert f"- fedper: {notes['fedper']}" in (tmp_path / "leaderboard.md").read_text()


def test_a_side_figure_that_fails_costs_nothing_else(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of ink")

    monkeypatch.setattr("fedloom.experiments.compare.flops_per_round", broken)
    monkeypatch.setattr("fedloom.experiments.leaderboard.paired_tests", broken)
    monkeypatch.setattr("fedloom.report.callback.picture", broken)
    monkeypatch.setattr("fedloom.report.conclusion.cards", broken)
    costs = SECTIONS.find("costs")
    monkeypatch.setitem(SECTIONS._entries, "costs", replace(costs, body=broken))
    configs = tiny(["fedavg", "local"], [0])
    with pytest.warns(UserWarning, match="could not be made") as said:
        board = compare(configs, tmp_path, watch, "t")
    assert {str(warning.message) for warning in said} == {
        f"{what} could not be made (RuntimeError: out of ink)."
        for what in (
            "the FLOP count of fedavg",
            "the FLOP count of local",
            "the tests",
            "partition.png",
            "the cards of the report",
            f"the section {costs.title!r} of the report",
        )
    }
    assert board["tests"] == [] and {run["status"] for run in board["runs"]} == {"finished"}
    assert all(row["personal"] is not None for row in board["rows"])
    assert json.loads((tmp_path / "leaderboard.json").read_text()) == board
    page = (tmp_path / "report.html").read_text()
    assert "This section could not be made." in page and "</html>" in page
    assert json.loads((tmp_path / "flops.json").read_text()) == {}  # next time it tries again


def test_set_and_target_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for args, said in (
        (["--target", "0.8"], "--target is in percent"),
        (["--seeds", "0,x"], "whole numbers"),
    ):
        monkeypatch.setattr(sys, "argv", ["fedloom", "compare", "local", *args])
        with pytest.raises(SystemExit) as stop:
            fedloom.cli.main.main()
        assert stop.value.code == 2 and said in capsys.readouterr().err
    assert parse_set(["fedprox.mu=1"]) == {"fedprox.mu": 1}


def test_when_everything_fails_the_board_still_says_why(tmp_path: Path, watch: Watch) -> None:
    board = compare(tiny(["scaffold"], [0, 1], momentum=0.5), tmp_path, watch, "t")
    assert len(board["rows"]) == 1 and board["tests"] == [] and board["settings"]["target"] is None
    assert [f["seed"] for f in board["rows"][0]["failed"]] == [0, 1]
    assert (tmp_path / "leaderboard.md").exists() and (tmp_path / "report.html").exists()


def test_a_method_that_trains_in_another_way_is_told_of() -> None:
    """F2DC trains with its paper's settings; the table must not present them as FedAvg's.

    They are its step size, momentum and batches.
    """
    from fedloom.engine.config import build
    from fedloom.experiments.leaderboard import _special_training

    def cells(*methods: str, **changes: object) -> list[Cell]:
        return [Cell(build({"method": name}, changes), Path(name)) for name in methods]

    notes = _special_training(cells("local", "fedavg", "fedavg+dfdc", "f2dc"), ())
    assert (
        list(notes) == ["f2dc"]
        and "lr = 0.01 (others: 0.05), batch = 64 (others: 32)" in notes["f2dc"]
    )
    alike = {"lr": 0.1, "momentum": 0.5, "batch": 8, "weight_decay": 0.0}
    assert _special_training(cells("fedavg", "f2dc", **alike), ()) == {}

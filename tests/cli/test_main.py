"""The command line as a user meets it: what it prints, what it leaves, how it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedloom.cli import extend

BASE = ["--data", "digits4", "--partition", "domains", "--clients", "8"]
SMALL = [
    *BASE,
    "--rounds",
    "2",
    "--set",
    "width=4",
    "--set",
    "features=16",
    "--set",
    "steps=3",
    "--set",
    "limit_train=10",
    "--set",
    "limit_test=10",
]
PLAIN = [*SMALL, "--no-report"]  # drawing the page takes longer than such a run


def test_a_run_leaves_a_complete_folder(fedloom, tmp_path) -> None:
    code, out, _ = fedloom("run", "fedavg", *SMALL, "--out", "A")
    assert code == 0
    assert "round 2/2" in out and "personal" in out
    assert {p.name for p in (tmp_path / "A").iterdir()} == {
        ".lock",
        "checkpoint",
        "config.toml",
        "federation.json",
        "made_with.json",
        "metrics.jsonl",
        "partition.png",
        "report.html",
        "summary.json",
        "timing.jsonl",
    }
    summary = json.loads((tmp_path / "A/summary.json").read_text())
    for name in (
        "method",
        "data",
        "partition",
        "seed",
        "rounds",
        "clients",
        "personal",
        "common",
        "domains",
    ):
        assert name in summary
    for name in ("domain_avg", "domain_std", "sigma_type", "sigma_client", "worst_client"):
        assert set(summary[name]) == {"last", "best", "best_by_validation"}
    assert set(summary["domains"]) == {"handwritten", "photo", "printed", "street"}
    assert (
        summary["bytes"]["up"]["total"] > 0
        and summary["seconds"] > 0
        and summary["peak_rss_mb"] > 0
    )
    lines = (tmp_path / "A/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]


def test_same_bytes_twice_with_a_pool_and_from_its_own_config(fedloom, tmp_path) -> None:
    assert fedloom("run", "fedavg", *PLAIN, "--out", "A")[0] == 0
    assert fedloom("run", "fedavg", *PLAIN, "--out", "B")[0] == 0
    assert (
        fedloom("run", "fedavg", *PLAIN, "--out", "C", "--executor", "pool", "--workers", 2)[0] == 0
    )
    assert fedloom("run", "A/config.toml", "--out", "D", "--no-report")[0] == 0
    first = (tmp_path / "A/metrics.jsonl").read_bytes()
    for other in "BCD":
        assert (tmp_path / other / "metrics.jsonl").read_bytes() == first
    assert fedloom("run", "fedavg", *PLAIN, "--seed", 1, "--out", "E")[0] == 0
    assert (tmp_path / "E/metrics.jsonl").read_bytes() != first


def test_workers_of_one_process_are_refused(fedloom) -> None:
    for command in (["run", "fedavg", *PLAIN], ["compare", "fedavg"]):
        code, _, err = fedloom(*command, "--executor", "inplace", "--workers", 2)
        assert code == 2 and "inplace is one process" in " ".join(err.split())
        code, _, err = fedloom(*command, "--set", "executor=inplace", "--workers", 2)
        assert code == 2 and "inplace is one process" in " ".join(err.split())


def test_quiet_and_json(fedloom) -> None:
    code, out, err = fedloom("run", "fedavg", *PLAIN, "--out", "A", "--quiet")
    assert (code, out, err) == (0, "", "")
    code, out, _ = fedloom("resume", "A", "--json", "--no-report")
    assert code == 0 and json.loads(out)["finished"] is True


def test_a_run_says_that_a_model_predicts_one_class(fedloom, tmp_path) -> None:
    x = np.zeros((200, 4), np.float32)  # inputs that say nothing
    y = np.arange(200) % 100 >= 83
    np.savez(tmp_path / "flat.npz", x_train=x, y_train=y * 1, x_test=x, y_test=y * 1)
    options = ["--data", "flat.npz", "--partition", "iid", "--clients", "2", "--model", "linear"]
    command = ["run", "fedavg", *options, "--rounds", "2", "--set", "lr=0.5", "--out", "R"]
    code, out, err = fedloom(*command)
    assert code == 0, err
    assert "\nfedavg predicts one class at 2 of 2 clients.\n" in out
    assert "predicts one class" in fedloom("resume", "R")[1]
    assert fedloom(*command, "--quiet")[1] == ""


def test_running_the_same_command_again_uses_the_folder(fedloom, tmp_path) -> None:
    fedloom("run", "fedavg", *PLAIN, "--out", "A")
    stamp = (tmp_path / "A/metrics.jsonl").stat().st_mtime_ns
    code, out, _ = fedloom("run", "fedavg", *PLAIN, "--out", "A")
    assert code == 0 and "nothing was computed" in out
    assert (tmp_path / "A/metrics.jsonl").stat().st_mtime_ns == stamp
    code, _, err = fedloom("run", "fedavg", *PLAIN, "--set", "lr=0.5", "--out", "A")
    assert code == 2 and "holds another run (lr is 0.05 there, 0.5 here)" in err
    assert fedloom("run", "fedavg", *PLAIN, "--set", "lr=0.5", "--out", "A", "--fresh")[0] == 0
    assert "lr = 0.5" in (tmp_path / "A/config.toml").read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "fedavgg"], "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        (
            ["run", "fedavg", "--data", "digit4"],
            "unknown data set or path 'digit4'; did you mean 'digits4'?",
        ),
        (
            ["run", "fedavg", "--partition", "dirichlett"],
            "unknown partition 'dirichlett'; did you mean 'dirichlet'?",
        ),
        (
            ["run", "fedavg", "--model", "resnet19"],
            "unknown model 'resnet19'; did you mean 'resnet1",
        ),
        (["run", "fedavg", "--executor", "pol"], "unknown executor 'pol'; did you mean 'pool'?"),
        (["run", "fedavg", "--set", "epoch=3"], "unknown key 'epoch'; did you mean 'epochs'?"),
        (
            ["run", "fedprox", "--set", "hyper.nu=3"],
            "unknown key in [hyper] 'nu'; did you mean 'mu'?",
        ),
        (["run", "fedprox", "--set", "mu=abc"], "mu = 'abc': input should be a valid number"),
        (
            ["run", "fedprox", "--set", "mu=-1"],
            "mu = -1: input should be greater than or equal to 0",
        ),
        (["run", "fedprox", "--set", "mu"], "--set wants key=value, got 'mu'"),
        (["run", "fedavg", "--set", "lr=0"], "lr = 0: input should be greater than 0"),
        (
            ["run", "fedavg", "--rounds", "0"],
            "rounds = 0: input should be greater than or equal to 1",
        ),
        (
            ["run", "fedavg", "--partition", "iid", "--clients", "100000"],
            "cannot share 4800 training samples",
        ),
        (["run", "fedavg", "--partition", "dirichlet", "--set", "least=100000"], "least"),
        (["run", "fedavg", "--partition", "domains", "--clients", "3"], "4"),
        (["run", "fedavg", "--model", "mlp", "--set", "hidden=x"], "hidden"),
        (["run", "nosuch.toml"], "there is no file nosuch.toml"),
        (["run", "nosuch.py"], "nosuch.py."),
        (["resume", "."], ". is no run: it has no config.toml."),
        (["resume", "nowhere"], "nowhere is no run"),
        (["compare", "local", "fedavgg"], "did you mean 'fedavg'?"),
        (["compare", "local", "--seeds", "0,x"], "--seeds wants whole numbers"),
        (["check", "fedavgg"], "did you mean 'fedavg'?"),
        (["new", "FedX"], "lower-case"),
        (["new", "fedavg"], "already"),
    ],
)
def test_bad_input_is_one_clear_sentence(fedloom, tmp_path, args, said) -> None:
    start = time.process_time()  # a busy machine must not decide
    code, out, err = fedloom(*args)
    assert code == 2
    assert err.startswith("error: ") and err.count("\n") == 1 and said in err, err
    assert out == ""
    assert time.process_time() - start < 5
    assert not (tmp_path / "runs").exists()


def test_strict_recipe_file(fedloom, tmp_path) -> None:
    (tmp_path / "r.toml").write_text('metod = "fedavg"\n')
    code, _, err = fedloom("run", "r.toml")
    assert code == 2 and "unknown key 'metod'; did you mean 'method'?" in err
    (tmp_path / "r.toml").write_text('method = "fedavg"\n[training]\nleraning_rate = 1\n')
    assert "unknown key in [training] 'leraning_rate'" in fedloom("run", "r.toml")[2]
    (tmp_path / "r.toml").write_text("method = \n")
    assert "not valid TOML" in fedloom("run", "r.toml")[2]


def test_a_damaged_checkpoint_is_said_and_the_one_before_used(fedloom, tmp_path) -> None:
    args = [
        "run",
        "fedper",
        *PLAIN,
        "--rounds",
        3,
        "--out",
        "A",
    ]
    assert fedloom(*args)[0] == 0
    final = {p.name: p.read_bytes() for p in (tmp_path / "A/checkpoint").iterdir()}
    newest = tmp_path / "A/checkpoint/round-000003.json"
    server = tmp_path / "A/checkpoint" / json.loads(newest.read_text())["server"]
    data = bytearray(server.read_bytes())
    data[len(data) // 2] ^= 4
    server.write_bytes(data)
    (tmp_path / "A/summary.json").unlink()
    code, _, err = fedloom("resume", "A", "--no-report")
    assert code == 0
    assert (
        "round-000003.json is damaged" in err and "Going on from round-000002.json instead." in err
    )
    assert {p.name: p.read_bytes() for p in (tmp_path / "A/checkpoint").iterdir()} == final


def test_disk_full_leaves_the_previous_checkpoint(fedloom, tmp_path, monkeypatch) -> None:
    import fedloom.engine.checkpoint as state

    real = state.write_atomic

    def full(path: Path, data: bytes, durable: bool = True) -> None:
        if path.name == "round-000002.json":
            raise OSError(28, "No space left on device")
        real(path, data, durable)

    monkeypatch.setattr(state, "write_atomic", full)
    code, _, err = fedloom("run", "fedavg", *PLAIN, "--out", "A")
    assert code == 2 and "could not write the checkpoint of round 2: No space left on device" in err
    assert (tmp_path / "A/checkpoint/round-000001.json").exists()
    monkeypatch.setattr(state, "write_atomic", real)
    assert fedloom("resume", "A", "--no-report")[0] == 0
    assert fedloom("run", "fedavg", *PLAIN, "--out", "B")[0] == 0
    assert (tmp_path / "A/metrics.jsonl").read_bytes() == (
        tmp_path / "B/metrics.jsonl"
    ).read_bytes()


def test_compare_writes_three_files_and_reuses_runs(fedloom, tmp_path) -> None:
    args = [
        "compare",
        "local",
        "fedavg",
        "fedprox",
        *SMALL,
        "--seeds",
        "0,1",
        "--rounds",
        1,
        "--set",
        "fedprox.mu=0.5",
        "--executor",
        "inplace",
        "--out",
        "C",
    ]
    code, out, _ = fedloom(*args)
    assert code == 0 and "fedprox" in out and "report.html" in out
    rows = json.loads((tmp_path / "C/leaderboard.json").read_text())["rows"]
    assert {r["method"] for r in rows} == {"local", "fedavg", "fedavg-after", "fedprox"}
    assert all(r["seeds"] == [0, 1] and r["personal_std"] is not None for r in rows)
    by_name = {r["method"]: r for r in rows}
    assert (
        by_name["fedavg"]["better_than_local"] is not None
        and by_name["local"]["better_than_local"] is None
    )
    assert "| fedprox |" in (tmp_path / "C/leaderboard.md").read_text()
    assert any("mu = 0.5" in p.read_text() for p in (tmp_path / "C").glob("fedprox-*/config.toml"))
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "C").glob("*/metrics.jsonl")}
    assert len(stamps) == 6
    code, out, _ = fedloom(*args)
    assert code == 0 and "6 of 6 runs are there already" in out
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "C").glob("*/metrics.jsonl")} == stamps
    code, out, _ = fedloom("report", *sorted((tmp_path / "C").glob("*-s0-*")), "--out", "page.html")
    assert code == 0 and "<html" in (tmp_path / "page.html").read_text()


def test_lists(fedloom) -> None:
    code, out, _ = fedloom("methods", "--json")
    found = {row["name"]: row for row in json.loads(out)}
    assert (
        code == 0
        and found["fedprox"]["settings"] == {"mu": 0.01}
        and found["fedprox"]["about"].startswith("FedProx")
    )
    assert "scaffold" in fedloom("methods")[1]
    code, out, _ = fedloom("data", "--json")
    assert (
        json.loads(out)["data"]["digits4"]["there"]
        and "beta" in json.loads(out)["partitions"]["dirichlet"]
    )
    assert len(json.loads(out)["data"]) == 34 and len(json.loads(out)["partitions"]) == 12
    assert fedloom("data")[1] == fedloom("data", "list")[1]


def test_help_teaches() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedloom", "run", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for word in ("fedloom run fedavg", "--partition", "resume", "training.lr", "KEY=VALUE"):
        assert word in done.stdout


def test_help_lists_what_the_registries_have() -> None:
    from fedloom.cli import options
    from fedloom.data.partitions import PARTITIONS
    from fedloom.executors import EXECUTORS
    from fedloom.models import MODELS

    assert options.EXECUTORS.split(", ") == list(EXECUTORS.names())
    assert options.MODELS.split(", ") == list(MODELS.names())
    assert options.PARTITIONS.split(", ") == list(PARTITIONS.names())


def test_help_shows_every_command_in_a_panel_without_torch() -> None:
    code = (
        "import sys; from fedloom.cli.main import PANELS, app, main; "
        "from typer.main import get_command; "
        "listed = [name for names in PANELS.values() for name in names]; "
        "assert sorted(listed) == sorted(get_command(app).commands), listed; "
        "sys.argv = ['fedloom', '--help']\n"
        "try: main()\nexcept SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown = done.stdout
    assert shown.endswith("False\n")  # torch takes a second to import
    places = [shown.index(f"─ {panel} ─") for panel in ("Work", "Look", "Extend", "Serve")]
    assert places == sorted(places)
    everyday = [shown.index(f"│ {name} ") for name in ("run", "compare", "report", "resume")]
    assert everyday == sorted(everyday) and everyday[-1] < places[1]


def test_new_method_outside_a_checkout_passes_its_own_test(fedloom, tmp_path) -> None:
    code, out, _ = fedloom("new", "fed-mine")
    assert code == 0 and out.count("wrote") == 3
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fed_mine.py", "-k",
         "hand or neutral or learns or order"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ},
    )  # fmt: skip
    assert "4 passed" in done.stdout, done.stdout
    code, out, _ = fedloom(
        "run", "fed_mine.py", *PLAIN, "--executor", "pool", "--set", "strength=0.2", "--out", "M"
    )
    assert code == 0 and "round 2/2" in out
    assert "already; nothing was written" in fedloom("new", "fed-mine")[2]
    code, _, err = fedloom("run", "fed_mine")
    assert code == 2 and "say fed_mine.py" in err


@pytest.mark.parametrize("checkout", [False, True])
@pytest.mark.parametrize("installed", [False, True])
def test_new_says_where_pytest_comes_from(
    fedloom, tmp_path, monkeypatch, installed: bool, checkout: bool
) -> None:
    if checkout:
        (tmp_path / "src/fedloom/methods").mkdir(parents=True)
    if not installed:
        monkeypatch.setattr(extend, "find_spec", lambda name: None)
    out = fedloom("new", "fed-mine")[1]
    assert "`python -m pytest " in out
    assert ("pytest is not installed here" in out) is not installed
    assert ("`make venv` adds it" in out) is (checkout and not installed)


@pytest.mark.slow
def test_bench_speed_prints_its_ratios(fedloom) -> None:
    code, out, _ = fedloom("bench", "speed", "--quick", "--json")
    figures = json.loads(out)
    assert code == 0
    assert (
        figures["overhead"]["largest_difference_of_weights"] < 1e-4
    )  # the bare loop did the same work
    assert figures["overhead"]["inplace_over_bare"] > 0 and figures["overhead"]["pool_speedup"] > 0
    assert figures["memory"]["fedavg"]["ratio"] < 1.3


def test_plug_ins_are_named_shown_and_refused(fedloom, tmp_path) -> None:
    code, out, _ = fedloom("methods", "fedprox+dfdc")
    assert code == 0 and "FedProx" in out and "+dfdc: F2DC" in out
    assert "mu" in out and "cos_tau" in out
    code, out, _ = fedloom("methods")
    assert code == 0 and " +daa " in out and " +dfdc " in out
    assert (
        fedloom(
            "run", "fedprox+daa", *PLAIN, "--set", "by_gap=0.1", "--set", "mu=0.5", "--out", "A"
        )[0]
        == 0
    )
    assert json.loads((tmp_path / "A/summary.json").read_text())["method"] == "fedprox+daa"
    config = (tmp_path / "A/config.toml").read_text()
    assert "by_gap = 0.1" in config and "mu = 0.5" in config
    assert fedloom("run", "A/config.toml", "--out", "B", "--no-report")[0] == 0
    assert (tmp_path / "A/metrics.jsonl").read_bytes() == (
        tmp_path / "B/metrics.jsonl"
    ).read_bytes()
    for args, said in (
        (["check", "fedavg+dfcd"], "unknown plug-in 'dfcd'; did you mean 'dfdc'?"),
        (["run", "local+dfdc", *PLAIN], "local+dfdc: its clients share no weights"),
        (["run", "fedavg", *PLAIN, "--set", "sigma=1"], "the plug-in dfdc"),
    ):
        code, _, err = fedloom(*args)
        assert code == 2 and said in " ".join(err.split()), err


def test_run_ends_with_the_headline_its_cost_and_the_report(fedloom, tmp_path: Path) -> None:
    small = ["--clients", "4", "--rounds", "2", "--set", "limit_train=20", "--out", "A"]
    code, out, err = fedloom("run", "fedavg", *small)
    assert code == 0, err
    lines = out.splitlines()
    summary = json.loads((tmp_path / "A/summary.json").read_text())
    last = 100 * summary["personal"]["accuracy_mean"]["last"]
    assert any(f"fedavg: personal {last:.1f} %" in line for line in lines)
    best = summary["chosen_rounds"]["best_by_validation"]
    chosen = 100 * summary["personal"]["accuracy_mean"]["best_by_validation"]
    (line,) = [line for line in lines if line.startswith("best by validation")]
    assert f"personal {chosen:.1f} %" in line and line.endswith(f"in round {best}")
    (line,) = [line for line in lines if line.startswith("cost: ")]
    assert f"{summary['bytes']['up']['total'] / 1e6:.1f} MB up" in line
    assert f"{summary['seconds']:.1f} s" in line and "MB of memory" in line
    assert lines[-1] == f"report: {(tmp_path / 'A/report.html').resolve()}"

"""A run folder: who may work in it, what may change, what a refusal or an interruption leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import fedloom
from fedloom.core.errors import FedloomError
from fedloom.engine.checkpoint import Checkpoint, Store
from fedloom.models import split

# Drawing a page takes longer than such a run.
FEW = {"limit_train": 10, "limit_test": 5}
QUICK = {
    "clients": 4,
    "width": 4,
    "features": 16,
    "steps": 1,
    "eval_every": 2,
    "report": False,
} | FEW


def lines(folder: Path) -> int:
    return len((folder / "metrics.jsonl").read_text().splitlines())


class Within:
    """Tries something while a run is under way."""

    def __init__(self, attempt) -> None:
        self.attempt, self.calls = attempt, 0

    def after_round(self, engine, record) -> None:
        self.calls += 1
        self.attempt()


def test_two_processes_cannot_work_in_one_folder(tmp_path: Path) -> None:
    seen = []

    def attempt() -> None:
        for act in (
            lambda: fedloom.run(rounds=2, out=tmp_path / "A", **QUICK),
            lambda: fedloom.resume(tmp_path / "A", report=False),
        ):
            with pytest.raises(
                FedloomError, match=r"another process is working in .*A; wait for it"
            ):
                act()
            seen.append(act)

    watch = Within(attempt)
    fedloom.run(rounds=2, out=tmp_path / "A", callbacks=[watch], **QUICK)
    assert watch.calls == 2 and len(seen) == 4
    assert lines(tmp_path / "A") == 1
    assert fedloom.resume(tmp_path / "A", report=False).finished  # and nobody holds it any more


def test_an_edited_config_is_noticed(tmp_path: Path) -> None:
    class Stop:
        def after_round(self, engine, record) -> bool:
            return engine.round == 1

    fedloom.run("fedprox", rounds=3, out=tmp_path, callbacks=[Stop()], mu=0.5, **QUICK)
    (tmp_path / "summary.json").unlink()
    config = tmp_path / "config.toml"
    text = config.read_text()
    config.write_text(text.replace("mu = 0.5", "mu = 0.25"))
    with pytest.raises(
        FedloomError,
        match=r"config.toml is not what this run was started with \(mu is 0.5 there, 0.25",
    ):
        fedloom.resume(tmp_path, report=False)
    config.write_text(text)
    assert fedloom.resume(tmp_path, report=False).summary["rounds"] == 3


def test_a_run_can_be_made_longer(tmp_path: Path) -> None:
    fedloom.run("scaffold", rounds=4, out=tmp_path / "long", **QUICK)
    fedloom.run("scaffold", rounds=2, out=tmp_path / "short", **QUICK)
    made = fedloom.resume(tmp_path / "short", rounds=4, report=False)
    assert made.summary["rounds"] == made.config.schedule.rounds == 4
    for name in ("metrics.jsonl", "config.toml"):
        assert (tmp_path / "short" / name).read_bytes() == (tmp_path / "long" / name).read_bytes()
    with pytest.raises(
        FedloomError, match="has 4 rounds already; it can be made longer, not shorter"
    ):
        fedloom.resume(tmp_path / "short", rounds=3)


def test_a_refused_run_leaves_no_folder_and_one_that_never_began_is_no_obstacle(
    tmp_path: Path,
) -> None:
    with pytest.raises(FedloomError, match="scaffold needs plain SGD"):
        fedloom.run("scaffold", out=tmp_path / "A", momentum=0.9, **QUICK)
    assert not (tmp_path / "A").exists()

    class Fail:
        def after_round(self, engine, record) -> None:
            raise RuntimeError("before the first checkpoint")

    with pytest.raises(RuntimeError):
        fedloom.run(
            rounds=2, out=tmp_path / "A", callbacks=[Fail()], checkpoint_every=2, lr=0.5, **QUICK
        )
    assert (tmp_path / "A/config.toml").exists()
    assert fedloom.run(rounds=2, out=tmp_path / "A", **QUICK).finished
    assert "lr = 0.05\n" in (tmp_path / "A/config.toml").read_text()


def test_a_network_that_is_built_for_the_run_depends_on_the_seed_only() -> None:
    def network() -> nn.Module:
        return split(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)))

    def clients(seed: int, noise: int) -> list[float | None]:
        torch.manual_seed(noise)
        few = {k: v for k, v in QUICK.items() if k not in ("width", "features")}
        return fedloom.run(model=network, rounds=2, seed=seed, **few).clients

    assert clients(0, 1) == clients(0, 2) != clients(1, 1)


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fedloom",
        "run",
        "fedavg",
        "--clients",
        "4",
        "--rounds",
        "500",
        "--out",
        "A",
        "--set",
        "width=4",
        "--set",
        "features=16",
        "--set",
        "steps=1",
        "--executor",
        "pool",
    ]
    # Shells make what they start in the background ignore Ctrl-C, and children inherit that from
    # the tests.
    heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    run = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed,
    )
    while not list((tmp_path / "A/checkpoint").glob("*.json")):
        assert run.poll() is None
        time.sleep(0.05)
    os.kill(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    said = said.removeprefix("note: only soft file lock is available\n")  # without `fcntl`
    assert said == "stopped; `fedloom resume A` continues from the last checkpoint.\n"


def test_where_a_checkpoint_takes_long_not_every_round_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last two rounds always have one, so that runs end alike; the result does not change."""

    def names(folder: Path) -> set[str]:
        return {
            p.name for p in (folder / "checkpoint").iterdir()
        }  # files are named after their content

    always = fedloom.run("fedper", rounds=6, out=tmp_path / "A", **QUICK)
    saved: list[int] = []
    real = Store.save

    def slow(self: Store, checkpoint: Checkpoint, last: bool = False) -> None:
        saved.append(checkpoint.round)
        time.sleep(0.2)
        real(self, checkpoint, last)

    monkeypatch.setattr(Store, "save", slow)
    seldom = fedloom.run("fedper", rounds=6, out=tmp_path / "B", **QUICK)
    assert saved[0] == 1 and saved[-2:] == [5, 6] and len(saved) < 6
    assert seldom.metrics == always.metrics
    assert names(tmp_path / "A") == names(tmp_path / "B")
    monkeypatch.setattr("fedloom.engine.record.ROOM", 1)
    saved.clear()
    fedloom.run("fedper", rounds=6, out=tmp_path / "C", **QUICK)
    assert saved == [1, 2, 3, 4, 5, 6]


def test_the_report_tells_numbers_sent_and_clients_lost(tmp_path: Path) -> None:
    made = fedloom.run(
        "fedavg",
        "digits4",
        clients=4,
        rounds=2,
        width=4,
        features=16,
        steps=1,
        dropouts=0.5,
        out=tmp_path / "r",
    )
    page = (tmp_path / "r" / "report.html").read_text()
    assert f"{made.summary['floats']['up']:,.0f}" in page and "Numbers up" in page
    lost, asked = (
        sum(f(m) for m in made.metrics)
        for f in (lambda m: len(m["lost"]), lambda m: m["participants"])
    )
    assert lost and f"{100 * lost / asked:.1f}" in page and "Lost" in page

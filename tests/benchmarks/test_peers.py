"""The race against other libraries: the same work for all, and nobody's failure goes unsaid."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.peers import bare, environment, ours, show
from benchmarks.peers import race as racing
from benchmarks.peers.race import GOALS, Contender, Goal, contenders, figures, race
from benchmarks.peers.work import JOBS, Clock, Job, Work, write
from fedloom.core.errors import FedloomError

BARE = Contender("bare loop", ("-m", "benchmarks.peers.bare", "{work}"))


def tiny(name: str, rounds: int = 1) -> Job:
    # With BatchNorm, the last digits in which memory layouts differ grow with the step size.
    return replace(JOBS[name].small(), clients=2, rounds=rounds, lr=0.003 if name == "d" else 0.05)


def raced(
    job: Job, chosen: list[Contender], folder: Path, failed: dict[str, str] | None = None
) -> dict[str, dict]:
    write(job, folder)
    pythons = {c.peer: Path(sys.executable) for c in chosen}
    rows = race(job, chosen, folder, pythons, failed or {}, 1, lambda text: None, lambda *_: None)
    assert [r["contender"] for r in rows] == [c.name for c in chosen]
    return {r["contender"]: r for r in rows}


@pytest.mark.parametrize("name", JOBS)
def test_ours_and_the_bare_loop_reach_the_same_weights(name: str, tmp_path: Path) -> None:
    write(tiny(name), tmp_path)
    work, clocks = Work(tmp_path), (Clock(), Clock())
    by_hand, by_engine = bare.run(work, clocks[0]), ours.run(work, clocks[1], "inplace")
    assert set(by_hand) == set(by_engine) == set(work.weights)
    assert max(float((by_hand[n] - by_engine[n]).abs().max()) for n in by_hand) < 1e-5
    assert (
        max(float((by_hand[n] - t).abs().max()) for n, t in work.weights.items()) > 1e-3
    )  # and it did something
    assert clocks[0].accuracy == pytest.approx(clocks[1].accuracy) and len(clocks[0].ends) == 1


def test_rounds_differ_in_their_batches(tmp_path: Path) -> None:
    write(tiny("c", rounds=2), tmp_path)
    work = Work(tmp_path)
    first, second = work.train(0, 1)[0], work.train(0, 2)[0]
    assert not first.equal(second) and first.sort(0).values.equal(second.sort(0).values)
    assert len(work.tests()[1]) == work.job.clients * work.job.test


def test_the_first_round_is_no_part_of_a_rounds_seconds() -> None:
    row = figures(
        {"ends": [17.0, 18.0, 21.0, 23.0], "accuracy": [None, 0.1, 0.2, 0.3]}, started=10.0
    )
    assert row == {"round": 2.0, "cold": 5.0, "rounds": [1.0, 3.0, 2.0], "accuracy": 0.3}


def test_whoever_fails_is_named_with_the_reason(tmp_path: Path) -> None:
    few = "import json; json.dump({'ends': [1.0], 'accuracy': [0.5]}, open('answer.json', 'w'))"
    npz = "; import numpy; numpy.savez('answer.npz', w=numpy.zeros(1))"
    rows = raced(
        tiny("c", rounds=2),
        [
            BARE,
            Contender("broken", ("-c", "raise RuntimeError('no luck')")),
            Contender("silent", ("-c", "pass")),
            Contender("hasty", ("-c", few + npz)),
            Contender("garbled", ("-c", "open('answer.json', 'w').write('{')")),
            Contender("absent", ("-c", "pass"), peer="ghost"),
        ],
        tmp_path,
        {"ghost": "ghost could not be installed: no such package"},
    )
    assert "error" not in rows["bare loop"] and rows["bare loop"]["apart"] == 0.0
    assert rows["bare loop"]["round"] > 0 and rows["bare loop"]["cold"] > 0
    assert rows["bare loop"]["mb"] > 50 or not sys.platform.startswith("linux")
    assert rows["broken"]["error"] == "ended with code 1: RuntimeError: no luck"
    assert rows["silent"]["error"] == "ended without an answer"
    assert rows["hasty"]["error"] == "it did 1 rounds in place of 2"
    assert rows["garbled"]["error"].startswith("its answer cannot be read")
    assert rows["absent"]["error"] == "ghost could not be installed: no such package"
    found = {
        "rows": list(rows.values()),
        "ratios": [],
        "jobs": [],
        "versions": {},
        "cores": 2,
        "load": 0.0,
    }
    assert len(
        show.failures(found)
    ) == 5 and "Failed: (c) broken: ended with code 1" in show.markdown(found)
    assert printed(show.measured(found)).count("FAILED") == 5


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_whoever_takes_too_long_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(racing, "LIMIT", 1.0)
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '60']); "
        "open('pid', 'w').write(str(p.pid)); p.wait()"
    )
    row = raced(tiny("c"), [Contender("slow", ("-c", code))], tmp_path)["slow"]
    assert row["error"] == "not finished after 1 s"
    status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    deadline = time.monotonic() + 5
    while (
        status.exists()
        and status.read_text().rpartition(")")[2].split()[0] != "Z"
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_memory_is_that_of_all_processes_together() -> None:
    before = racing.memory_mb(os.getpid())
    code = "x = bytearray(200 << 20); print(len(x), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout and child.stdout.readline()
        grown = racing.memory_mb(os.getpid()) - before
        child.communicate(b"\n")
    assert 190 < grown < 300


def test_a_goal_is_met_missed_or_not_measured() -> None:
    rows = [
        {"job": "a", "contender": name, "round": seconds}
        for name, seconds in {
            "inplace": 1.1,
            "bare loop": 1.0,
            "pool of 2": 0.6,
            "auto": 0.6,
            "fluke": 1.3,
        }.items()
    ] + [{"job": "a", "contender": "Flower, 2 actors", "error": "no luck"}]
    judged = {g.title: g.judged(rows) for g in GOALS if g.job == "a"}
    over = judged["inplace / bare loop"]
    assert over["ratio"] == pytest.approx(1.1) and over["met"] is False
    auto = judged["auto / quickest of inplace and pool of 2"]
    assert auto["ratio"] == 1.0 and auto["met"] is True
    assert (
        judged["fluke / auto"]["met"] is True and judged["Flower, 2 actors / auto"]["ratio"] is None
    )
    alone = next(g for g in GOALS if g.title == auto["what"]).judged(
        [r for r in rows if r["contender"] != "pool of 2"]
    )
    assert (
        alone["ratio"] is None and alone["met"] is None
    )  # the quickest of its choices is not known
    found = {"ratios": list(judged.values())}
    text = printed(show.ratios(found))
    assert text.count("MISSED") == 1 and "1.10" in text and "at most 1.05" in text
    assert (
        text.count("not measured") == 3
    )  # Flower failed; PFLlib, which has two goals, was not there


def test_goals_name_contenders_that_there_are(tmp_path: Path) -> None:
    names = {c.name for c in contenders(tmp_path)}
    assert len(GOALS) == 22 and {g.job for g in GOALS} == set(JOBS)
    assert {n for g in GOALS for n in (*g.above, *g.below)} <= names
    assert Goal("a", ("x", "y"), ("z",), 2.0).title == "quickest of x and y / z"


def printed(table: object) -> str:
    console = Console(file=StringIO(), width=100)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_an_environment_is_made_once_and_a_failure_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    asked: list[list[str]] = []

    def pretend(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        broken = "ghost-fl" in command
        return subprocess.CompletedProcess(
            command, int(broken), "", "a note\nERROR: No matching distribution\n" * broken
        )

    monkeypatch.setattr(environment.subprocess, "run", pretend)
    with pytest.raises(
        environment.PeerError,
        match=r"ghost could not be installed: ERROR: No matching distribution",
    ):
        environment.installed(environment.Peer("ghost", ("ghost-fl",)))
    kind = environment.Peer("kind", ("kind-fl",), alone=("lonely",))
    python = environment.installed(kind)
    assert python.is_relative_to(tmp_path / "peers" / "kind")
    pinned = [a for a in asked[-2] if a.startswith("torch==")]
    assert (
        len(pinned) == 1
        and "+" not in pinned[0]
        and "--no-deps" in asked[-1]
        and asked[-1][-1] == "lonely"
    )
    made = len(asked)
    assert environment.installed(kind) == python and len(asked) == made
    environment.installed(
        replace(kind, packages=("kind-fl", "more"))
    )  # something else is wanted: made anew
    assert len(asked) == made + 3


def test_the_picture_has_a_row_for_each_contender() -> None:
    rows = [
        {"job": j, "contender": n, "round": s}
        for j in "ac"
        for n, s in {"auto": 0.5, "fluke": 1.5}.items()
    ]
    rows.append({"job": "a", "contender": "pfl", "error": "no luck"})
    jobs = [{"name": j, "title": JOBS[j].title} for j in "ac"]
    svg = show.picture({"rows": rows, "jobs": jobs})
    assert (
        svg.startswith("<svg")
        and "fluke: 3.00" in svg
        and ">pfl<" in svg
        and "(c) linear head" in svg
    )


@pytest.mark.slow
def test_the_command_writes_its_results(fedloom, tmp_path: Path) -> None:
    code, out, _ = fedloom(
        "bench",
        "speed",
        "--peers",
        "--quick",
        "--jobs",
        "c",
        "--only",
        "bare;inplace",
        "--out",
        str(tmp_path),
    )
    assert code == 0 and "inplace / bare loop" in out
    found = json.loads((tmp_path / "speed.json").read_text())
    assert [r["contender"] for r in found["rows"]] == ["bare loop", "inplace", "inplace, bf16"]
    assert [r["apart"] < 1e-5 for r in found["rows"]][:2] == [True, True]
    assert "| (c) | inplace / bare loop |" in (tmp_path / "speed.md").read_text()
    assert (tmp_path / "speed.svg").read_text().startswith("<svg")


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match="job"):
        racing.measure(jobs=["e"])
    with pytest.raises(FedloomError, match="contender"):
        racing.measure(only=["flour"])
    with pytest.raises(FedloomError, match="no checkout of PFLlib"):
        racing.measure(pfllib=tmp_path)


STAND_IN = """
    import copy
    import numpy as np
    import torch

    class Server:
        def __init__(self, args, times):
            self.args, self.global_model, self.rs_test_acc = args, copy.deepcopy(args.model), []

        def data(self, part, k):
            with open(f"../dataset/{self.args.dataset}/{part}/{k}.npz", "rb") as file:
                held = np.load(file, allow_pickle=True)["data"].tolist()
            return torch.Tensor(held["x"]), torch.Tensor(held["y"]).long()

        def evaluate(self, acc=None, loss=None):
            tests = [self.data("test", k) for k in range(self.args.num_clients)]
            right = [float((self.global_model(x).argmax(1) == y).float().mean()) for x, y in tests]
            self.rs_test_acc.append(sum(right) / len(right))

    class FedAvg(Server):
        def train(self):
            assert not self.args.dlg_eval and not self.args.some_new_switch
            for i in range(self.args.global_rounds + 1):
                self.evaluate()
                with torch.no_grad():
                    for p in self.global_model.parameters():
                        p += 1
"""


def test_pfllib_is_given_its_files_and_stopped_in_time(tmp_path: Path) -> None:
    """A stand-in looks like PFLlib from outside.

    It evaluates at the start of a round, and does one more than asked for.
    """
    servers = tmp_path / "checkout" / "system" / "flcore" / "servers"
    servers.mkdir(parents=True)
    (servers / "serveravg.py").write_text(textwrap.dedent(STAND_IN))
    command = next(c for c in contenders(tmp_path / "checkout") if c.name == "PFLlib")
    row = raced(tiny("c", rounds=2), [command], tmp_path / "work")["PFLlib"]
    assert "error" not in row, row
    with np.load(tmp_path / "work" / "answer.npz") as held:
        moved = held["head.bias"] - Work(tmp_path / "work").weights["head.bias"].numpy()
    assert np.allclose(moved, 2.0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "package"), [("Flower, 2 actors", "ray"), ("pfl", "pfl"), ("fluke", "fluke")]
)
def test_a_peer_reaches_the_bare_loops_weights(name: str, package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed here")
    command = next(c for c in contenders() if c.name == name)
    rows = raced(tiny("b", rounds=2), [BARE, command], tmp_path)
    assert rows[name].get("error") is None and rows[name]["apart"] < 1e-5
    assert rows[name]["accuracy"] == pytest.approx(rows["bare loop"]["accuracy"], abs=1e-4)

"""Kill it anywhere: a run killed at random moments and resumed ends with the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

KILLS = 50 if os.environ.get("FEDLOOM_ALL") == "1" else 3
RUN = [
    "run",
    "scaffold",
    "--clients",
    "8",
    "--rounds",
    "16",
    "--set",
    "width=4",
    "--set",
    "features=16",
    "--set",
    "ratio=0.5",
    "--set",
    "limit_train=30",
    "--set",
    "limit_test=10",
    "--quiet",
    "--no-report",
]

# One parent that has imported everything forks a child per attempt, so that kills fall into the
# run, not into imports.
PARENT = """
import os, sys, torch, torch._dynamo
torch.set_num_threads(1)
import fedloom.engine.run, fedloom.report.callback
import fedloom.cli.main, fedloom.cli.progress, fedloom.methods.scaffold
from fedloom.data.catalogue import load
load("digits4")
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        sys.argv = ["fedloom", *line.split()]
        try:
            fedloom.cli.main.main()
        finally:
            sys.stdout.flush()
            os._exit(0)
    print(pid, flush=True)
    _, status = os.waitpid(pid, 0)
    print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "checkpoint").iterdir()}


def test_killed_again_and_again(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], **pipes)
    assert parent.stdin and parent.stdout

    def attempt(args: list[str], seconds: float | None) -> int:
        parent.stdin.write(" ".join(args) + "\n")
        pid = int(parent.stdout.readline())
        if seconds is not None:
            time.sleep(seconds)
            with contextlib.suppress(ProcessLookupError):  # it was quicker
                os.kill(pid, signal.SIGKILL)
        return int(parent.stdout.readline())

    assert parent.stdout.readline() == "ready\n"  # the time of a run is counted without imports
    start = time.monotonic()
    assert attempt([*RUN, "--out", str(tmp_path / "calm")], None) == 0
    whole = time.monotonic() - start
    stormy = tmp_path / "stormy"
    rng = random.Random(0)

    def go_on() -> list[str]:
        known = (stormy / "config.toml").exists()
        return (
            ["resume", str(stormy), "--quiet", "--no-report"]
            if known
            else [*RUN, "--out", str(stormy)]
        )

    killed = 0
    for _ in range(200):
        if killed == KILLS:
            break
        args = go_on()
        if (
            stormy / "summary.json"
        ).exists():  # it got to its end before all kills were spent: start another one
            assert contents(stormy) == contents(tmp_path / "calm")
            args = [*RUN, "--out", str(stormy), "--fresh"]
        killed += attempt(args, rng.uniform(0, whole / 4)) == signal.SIGKILL
    assert killed == KILLS
    assert attempt(go_on(), None) == 0
    parent.stdin.close()
    parent.wait(timeout=10)
    assert contents(stormy) == contents(tmp_path / "calm")
    assert (stormy / "metrics.jsonl").read_bytes() == (tmp_path / "calm/metrics.jsonl").read_bytes()
    assert (stormy / "summary.json").exists()

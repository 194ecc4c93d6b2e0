"""The quickstart where modules of POSIX systems are missing, as on Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = Path(__file__).parent / "blocked"  # `resource`, `fcntl` and `mallopt` are missing there
CORE = "tests/core tests/client tests/engine tests/executors --ignore=tests/executors/flower"
PROBE = """
import os, sys
from pathlib import Path
from fedloom.core.files import locked

with locked(Path("lock"), wait=False):
    print("held", flush=True)
    if sys.argv[1] == "killed":
        os._exit(9)
"""


def blocked() -> dict[str, str]:
    """The environment of a process, and of all that it starts, to which these are missing."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(BLOCKED), *sys.path])}


def fedloom(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with a space and a letter beyond ASCII in its name."""
    command = [sys.executable, "-m", "fedloom", *arguments]
    return subprocess.run(command, cwd=folder, env=blocked(), capture_output=True, text=True)


def test_these_are_missing() -> None:
    """Otherwise the tests below would show nothing."""
    code = (
        "from fedloom.core.memory import keep_freed_memory\n"
        "import importlib.util, sys\n"
        "print(keep_freed_memory(), [sys.modules[n] for n in ('resource', 'fcntl')])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=blocked(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "[None,", "None]"]


@pytest.mark.parametrize("first", ["soft", "native"])
def test_a_lock_of_a_killed_process_does_not_count(tmp_path: Path, first: str) -> None:
    """Without `fcntl` the lock is a file that a killed process leaves behind."""
    native = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    probe = [sys.executable, "-c", PROBE]
    killed = subprocess.run(
        [*probe, "killed"],
        cwd=tmp_path,
        env=blocked() if first == "soft" else native,
        capture_output=True,
        text=True,
    )
    assert (killed.returncode, killed.stdout) == (9, "held\n")
    assert list(tmp_path.iterdir()), "it left its file"
    for _ in range(2):
        done = subprocess.run(
            [*probe, "well"], cwd=tmp_path, env=blocked(), capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr


def test_a_lock_that_is_held_is_respected(tmp_path: Path) -> None:
    code = PROBE + "    sys.stdin.read()\n"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, "well"],
        cwd=tmp_path,
        env=blocked(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    probe = [sys.executable, "-c", PROBE, "well"]
    other = subprocess.run(probe, cwd=tmp_path, env=blocked(), capture_output=True, text=True)
    assert other.returncode == 1 and "BlockingIOError" in other.stderr
    holder.communicate()
    assert subprocess.run(probe, cwd=tmp_path, env=blocked(), check=False).returncode == 0


@pytest.mark.parametrize("executor", [pytest.param("inplace", marks=pytest.mark.slow), "pool"])
def test_a_run_needs_no_posix_module(tmp_path: Path, executor: str) -> None:
    folder = tmp_path / "eigene Läufe"
    folder.mkdir()
    small = ["--clients", "4", "--rounds", "1", "--set", "steps=1", "--set", "width=4"]
    small += ["--set", "limit_train=10", "--set", "limit_test=5"]
    done = fedloom(folder, "run", "fedavg", *small, "--executor", executor, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert (folder / "run" / "summary.json").is_file() and (
        folder / "run" / "report.html"
    ).is_file()
    blocked = fedloom(folder, "run", "fedavg", *small, "--set", "steps=2", "--out", "run")
    assert blocked.returncode == 2 and "another folder" in blocked.stderr.replace("\n", " ")


@pytest.mark.slow
def test_the_core_passes_where_they_are_missing(tmp_path: Path) -> None:
    """The suite's core in a process of its own; what needs one of them says so and is skipped."""
    env = {**os.environ, "FEDLOOM_BLOCKED": "1", "FEDLOOM_ALL": "0"}
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path}"]
    done = subprocess.run(
        [*command, *CORE.split()], cwd=root, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout or "100%" in done.stdout

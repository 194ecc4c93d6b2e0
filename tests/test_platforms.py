"""The quickstart where modules of POSIX systems are missing, as on Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Put on the path of a process and of all those that it starts: these modules cannot be imported.
BLOCKED = """
import sys
for name in ("resource", "fcntl"):
    sys.modules[name] = None
"""


def fedloom(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with a space and a letter beyond ASCII in its name."""
    (folder / "sitecustomize.py").write_text(BLOCKED)
    path = os.pathsep.join([str(folder), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, "FEDLOOM_MALLOC": "0"}
    command = [sys.executable, "-m", "fedloom", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("executor", ["inplace", "pool"])
def test_a_run_needs_no_posix_module(tmp_path: Path, executor: str) -> None:
    folder = tmp_path / "eigene Läufe"
    folder.mkdir()
    small = ["--clients", "4", "--rounds", "1", "--set", "steps=1", "--set", "width=4"]
    done = fedloom(folder, "run", "fedavg", *small, "--executor", executor, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert (folder / "run" / "summary.json").is_file() and (
        folder / "run" / "report.html"
    ).is_file()
    blocked = fedloom(folder, "run", "fedavg", *small, "--set", "steps=2", "--out", "run")
    assert blocked.returncode == 2 and "another folder" in blocked.stderr.replace("\n", " ")

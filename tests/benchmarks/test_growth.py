"""The benchmarks of growth and start, on a small scale."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import growth, start


@pytest.mark.slow
def test_rounds_are_measured_for_each_size() -> None:
    said: list[str] = []
    rows = growth.measure(sizes=(6,), many=100, say=said.append)
    assert [(r["kind"], r["clients"]) for r in rows] == [("images", 6), ("vectors", 100)]
    assert all(r["round"] > 0 and r["mb"] > 100 for r in rows) and len(said) == 2


def test_start_is_measured_against_torch() -> None:
    said: list[str] = []
    figures = start.measure(repeats=1, say=said.append)
    assert (
        set(figures) == {*start.COMMANDS, "fedloom_over_torch", "all_over_torch"} and len(said) == 3
    )


def test_help_does_not_import_torch() -> None:
    """Counted, not timed: beside other tests a clock says little."""
    code = "import sys; sys.argv = ['fedloom', '--help']\n"
    code += "try:\n from fedloom.cli.main import main; main()\n"
    code += "except SystemExit: pass\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)

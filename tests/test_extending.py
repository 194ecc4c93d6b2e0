"""Another package adds a metric, a reader, an executor and a report section, in one file each.

fedloom finds them through entry points, and they work and show everywhere without further change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

METRIC = """
from fedloom.metrics.accuracy import COUNTS
from fedloom.metrics.registry import metric

@metric("wrongness", "Wrongness", COUNTS, "Share of the samples that are wrong.", higher=False)
def wrongness(rows):
    return 1 - rows[..., 0] / rows[..., 1]
"""
READER = '''
import torch
from fedloom.data.dataset import Dataset
from fedloom.data.readers.base import READERS, Reader

@READERS.register("throws")
class Dice(Reader):
    """A .dice file: how many samples there are."""

    def recognises(self, path):
        return path.suffix == ".dice"

    def kind(self, path):
        return "vector"

    def read(self, path, name, source, progress):
        n = int(open(path).read())
        y = torch.arange(n) % 2
        x = torch.stack([y.float(), 1 - y.float()], 1)
        test = torch.arange(n) % 4 > 1
        zeros = torch.zeros(n, dtype=torch.int64)
        return Dataset(x, y, zeros, test, ("even", "odd"), ("table",), name)
'''
EXECUTOR = """
from fedloom.executors import EXECUTORS
from fedloom.executors.inplace import Inplace

@EXECUTORS.register("loud")
class Loud(Inplace):
    def run(self, tasks):
        print("LOUD")
        return super().run(tasks)
"""
SECTION = """
from fedloom.report.sections import section

@section("weather", "Weather at the clients", order=45)
def weather(page):
    return "<p>It rained.</p>"
"""
FILES = {
    "metrics": ("wrongness", METRIC),
    "readers": ("throws", READER),
    "executors": ("loud", EXECUTOR),
    "sections": ("weather", SECTION),
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A package as pip would install it, on the path of the processes that a test starts."""
    place = tmp_path / "installed"
    package = place / "weatherlab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    info = place / "weatherlab-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weatherlab\nVersion: 1.0\n")
    points = []
    for group, (name, text) in FILES.items():
        (package / f"{name}.py").write_text(text)
        points += [f"[fedloom.{group}]", f"{name} = weatherlab.{name}"]
    (info / "entry_points.txt").write_text("\n".join(points) + "\n")
    path = os.pathsep.join([str(place), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def fedloom(environment: dict[str, str], folder: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fedloom", *args],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_package_adds_one_of_each_in_one_file(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "samples.dice").write_text("80")
    printed = fedloom(
        environment, tmp_path, "run", "fedavg", "--data", "samples.dice", "--partition", "iid",
        "--clients", "2", "--rounds", "2", "--executor", "loud", "--metric", "wrongness",
        "--out", "R",
    )  # fmt: skip
    assert "LOUD" in printed and "wrongness" in printed.lower()
    lines = (tmp_path / "R/metrics.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        accuracy = line["personal"]["accuracy_mean"]
        assert line["personal"]["wrongness_mean"] == pytest.approx(1 - accuracy)
    assert json.loads((tmp_path / "R/federation.json").read_text())["clients"][0]["train"] > 0
    page = (tmp_path / "R/report.html").read_text()
    assert "Weather at the clients" in page and "It rained." in page
    assert "Wrongness" in page


def test_help_lists_what_a_package_adds(environment: dict[str, str], tmp_path: Path) -> None:
    shown = fedloom(environment, tmp_path, "run", "--help")
    assert "wrongness" in shown and "throws" in shown and "loud" in shown
    assert "weather" in fedloom(environment, tmp_path, "report", "--help")

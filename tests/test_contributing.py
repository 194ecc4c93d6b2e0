"""The code that CONTRIBUTING.md shows does what the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.core.lookup import find
from fedloom.methods.fedprox import FedProx
from fedloom.metrics import registry

PAGE = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text()
BLOCK = re.compile(r"^( *)```python\n(.*?)\n *```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`src/(fedloom/[\w/]+)/(\w+)\.py`[^`]*?\n```python\n(.*?)\n```", re.DOTALL)
GROUPS = {
    "fedloom.metrics": "fedloom.metrics",
    "fedloom.data.readers": "fedloom.readers",
    "fedloom.executors": "fedloom.executors",
    "fedloom.report.sections": "fedloom.sections",
}


def shown_files() -> dict[tuple[str, str], str]:
    """The files that the page shows whole: package and name, and their text."""
    files = {}
    for folder, name, text in FILE.findall(PAGE):
        files[folder.replace("/", "."), name] = text
    return files


def with_absolute_imports(text: str, package: str) -> str:
    """The file as another package would have it."""

    def absolute(match: re.Match[str]) -> str:
        dots, rest = match.groups()
        above = package.split(".")[: len(package.split(".")) + 1 - len(dots)]
        return f"from {'.'.join([*above, *filter(None, [rest])])} import"

    return re.sub(r"^from (\.+)([\w.]*) import", absolute, text, flags=re.MULTILINE)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The page's files as an installed package, on the path of the processes that a test starts."""
    package = tmp_path / "installed" / "my_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    points = []
    for (home, name), text in shown_files().items():
        (package / f"{name}.py").write_text(with_absolute_imports(text, home))
        points += [f"[{GROUPS[home]}]", f"{name} = my_package.{name}"]
    info = package.parent / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(points) + "\n")
    path = os.pathsep.join([str(package.parent), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def test_the_page_shows_one_file_of_each_kind_and_two_metrics() -> None:
    assert sorted(shown_files()) == [
        ("fedloom.data.readers", "points"),
        ("fedloom.executors", "backwards"),
        ("fedloom.metrics", "brier"),
        ("fedloom.metrics", "error"),
        ("fedloom.report.sections", "count"),
    ]
    assert len(BLOCK.findall(PAGE)) == 7, "the others are a setting and traits"


def test_the_files_work_together_in_one_run(environment: dict[str, str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = rng.normal(size=(120, 4)) + y[:, None]
    np.savetxt(tmp_path / "mine.points", np.column_stack([x, y]))
    options = "--data mine.points --partition iid --clients 4 --model linear --rounds 2 --out R"
    command = ["run", "fedavg", *options.split(), "--executor", "backwards", "--metric", "error"]
    done = subprocess.run(
        [sys.executable, "-m", "fedloom", *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "error" in done.stdout
    lines = (tmp_path / "R/metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    for line in map(json.loads, lines):
        personal = line["personal"]
        assert personal["error_mean"] == pytest.approx(1 - personal["accuracy_mean"])
        assert 0 < personal["brier_mean"] < 2
    page = (tmp_path / "R/report.html").read_text()
    assert "This page compares 1 methods." in page and "Brier score" in page


def test_the_metric_with_its_own_tally_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # The file must not register its metric in this process.
    monkeypatch.setattr(registry, "metric", lambda *_, **__: lambda function: function)
    shown: dict[str, Any] = {}
    text = shown_files()["fedloom.metrics", "brier"]
    exec(with_absolute_imports(text, "fedloom.metrics"), shown)
    scores = np.log(np.array([[0.5, 0.5], [0.8, 0.2], [0.1, 0.9]]))
    answers = registry.Answers(
        scores.argmax(1), np.array([0, 1, 1]), np.array([0, 0, 1]), 2, 2, scores
    )
    rows = shown["SQUARED_ERRORS"].count(answers)
    assert rows == pytest.approx(np.array([[0.5 + 1.28, 2], [0.02, 1]]))
    assert shown["brier"](rows) == pytest.approx([0.89, 0.02])
    assert shown["brier"](rows.sum(0)) == pytest.approx(1.8 / 3)


def test_a_setting_and_traits_are_written_as_the_page_says(tmp_path: Path) -> None:
    lines = []
    for indent, text in BLOCK.findall(PAGE):
        if indent:
            lines.append(textwrap.dedent(indent + text.removeprefix(indent)))
    assert len(lines) == 2
    body = textwrap.indent("\n".join(lines), "    ")
    file = tmp_path / "shown.py"
    file.write_text(
        "from fedloom import method\n"
        "from fedloom.core.settings import NotNegative, setting\n"
        "from fedloom.methods.fedavg import FedAvg\n"
        f'@method("shown")\nclass Shown(FedAvg):\n{body}\n'
    )
    shown = find(str(file))
    assert shown().params() == {"mu": 0.01}
    assert shown.traits.personalised and shown.traits.neutral == FedProx.traits.neutral


def test_the_entry_point_that_the_page_shows_is_of_a_group_there_is() -> None:
    (text,) = re.findall(r"```toml\n(.*?)\n```", PAGE, re.DOTALL)
    points = tomllib.loads(text)["project"]["entry-points"]
    assert points == {"fedloom.metrics": {"error": "my_package.error"}}
    assert set(points) <= set(GROUPS.values())

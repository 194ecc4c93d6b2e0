"""Every `python ...` command that a page prints is typed here, at its smallest size.

What is not run is listed in `NOT_HERE` with the reason. Other programs that pages print are `make`,
whose targets the Makefile runs, `pip`, and Flower's (tests/executors/flower/test_documented.py).
"""

from __future__ import annotations

import csv
import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import stand_ins
from tests.documented import PAGES, ROOT, commands

PRINTED = {
    command.text: command for page in PAGES for command in commands(page, "python", to_fill=True)
}

TESTS = "it runs tests, as `make test` and `make test-all` do"
THEIRS = "it is a command of the library that the page compares with"
NOT_HERE = {
    "python -m pytest -q tests/methods": TESTS,
    "python -m pytest tests/methods/test_fedmine.py": "tests/test_contributing.py",
    "python -m pytest -n0 -s tests/executors/flower/test_deployment.py": TESTS,
    "python examples/reconstruction.py docs/reconstruction.png": "tests/test_shipped.py",
    "python main.py -data MNIST -m CNN -algo FedProx -mu 0.01 -gr 20 -nc 20 -lbs 10 -lr 0.005"
    " -ls 1 -t 3": THEIRS,
    "python generate_data.py -d fmnist -a 0.1 -cn 100": THEIRS,
    "python main.py method=fedprox fedprox.mu=0.01 common.join_ratio=0.1"
    " common.global_epoch=100 common.local_epoch=5 optimizer.lr=0.01": THEIRS,
    "python generate_MNIST.py noniid - dir": THEIRS,
}
REPLICA = "python -m fedloom.testing.replicas NAME FOLDER"
WEIGHTS = "python -m fedloom.testing.weights KIND FOLDER"
FROZEN = "python -m benchmarks.frozen"
ADAPTERS = "python -m benchmarks.adapters --out runs/adapters"
TEXTS = "python -m benchmarks.adapters --data ag_news --seeds 0 --out runs/adapters-texts"


def typed(text: str, data: Path | None = None, **filled: str) -> str:
    """Type a printed command with its words filled in; what it prints."""
    words = [filled.get(word, word) for word in PRINTED[text].words]
    if "--seeds" not in words and "--out" in words:
        words += ["--seeds", "0"]
    env = {**os.environ, "FEDLOOM_DATA": str(data)}
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ag_news(root: Path) -> Path:
    """Texts of four classes, a word for each."""
    (root / "ag_news").mkdir()
    for part, number in (("train", 160), ("test", 80)):
        with gzip.open(root / "ag_news" / f"{part}.csv.gz", "wt", newline="") as stream:
            lines = csv.writer(stream)
            lines.writerow(["label", "text"])
            for row in range(number):
                about = ("war", "goal", "market", "chip")[row % 4]
                lines.writerow([row % 4, f"news number {row} about a {about}"])
    return root


def rows_of(table: str) -> list[str]:
    """The first cell of each line below the head."""
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def test_every_command_is_run_or_has_a_reason() -> None:
    assert set(PRINTED) == {*NOT_HERE, REPLICA, WEIGHTS, FROZEN, ADAPTERS, TEXTS}


def test_a_replica_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    said = typed(REPLICA, NAME="fashion_mnist", FOLDER=str(folder))
    assert said.startswith(str(folder)) and "train" in said
    assert any(folder.rglob("train-images-idx3-ubyte*"))


def test_weights_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    said = typed(WEIGHTS, KIND="clip-rn50", FOLDER=str(folder)).strip()
    assert said == f"clip:{folder / 'RN50.pt'}" and (folder / "RN50.pt").is_file()


@pytest.mark.slow
def test_frozen_networks_are_measured() -> None:
    pytest.importorskip("transformers")
    last = typed(FROZEN).splitlines()[-1]
    assert last.startswith("50 clients need ") and float(last.split()[3]) < 1.5


@pytest.mark.slow
def test_adapters_are_measured(tmp_path: Path) -> None:
    data = stand_ins.data_root(tmp_path / "data")
    table = typed(ADAPTERS, data, **{"runs/adapters": str(tmp_path / "out")})
    assert rows_of(table) == ["FedIT", "FFA-LoRA", "FedSA-LoRA", "head only", "full"]


@pytest.mark.slow
def test_adapters_of_texts_are_measured(tmp_path: Path) -> None:
    table = typed(TEXTS, ag_news(tmp_path), **{"runs/adapters-texts": str(tmp_path / "out")})
    assert rows_of(table) == ["FedIT", "FFA-LoRA", "FedSA-LoRA", "head only", "full"]

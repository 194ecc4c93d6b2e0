"""Run folders and run files from a stranger: a thousand damaged ones of each kind, or few.

FEDLOOM_ATTACKS=full tries them all, `-s` prints how they ended.
"""

from __future__ import annotations

import json
import random
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from fuzz import attack, damaged, signed, spoilt

import fedloom
from fedloom.engine import config as configs
from fedloom.engine.folder import Run
from fedloom.report.dash import live_page
from fedloom.report.document import main


@pytest.fixture(scope="module")
def longer(finished: Path) -> bytes:
    """The metrics of the run after one round more."""
    folder = finished.parent / "longer"
    shutil.copytree(finished, folder)
    fedloom.resume(folder, rounds=3, report=False)
    return (folder / "metrics.jsonl").read_bytes()


def as_toml(body: Any) -> bytes:
    """TOML has no null and no numbers of more than 64 bits; who writes them by hand is no worse."""
    try:
        return tomli_w.dumps(body).encode()
    except (TypeError, AttributeError):
        return repr(body).encode()


# -- run files ---------------------------------------------------------------------------------
def prepare_config(text: str) -> Any:
    def prepare(chance: random.Random, folder: Path) -> str:
        if chance.random() < 0.4:
            (folder / "run.toml").write_bytes(damaged(chance, text.encode()))
            return "damaged"
        body = tomllib.loads(text)
        for _ in range(chance.choice([1, 1, 3])):
            body = spoilt(chance, body)
        (folder / "run.toml").write_bytes(as_toml(body))
        return "odd"

    return prepare


def test_configs(finished: Path, tmp_path: Path) -> None:
    """A config that is accepted can be written and read again as the same."""

    def use(folder: Path, _: str) -> None:
        config = configs.stored(configs.read(folder / "run.toml"))
        (folder / "again.toml").write_text(config.toml())
        assert configs.stored(configs.read(folder / "again.toml")) == config
        config.hash()

    text = (finished / "config.toml").read_text()
    attack("configs", 1000, 40, tmp_path / "case", prepare_config(text), use)


# -- run folders -------------------------------------------------------------------------------
def spoil_json(chance: random.Random, path: Path) -> None:
    """Something else in a JSON file, or in a line of one; manifests are signed anew."""
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        place = chance.randrange(len(lines))
        lines[place] = json.dumps(spoilt(chance, json.loads(lines[place])))
        path.write_text("\n".join(lines) + "\n")
        return
    body = spoilt(chance, json.loads(path.read_text()))
    manifest = path.parent.name == "checkpoint" and isinstance(body, dict)
    path.write_text(signed(body) if manifest else json.dumps(body))


def prepare_run(honest: Path) -> Any:
    def prepare(chance: random.Random, folder: Path) -> str:
        run = folder / "run"
        shutil.copytree(honest, run)
        path = chance.choice(sorted(p for p in run.rglob("*") if p.is_file() and p.stat().st_size))
        kind = chance.randrange(4)
        if kind == 0 and path.suffix in (".json", ".jsonl"):
            spoil_json(chance, path)
        elif kind == 1 and path.suffix == ".toml":
            path.write_bytes(as_toml(spoilt(chance, tomllib.loads(path.read_text()))))
        elif kind == 2:
            path.unlink()
        else:
            path.write_bytes(damaged(chance, path.read_bytes()))
        return str(path.relative_to(run))

    return prepare


@pytest.mark.slow
def test_run_folders(finished: Path, longer: bytes, tmp_path: Path) -> None:
    """A run that goes on ends as the honest one does."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    number = [0]

    def use(folder: Path, words: str) -> None:
        Run.load(folder / "run")
        number[0] += 1
        drawn = number[0] % 10 == 0  # a page takes longer than all the rest
        if drawn:
            main(live_page(folder / "run"))
        run = fedloom.resume(folder / "run", rounds=3, report=drawn)
        assert precious.read_bytes() == b"mine"
        assert (folder / "run" / "metrics.jsonl").read_bytes() == longer, words
        assert run.summary["rounds"] == 3

    attack("run folders", 1000, 12, tmp_path / "case", prepare_run(finished), use)

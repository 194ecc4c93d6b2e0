"""Run folders and exports from a stranger: nothing is executed or removed, and no path leads out.

FEDLOOM_ATTACKS=full tries ten thousand damaged checkpoint folders, otherwise 200.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz import attack, damaged, signed, spoilt
from typer.testing import CliRunner

import fedloom
from fedloom import deploy
from fedloom.cli.main import app
from fedloom.core.errors import CheckpointError, FedloomError
from fedloom.core.payload import Payload
from fedloom.engine.checkpoint import Checkpoint, Store
from fedloom.engine.folder import Run
from fedloom.report.dash import live_page


@pytest.fixture
def bait(tmp_path: Path) -> tuple[Path, Path]:
    """A method file that leaves a mark when it is executed, and where the mark would be."""
    mark, file = tmp_path / "executed", tmp_path / "bait.py"
    file.write_text(
        "from pathlib import Path\n"
        f"Path({str(mark)!r}).touch()\n"
        "from fedloom import method\n"
        "from fedloom.methods.fedper import FedPer\n"
        "@method('bait')\n"
        "class Bait(FedPer):\n"
        "    'It is FedPer.'\n"
    )
    return file, mark


def called(*words: str | Path) -> tuple[int, str]:
    """The exit code of a command and the sentence of its error."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    error = result.exception
    if error is not None and not isinstance(error, SystemExit | FedloomError):
        raise error
    return (2 if isinstance(error, FedloomError) else result.exit_code), str(error)


def named(finished: Path, folder: Path, method: Path) -> Path:
    """A copy of a run whose config names a method file."""
    shutil.copytree(finished, folder)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('"fedper"', json.dumps(str(method))))
    return folder


# -- method files ---------------------------------------------------------------------------
def test_a_page_needs_no_method_code(
    finished: Path, tmp_path: Path, bait: tuple[Path, Path]
) -> None:
    file, mark = bait
    folder = named(finished, tmp_path / "run", file)
    run = Run.load(folder)
    assert run.config.method == str(file) and len(run.metrics) == 2
    assert called("report", folder) == (0, "None")
    assert "bait" in (folder / "report.html").read_text()
    assert live_page(folder).entries[0].method == "bait"
    assert not mark.exists()


def test_a_page_needs_no_method_file_either(finished: Path, tmp_path: Path) -> None:
    folder = named(finished, tmp_path / "run", tmp_path / "gone.py")
    assert called("report", folder) == (0, "None")


@pytest.mark.parametrize("command", ["resume", "export", "personalise", "run"])
def test_a_method_file_that_a_folder_names_is_executed_only_with_trust(
    command: str, finished: Path, tmp_path: Path, bait: tuple[Path, Path]
) -> None:
    file, mark = bait
    folder = named(finished, tmp_path / "run", file)
    words: list[str | Path] = {
        "resume": ["resume", folder],
        "export": ["export", folder, "--client", "0", "--out", tmp_path / "model"],
        "personalise": ["personalise", folder, "--data", "digits4"],
        "run": ["run", folder / "config.toml", "--out", tmp_path / "again", "--no-report"],
    }[command]
    code, said = called(*words)
    assert code == 2 and str(file) in said and "--trust" in said
    assert not mark.exists()
    code, said = called(*words, "--trust")
    assert mark.exists()
    if command not in ("personalise", "resume"):  # they may refuse it for other reasons now
        assert code == 0, said


def test_views_of_a_method_file_need_trust_and_the_page_is_written_without(
    finished: Path, tmp_path: Path, bait: tuple[Path, Path]
) -> None:
    file, mark = bait
    folder = named(finished, tmp_path / "run", file)
    with pytest.warns(UserWarning, match=r"no feature views of bait.*bait\.py.*--trust"):
        assert called("report", folder, "--views")[0] == 0
    assert not mark.exists() and (folder / "report.html").exists()


def test_python_asks_for_trust_too(finished: Path, tmp_path: Path, bait: tuple[Path, Path]) -> None:
    file, mark = bait
    folder = named(finished, tmp_path / "run", file)
    for attempt in (
        lambda: fedloom.resume(folder, rounds=3, report=False),
        lambda: deploy.trained(folder, 0),
        lambda: deploy.personalise(folder, "digits4"),
    ):
        with pytest.raises(FedloomError, match=r"bait\.py.*trust=True"):
            attempt()
    assert not mark.exists()


def test_an_export_that_names_a_method_file(
    finished: Path, tmp_path: Path, bait: tuple[Path, Path]
) -> None:
    file, mark = bait
    assert called("export", finished, "--client", "0", "--out", tmp_path / "model")[0] == 0
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace('"fedper"', json.dumps(str(file))))
    with pytest.raises(FedloomError, match=r"bait\.py.*trust=True"):
        deploy.load(tmp_path / "model")
    assert not mark.exists()
    deploy.load(tmp_path / "model", trust=True)
    assert mark.exists()


def test_a_checkpoint_that_names_a_method_file(
    finished: Path, tmp_path: Path, bait: tuple[Path, Path]
) -> None:
    file, mark = bait
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for manifest in (folder / "checkpoint").glob("*.json"):
        body = json.loads(manifest.read_bytes())
        body["extra"]["config"]["method"] = str(file)
        manifest.write_text(signed(body))
    with pytest.raises(FedloomError, match="is not what this run was started with"):
        fedloom.resume(folder, rounds=3, report=False)
    assert not mark.exists()


# -- checkpoints ----------------------------------------------------------------------------
NAMES = [
    "../../precious.safetensors",
    "/etc/hostname",
    "../precious",
    ".",
    "",
    "a" * 64,
    "A" * 64 + ".safetensors",
    "a" * 64 + ".safetensors\n",
    7,
    None,
    ["a" * 64],
]


@pytest.mark.parametrize("name", NAMES, ids=repr)
@pytest.mark.parametrize("place", ["server", "client"])
def test_a_manifest_cannot_name_another_file(
    place: str, name: Any, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    precious = tmp_path / "precious.safetensors"
    precious.write_bytes(b"mine")
    for manifest in (folder / "checkpoint").glob("*.json"):
        body = json.loads(manifest.read_bytes())
        if place == "server":
            body["server"] = name
        else:
            body["clients"]["0"] = name
        manifest.write_text(signed(body))
    before = sorted(os.listdir(folder / "checkpoint"))
    store = Store(folder / "checkpoint")
    with pytest.raises(CheckpointError, match="is damaged"):
        store.load()
    assert sorted(os.listdir(folder / "checkpoint")) == before, "reading removes nothing"
    with pytest.raises(CheckpointError, match="is damaged"):
        fedloom.resume(folder, rounds=3, report=False)
    store.tidy()
    assert precious.read_bytes() == b"mine"


def test_neither_pipes_nor_folders_in_a_checkpoint_stop_anybody(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    os.mkfifo(folder / "checkpoint" / "round-000009.json")
    (folder / "checkpoint" / "round-000008.json").mkdir()
    (folder / "checkpoint" / ("b" * 64 + ".safetensors")).mkdir()
    (folder / "checkpoint" / "round-000007.json").symlink_to("/dev/zero")
    os.mkfifo(folder / "checkpoint" / ("c" * 64 + ".safetensors"))
    assert fedloom.resume(folder, rounds=3, report=False).summary["rounds"] == 3


def test_a_checkpoint_that_is_a_link_removes_nothing(finished: Path, tmp_path: Path) -> None:
    folder, weights = tmp_path / "run", tmp_path / "weights"
    shutil.copytree(finished, folder)
    shutil.move(folder / "checkpoint", weights)
    (weights / "model.safetensors").write_bytes(b"mine")
    (folder / "checkpoint").symlink_to(weights)
    before = sorted(os.listdir(weights))
    with pytest.raises(CheckpointError, match="checkpoint is a link to another folder"):
        fedloom.resume(folder, rounds=3, report=False)
    with pytest.raises(CheckpointError, match="checkpoint is a link to another folder"):
        deploy.trained(folder, 0)
    assert sorted(os.listdir(weights)) == before


def test_what_is_not_ours_in_a_checkpoint_stays(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    theirs = {"model.safetensors", "notes.tmp"}
    ours = {"0" * 64 + ".safetensors", ".x.7-7.tmp", "upload-3.tmp"}
    for name in theirs | ours:
        (tmp_path / "run" / "checkpoint" / name).write_bytes(b"mine")
    fedloom.resume(tmp_path / "run", rounds=3, report=False)
    left = set(os.listdir(tmp_path / "run" / "checkpoint"))
    assert theirs <= left and not ours & left


def test_a_lock_that_is_a_link_empties_no_file(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "precious").write_bytes(b"mine")
    (tmp_path / "run" / ".lock").unlink(missing_ok=True)
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(FedloomError, match="is a link and no lock"):
        fedloom.resume(tmp_path / "run", rounds=3, report=False)
    assert (tmp_path / "precious").read_bytes() == b"mine"


def test_metrics_that_are_a_link_are_written_here(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    shutil.move(metrics, tmp_path / "precious")
    before = (tmp_path / "precious").read_bytes()
    metrics.symlink_to(tmp_path / "precious")
    fedloom.resume(tmp_path / "run", rounds=3, report=False)
    assert (tmp_path / "precious").read_bytes() == before
    assert len(metrics.read_bytes().splitlines()) == 3


def prepare(whole: Path) -> Any:
    """Damages a checkpoint folder in one way."""

    def change(chance: random.Random, folder: Path) -> str:
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        path = chance.choice(sorted(folder.iterdir()))
        kind = chance.randrange(5)
        if kind <= 1:
            path.write_bytes(damaged(chance, path.read_bytes()))
            return f"damaged {path.name}"
        if kind == 2:
            path.unlink()
            return f"without {path.name}"
        for manifest in folder.glob("*.json"):
            wrong = spoilt(chance, json.loads(manifest.read_bytes()))
            manifest.write_text(signed(wrong) if isinstance(wrong, dict) else json.dumps(wrong))
        return "odd manifests"

    return change


def test_damaged_checkpoint_folders_are_refused_or_read_right(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    store = Store(whole)
    rounds = {}
    for number in (1, 2):
        for k in range(3):
            store.put(k, Payload(w=torch.full((3,), float(number + k))))
        server = Payload(model=torch.arange(4.0) * number, round=number)
        store.save(Checkpoint(number, server, {"bytes": {"up": 1}}), last=True)
        rounds[number] = server

    def use(folder: Path, _: str) -> None:
        before = sorted(os.listdir(folder))
        read = Store(folder).load()
        assert sorted(os.listdir(folder)) == before, "reading removes nothing"
        # An honest file may be named by a manifest that lies about the rest, never a changed one.
        assert read.server is None or any(read.server.equal(s) for s in rounds.values())
        assert read.server is not None or not list(folder.glob("*.json"))

    attack("checkpoint folders", 10_000, 200, tmp_path / "case", prepare(whole), use)

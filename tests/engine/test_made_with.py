"""A run that is resumed finds its data again, and says what else is not as it was."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom.core.errors import FedloomError
from fedloom.data.cache import content
from fedloom.data.federation import Federation
from fedloom.data.fingerprint import fingerprint
from fedloom.engine import made_with
from fedloom.engine.run import resume, roll_back
from fedloom.testing.small_world import federation, network

SMALL: dict[str, Any] = {"rounds": 3, "clients": 3, "width": 4, "features": 8, "limit_train": 3}


class Stop:
    """A callback that ends a run after a round, as a kill would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def after_round(self, engine: Any, record: Any) -> bool:
        return bool(engine.round == self.after)


def npz(path: Path, change: int = 0) -> Path:
    chance = np.random.default_rng(0)
    x = chance.integers(0, 255, (60, 16, 16)).astype(np.uint8)
    x[7, 3, 3] += change
    y = np.arange(60) % 3
    np.savez(path, x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    return path


def interrupted(tmp_path: Path, data: str) -> Path:
    """A run that stopped after its first round."""
    fedloom.run("fedavg", data, out=tmp_path / "run", callbacks=[Stop(1)], report=False, **SMALL)
    (tmp_path / "run" / "summary.json").unlink()
    return tmp_path / "run"


def said(folder: Path) -> dict[str, Any]:
    return json.loads((folder / made_with.FILE).read_text())


def test_one_changed_pixel_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    file = npz(tmp_path / "mine.npz")
    folder = interrupted(tmp_path, str(file))
    npz(file, change=1)
    before = {path.name: path.read_bytes() for path in folder.glob("*.json*")}
    with pytest.raises(FedloomError, match=r"the data of .*run have changed.*\(samples\)"):
        resume(folder)
    assert before == {path.name: path.read_bytes() for path in folder.glob("*.json*")}
    npz(file)
    assert resume(folder).finished


def test_a_run_with_its_own_federation_is_guarded_too(tmp_path: Path) -> None:
    def attempt(world: Federation) -> fedloom.Run:
        return fedloom.run("fedavg", world, model=network(), **quick)

    quick: dict[str, Any] = {"rounds": 3, "out": tmp_path / "run", "report": False}
    fedloom.run("fedavg", federation(), model=network(), callbacks=[Stop(1)], **quick)
    (tmp_path / "run" / "summary.json").unlink()
    world = federation()
    swapped = replace(world, clients=world.clients[::-1])
    with pytest.raises(FedloomError, match=r"have changed since it began \(splits\)"):
        attempt(swapped)
    y = world.data.y.clone()
    y[3] = (y[3] + 1) % 3
    with pytest.raises(FedloomError, match=r"have changed since it began \(labels\)"):
        attempt(replace(world, data=replace(world.data, y=y)))
    assert attempt(world).finished


def test_other_software_is_said_once_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interrupted(tmp_path, str(npz(tmp_path / "mine.npz")))
    here = made_with.computed_with(())
    there = {**here, "torch": "1.0", "CPU capability": "AVX999"}
    monkeypatch.setattr(made_with, "computed_with", lambda devices: there)
    with pytest.warns(UserWarning, match=r"with torch 1\.0 \(before: .*AVX999"):
        fedloom.resume(folder, callbacks=[Stop(2)], report=False)
    (folder / "summary.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resume(folder).finished
    parts = said(folder)["parts"]
    assert [part["after_round"] for part in parts] == [0, 1]
    assert [part["computed_with"]["torch"] for part in parts] == [torch.__version__, "1.0"]
    monkeypatch.undo()
    roll_back(folder, 2)
    with pytest.warns(UserWarning, match=r"after 2 are computed with torch .*\(before: 1\.0\)"):
        resume(folder)
    assert [part["after_round"] for part in said(folder)["parts"]] == [0, 1, 2]


@pytest.mark.parametrize("damage", [None, b"{", b"[]", b'{"data": {}, "parts": [{}]}', b"\xff"])
def test_a_folder_that_does_not_say_is_continued_with_a_note(
    damage: bytes | None, tmp_path: Path
) -> None:
    folder = interrupted(tmp_path, str(npz(tmp_path / "mine.npz")))
    whole = said(folder)
    if damage is None:
        (folder / made_with.FILE).unlink()  # as runs of earlier versions have none
    else:
        (folder / made_with.FILE).write_bytes(damage)
    with pytest.warns(UserWarning, match="does not say what it was made with"):
        assert resume(folder).finished
    assert said(folder)["data"] == whole["data"] and said(folder)["parts"][0]["after_round"] == 1


def test_a_fingerprint_is_of_values_not_of_their_order_in_memory() -> None:
    world = federation()
    x = world.data.x.repeat(1, 3, 1, 1)
    last = x.contiguous(memory_format=torch.channels_last)
    assert last.stride() != x.stride()
    found = [fingerprint(replace(world, data=replace(world.data, x=t))) for t in (x, last)]
    assert found[0] == found[1] != fingerprint(world)


@pytest.mark.parametrize("hashed", [1, 7, 64, 100, 1 << 20])
def test_the_content_of_a_tensor_does_not_depend_on_how_it_is_cut(
    hashed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only whole parts of a stated length count; features are cached under this hash."""
    from hashlib import sha256

    from fedloom.data import cache

    monkeypatch.setattr(cache, "HASHED", hashed)
    x = torch.arange(2 * 3 * 4 * 5, dtype=torch.int16).reshape(2, 3, 4, 5).transpose(1, 3)
    flat = x.contiguous().numpy().tobytes()
    parts = [sha256(flat[i : i + hashed]).digest() for i in range(0, len(flat), hashed)]
    expected = sha256(f"{x.dtype} {tuple(x.shape)}".encode() + b"".join(parts)).hexdigest()
    assert content(x) == expected
    assert content(torch.tensor(7)) != content(torch.tensor(8))
    assert content(torch.empty(0, 3)) != content(torch.empty(0, 4))

"""Another frozen backbone for each client, whose features are projected to one width."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom
from fedloom.core.errors import FedloomError
from fedloom.deploy import export, load, trained
from fedloom.engine.config import build
from fedloom.engine.setup import Setup
from tests.engine.test_networks import DIES, contents

WIDTH = 12


@pytest.fixture
def settings(tiny_vit: Callable[..., Path]) -> dict[str, Any]:
    """Two ViTs of unlike width, dealt out in turn."""
    folders = (tiny_vit(), tiny_vit(hidden_size=24))
    networks = [{"model": "pretrained", "weights": f"hf:{folder}"} for folder in folders]
    return {"networks": networks, "frozen": True, "projection": WIDTH, "clients": 4, "rounds": 3,
            "limit_train": 4, "limit_test": 4}  # fmt: skip


def test_prototypes_of_unlike_backbones_travel_and_nothing_else(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    run = fedloom.run("fedpcl", "digits4", out=tmp_path / "run", **settings)
    worker = Setup.from_config(run.config).worker
    assert [one.width for one in worker.crew] == [WIDTH, WIDTH]
    assert [one.model.body[1].in_features for one in worker.crew] == [16, 24]
    classes = [len(set(worker.data.y[worker.rows(k)].tolist())) for k in range(4)]
    floats = sum(n * WIDTH for n in classes) / 4
    assert run.metrics[-1]["floats"]["up"] == floats
    for k in range(4):
        kept = trained(run.folder, k).worker.of(k)  # type: ignore[arg-type]
        moving = sum(t.numel() for t in kept.first.values())
        assert moving == kept.model.body[1].weight.numel() + 10 * WIDTH + 10
    # What clients remember has no backbone in it either.
    sizes = [
        len(data) for name, data in contents(tmp_path / "run").items() if "metrics" not in name
    ]
    assert sum(sizes) < 4 * 10_000


def test_killed_and_resumed_it_ends_with_the_same_bytes(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    fedloom.run("fedpcl", "digits4", out=tmp_path / "calm", **settings)
    script = DIES.format(method="fedpcl", out=str(tmp_path / "killed"), settings=settings)
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert not (tmp_path / "killed/summary.json").exists()
    fedloom.resume(tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")
    assert len(contents(tmp_path / "calm")) > 5


def test_a_clients_model_is_exported_with_its_backbone(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    run = fedloom.run("fedproto", "digits4", out=tmp_path / "run", **{**settings, "rounds": 1})
    assert run.folder
    for k in range(2):
        served = trained(run.folder, k)
        whole, _ = load(export(served, tmp_path / str(k)))
        x = served.raw.take(torch.arange(6))
        torch.testing.assert_close(whole(x), served.predict(x), atol=1e-5, rtol=1e-5)


def test_without_a_projection_they_are_refused(settings: dict[str, Any]) -> None:
    del settings["projection"]
    with pytest.raises(FedloomError, match="pretrained has 16, pretrained has 24"):
        fedloom.run("fedproto", "digits4", **settings)
    with pytest.raises(FedloomError, match="or the option projection"):
        fedloom.run("fedpcl", "digits4", **settings)


def test_an_adapter_would_freeze_the_projection(settings: dict[str, Any]) -> None:
    with pytest.raises(FedloomError, match="freezes the body of pretrained, with its projection"):
        fedloom.run("fedproto", "digits4", adapter="head", **settings)


def test_runs_without_them_keep_their_names() -> None:
    config = build({"model": "pretrained"})
    assert config.hash() == "2a1c6d5fafd97336", "as before there were these options"
    assert config.hash() != build({"model": "pretrained"}, {"frozen": True}).hash()
    assert config.hash() != build({"model": "pretrained"}, {"projection": 8}).hash()

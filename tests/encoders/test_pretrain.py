"""A ViT trained from a teacher.

It learns, goes on after a kill to the same bits, and is an encoder like any other.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from fedloom.cli.main import app
from fedloom.core.errors import FedloomError
from fedloom.encoders import Encoder, Preprocess, image, vit
from fedloom.encoders.pretrain import Student, Work, pretrain, read, settings

pytest.importorskip("transformers", reason="the extra 'encoders' is not installed")
SMALL = {
    "size": 8,
    "patch": 4,
    "width": 16,
    "layers": 1,
    "heads": 2,
    "epochs": 6,
    "batch": 8,
    "lr": 3e-3,
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of twenty images: dark and bright."""
    rng = np.random.default_rng(0)
    for name, level in (("bright", 190), ("dark", 60)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(20):
            pixels = np.clip(level + 20 * rng.normal(size=(16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i:02}.png")
    return tmp_path / "photos"


@pytest.fixture
def flat(photos: Path, tmp_path: Path) -> Path:
    """The same without labels."""
    (tmp_path / "flat").mkdir()
    for file in photos.rglob("*.png"):
        file.rename(tmp_path / "flat" / f"{file.parent.name}-{file.name}")
    return tmp_path / "flat"


def teacher() -> Encoder:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 36, 5))
    return Encoder("teacher", 5, Preprocess(6), lambda: net)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_it_learns_from_the_teacher_and_from_labels(photos: Path, tmp_path: Path) -> None:
    untaught = pretrain(
        str(photos), teacher(), tmp_path / "a", settings({**SMALL, "epochs": 1, "lr": 1e-9})
    )
    figures = pretrain(str(photos), teacher(), tmp_path / "b", settings({**SMALL, "epochs": 30}))
    assert figures["steps"] == 30 * 4, "32 training images in batches of 8"
    assert figures["cosine"] > max(0.3, untaught["cosine"] + 0.1) and figures["accuracy"] == 1.0
    assert not (tmp_path / "b" / "training").exists()


def test_images_without_labels(flat: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    figures = pretrain(
        str(flat),
        teacher(),
        tmp_path / "out",
        settings(SMALL),
        training=lambda now, total: seen.append((now, total)),
    )
    assert figures["accuracy"] is None and figures["cosine"] is not None
    assert seen == [(i, 24) for i in range(1, 25)]
    (flat / "broken.png").write_bytes(b"no image")
    with pytest.raises(FedloomError, match=r"broken\.png cannot be read"):
        read(str(flat), 16, None, None)


def test_a_kill_changes_nothing(photos: Path, tmp_path: Path) -> None:
    straight = pretrain(str(photos), teacher(), tmp_path / "straight", settings(SMALL))

    def stop(now: int, _: int) -> None:
        if now == 11:
            raise KeyboardInterrupt

    often = settings({**SMALL, "save_every": 5})
    with pytest.raises(KeyboardInterrupt):
        pretrain(str(photos), teacher(), tmp_path / "killed", often, training=stop)
    first: list[int] = []
    resumed = pretrain(
        str(photos), teacher(), tmp_path / "killed", often, training=lambda n, _: first.append(n)
    )
    assert first[0] == 11, "it goes on after the last save, at step 10"
    assert weights(tmp_path / "killed") == weights(tmp_path / "straight")
    assert resumed["cosine"] == straight["cosine"]
    assert pretrain(str(photos), teacher(), tmp_path / "killed", often) == {
        **resumed,
        "reused": True,
    }


def test_a_folder_is_not_mixed_up(photos: Path, tmp_path: Path) -> None:
    def stop(now: int, _: int) -> None:
        if now == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(
            str(photos),
            teacher(),
            tmp_path / "out",
            settings({**SMALL, "save_every": 1}),
            training=stop,
        )
    with pytest.raises(FedloomError, match="other settings"):
        pretrain(str(photos), teacher(), tmp_path / "out", settings({**SMALL, "lr": 0.1}))
    pretrain(str(photos), teacher(), tmp_path / "out", settings({**SMALL, "save_every": 1}))
    with pytest.raises(FedloomError, match="another network"):
        pretrain(str(photos), teacher(), tmp_path / "out", settings({**SMALL, "seed": 1}))


def test_the_step_size_rises_and_falls(photos: Path) -> None:
    data = read(str(photos), 16, None, None)
    work = Work(data, teacher().encode(data.x), settings({**SMALL, "warmup": 0.25, "lr": 1.0}))
    rates = []
    for step in range(work.steps + 1):
        work.step = step
        rates.append(work.rate())
    assert work.steps == 24 and rates[0] == pytest.approx(1 / 6) and rates[5] == 1.0 == max(rates)
    assert rates[15] == pytest.approx(0.5) and rates[-1] == pytest.approx(0.0)


def test_what_comes_out_is_an_encoder(photos: Path, tmp_path: Path) -> None:
    pretrain(str(photos), teacher(), tmp_path / "out", settings({**SMALL, "epochs": 1}))
    made = image(f"hf:{tmp_path / 'out'}")
    assert made.dim == 16 and made.preprocess == Preprocess(8)
    pictures = torch.randint(0, 256, (3, 3, 20, 20), dtype=torch.uint8)
    tokens = vit(f"hf:{tmp_path / 'out'}").tokens(made.preprocess(pictures), torch.zeros(2, 16))
    assert made.encode(pictures).shape == (3, 16) and tokens.extra.shape == (3, 2, 16)


def test_the_command(photos: Path, tmp_path: Path) -> None:
    small = [part for k, v in {**SMALL, "epochs": 1}.items() for part in ("--set", f"{k}={v}")]
    told = [
        "pretrain",
        "vit",
        "--images",
        str(photos),
        "--teacher",
        "vit-mini",
        "--out",
        str(tmp_path / "out"),
        *small,
    ]
    done = CliRunner().invoke(app, [*told, "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["steps"] == 4 and not figures["reused"]
    again = CliRunner().invoke(app, told)
    assert "4 steps, found ready; on held-out images cosine" in again.output


def test_wrong_settings_are_said() -> None:
    with pytest.raises(FedloomError, match="layers = 0"):
        settings({"layers": 0})
    with pytest.raises(FedloomError, match="wide"):
        settings({"wide": 3})
    with pytest.raises(FedloomError, match="a multiple of patch"):
        settings({"size": 30})
    assert Student().model_dump()["width"] == 192

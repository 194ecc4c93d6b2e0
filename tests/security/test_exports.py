"""Exported models from a stranger: damaged ones, and those that ask for more than they are.

FEDLOOM_ATTACKS=full tries a thousand damaged ones, otherwise 40; `-s` prints how they ended.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz import SLOW, attack, damaged, peak, spoilt
from safetensors.torch import save_file

from fedloom import deploy
from fedloom.core.errors import FedloomError
from fedloom.models import MODELS, Split, Task, build
from fedloom.models.prepare import prepared
from fedloom.models.stages import Stages, Whole


def prepare_export(honest: Path) -> Any:
    def prepare(chance: random.Random, folder: Path) -> str:
        model = folder / "model"
        shutil.copytree(honest, model)
        path = model / chance.choice(["config.json", "model.safetensors"])
        if path.suffix == ".json" and chance.random() < 0.7:
            body = json.loads(path.read_text())
            for _ in range(chance.choice([1, 1, 3])):
                body = spoilt(chance, body)
            path.write_text(json.dumps(body))
            return "odd config"
        data = path.read_bytes()
        if path.suffix == ".safetensors" and chance.random() < 0.5:  # the header, not the numbers
            length = int.from_bytes(data[:8], "little")
            data = data[:8] + damaged(chance, data[8 : 8 + length]) + data[8 + length :]
        else:
            data = damaged(chance, data)
        path.write_bytes(data)
        return f"damaged {path.name}"

    return prepare


def test_exports(exported: Path, tmp_path: Path) -> None:
    """A model that is accepted gives scores."""

    def use(folder: Path, _: str) -> None:
        model, description = deploy.load(folder / "model")
        about = description["input"]
        x = torch.zeros(2, *about["shape"], dtype=getattr(torch, about["dtype"]))
        scores = model(x)
        assert scores.shape == (2, len(description["classes"]))

    attack("exports", 1000, 40, tmp_path / "case", prepare_export(exported), use)


# -- bombs -------------------------------------------------------------------------------------
LARGE = [1, 2**14, 2**12]  # the shape of an image whose bytes alone are 64 MB


@pytest.fixture
def bounded() -> Iterator[None]:
    """No case may take more than 300 MB on top, or the time of a hang."""
    memory, clock = peak(), time.process_time()
    yield
    assert peak() - memory < 300 << 10 and time.process_time() - clock < SLOW


def changed(exported: Path, folder: Path, **changes: Any) -> Path:
    """The export with something else in its description; `input` names changes of the input."""
    shutil.copytree(exported, folder)
    description = json.loads((folder / "config.json").read_text())
    description["input"] |= changes.pop("input", {})
    (folder / "config.json").write_text(json.dumps(description | changes))
    return folder


BOMBS: dict[str, tuple[dict[str, Any], str]] = {
    "a layer, a hundred thousand times": (
        {"model": "mlp", "network": {"hidden": [1] * 100_000}},
        "has 100000 sizes, which is more than 1000",
    ),
    "a million layers of texts": (
        {"method": "feddtr", "hyper": {"text_depth": 10**6}},
        "text_depth = 1000000: input should be less",
    ),
    "words of a billion numbers": (
        {"method": "feddtr", "hyper": {"text": "hash:1000000000"}},
        "how wide the vectors are, as in hash:512, and at most 99999",
    ),
    "an image that is long and thin": (
        {"input": {"shape": [1, 2, 2**24], "encoder": "vit-mini"}},
        "longer than 16384 pixels",
    ),
    "fifty encoders": (
        {"input": {"encoder": ",".join(["vit-mini"] * 50)}},
        "names 50 encoders, which is more than 16",
    ),
}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("words", BOMBS)
def test_a_description_that_would_take_memory_or_time(
    words: str, exported: Path, tmp_path: Path
) -> None:
    changes, said = BOMBS[words]
    with pytest.raises(FedloomError, match=said):
        deploy.load(changed(exported, tmp_path / "model", **changes))


@pytest.mark.usefixtures("bounded")
def test_a_network_that_reads_weights_is_measured_too(exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = changed(exported, tmp_path / "model", model="vpt", network={"prompts": 10**6})
    with pytest.raises(FedloomError, match=r"describes a network of 19200.* numbers, but holds"):
        deploy.load(folder)


def test_a_network_that_cannot_be_measured_is_not_built(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def sly(task: Task) -> Split:
        model = build("linear", task)
        float(torch.ones(1))  # needs a number, which is not there while it is measured
        built.append(model)
        return model

    monkeypatch.setitem(MODELS._entries, "sly", sly)
    folder = changed(exported, tmp_path / "model", model="sly", network={})
    with pytest.raises(FedloomError, match="cannot be built"):
        deploy.load(folder)
    assert built == []
    with pytest.raises(FedloomError, match="are not those of its config"):
        deploy.load(folder, trust=True)
    assert len(built) == 1


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("shape", [[1, 64, 32], LARGE])
def test_a_small_network_for_a_huge_image(shape: list[int], exported: Path, tmp_path: Path) -> None:
    """A network of convolutions takes images of every size, with the same few numbers."""
    sides = {"shape": shape, "features": shape, "mean": [0.5], "std": [0.5]}
    small = {"width": 4, "depth": 1}
    folder = changed(exported, tmp_path / "model", model="unet", network=small, input=sides)
    description = json.loads((folder / "config.json").read_text())
    classes = len(description["classes"])
    with torch.device("meta"):
        model = build("unet", Task(tuple(shape), classes), **small)
    whole = Whole(prepared(description["input"]), Stages(model.body, model.head))
    zeros = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in whole.state_dict().items()}
    save_file(zeros, folder / "model.safetensors")
    if shape == LARGE:
        with pytest.raises(FedloomError, match="one sample becomes a tensor of 268435456 numbers"):
            deploy.load(folder)
    else:
        assert deploy.load(folder)[1]["model"] == "unet"

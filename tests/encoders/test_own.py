"""Encoders from a user's own file, and when its code is executed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedloom import deploy
from fedloom.core import user_files
from fedloom.core.errors import FedloomError
from fedloom.encoders import image
from fedloom.engine import config as configs
from fedloom.engine.setup import Setup
from fedloom.executors.flower.settings import parse

FILE = """
from pathlib import Path

import torch
from torch import nn
from fedloom.encoders import Encoder, Preprocess

Path(__file__).with_suffix(".executed").touch()


class Net(nn.Sequential):
    preprocess = Preprocess(4)


def net():
    torch.manual_seed(0)
    return Net(nn.Flatten(), nn.Linear(48, 5))


def whole():
    return Encoder("whole", 5, Preprocess(4), net)


def wrong():
    return 3


def maps():
    return nn.Conv2d(3, 2, 1)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    return file


def executed(mine: Path) -> bool:
    return mine.with_suffix(".executed").exists()


def pictures() -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, 9, 7), dtype=torch.uint8)


def test_a_function_gives_a_module_or_an_encoder(mine) -> None:
    names = [f"{mine}:{function}" for function in ("net", "whole", "wrong", "maps", "nets")]
    user_files.allow({"encoder": names})
    encoder = image(names[0])
    assert encoder.dim == 5 and encoder.preprocess.size == 4 and encoder.files == (mine,)
    assert torch.equal(encoder.encode(pictures() * 0), image(names[1]).encode(pictures() * 0))
    with pytest.raises(FedloomError, match="should give a torch module or a fedloom Encoder"):
        image(names[2])
    with pytest.raises(FedloomError, match="should give one row of features per image"):
        image(names[3])
    with pytest.raises(FedloomError, match=r"unknown function in .* 'nets'.*'net'"):
        image(names[4])


def test_weights_from_a_file(mine, tmp_path) -> None:
    weights = {"1.weight": torch.ones(5, 48), "1.bias": torch.zeros(5)}
    torch.save({"state_dict": weights}, tmp_path / "net.pth")
    name = f"pth:{mine}:net:{tmp_path / 'net.pth'}"
    user_files.allow({"encoder": name})
    encoder = image(name)
    assert torch.equal(encoder.module.state_dict()["1.weight"], torch.ones(5, 48))
    assert encoder.hash != image(f"{mine}:net").hash
    with pytest.raises(FedloomError, match="with a file of weights"):
        image(f"pth:{mine}:net")


def test_only_what_a_user_names_is_executed(mine, tmp_path) -> None:
    given = {"encoder": f"vit-mini, {mine}:net", "clients": 2}
    with pytest.raises(FedloomError, match=r"mine\.py, whose code would be executed"):
        image(f"{mine}:net")
    with pytest.raises(FedloomError, match=r"run\.toml names the file .*mine\.py"):
        user_files.refuse_untrusted(given, "run.toml")
    complete = tmp_path / "config.toml"
    text = configs.build({"clients": 2}).toml()
    complete.write_text(text.replace("[source]", f'encoder = "{mine}:net"\n\n[source]', 1))
    config = configs.stored(configs.read(complete))
    assert config.encoder == f"{mine}:net"
    with pytest.raises(FedloomError, match="would be executed"):
        Setup.from_config(config)
    with pytest.raises(FedloomError, match="this site runs no encoder or network from a file"):
        parse({"encoder": f"{mine}:net"}, files=False)
    assert not executed(mine)
    configs.stored(configs.read(complete), trust=True)
    assert image(f"{mine}:net").dim == 5 and executed(mine)


def test_a_strangers_export_executes_nothing(mine, tmp_path, monkeypatch) -> None:
    description = {
        "method": "fedavg",
        "hyper": {},
        "input": {"encoder": f"{mine}:net"},
        "network": {},
    }
    monkeypatch.setattr(deploy.exported, "read", lambda folder: (description, {}))
    with pytest.raises(FedloomError, match="would be executed"):
        deploy.load(tmp_path)
    description["input"] = {"encoder": None}
    description["network"] = {"weights": f"{mine}:net"}
    with pytest.raises(FedloomError, match="would be executed"):
        deploy.load(tmp_path)
    assert not executed(mine)

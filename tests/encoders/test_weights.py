"""Files of weights in all their formats, and those that are made to do harm."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedloom.core.errors import FedloomError
from fedloom.encoders.weights import read_weights

WEIGHTS = {"a.weight": torch.arange(6.0).view(2, 3), "count": torch.tensor(3)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3).half()
        self.register_buffer("table", torch.arange(6.0).view(2, 3).T)  # not in plain order

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def script(file: Path) -> nn.Module:
    net = Net().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(net, torch.zeros(1, 2)), file)
    return net


def test_every_format(tmp_path) -> None:
    save_file(WEIGHTS, tmp_path / "a.safetensors")
    torch.save(WEIGHTS, tmp_path / "a.pth")
    torch.save(WEIGHTS, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    torch.save({"epoch": 3, "state_dict": {f"module.{n}": t for n, t in WEIGHTS.items()}},
               tmp_path / "wrapped.pth.tar")  # fmt: skip
    torch.save({n: t.half() if t.is_floating_point() else t for n, t in WEIGHTS.items()},
               tmp_path / "half.pt")  # fmt: skip
    for file in tmp_path.iterdir():
        read = read_weights(file)
        assert set(read) == set(WEIGHTS), file
        for name, tensor in WEIGHTS.items():
            assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor), file


def test_a_torchscript_archive_without_its_program(tmp_path) -> None:
    net = script(tmp_path / "net.pt")
    read = read_weights(tmp_path / "net.pt")
    assert set(read) == set(net.state_dict())
    for name, tensor in net.state_dict().items():
        wanted = tensor.float() if tensor.is_floating_point() else tensor
        assert torch.equal(read[name], wanted), name


class Harm:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('executed')",)


def test_nothing_is_executed(tmp_path) -> None:
    torch.save({"w": torch.zeros(2), "x": Harm()}, tmp_path / "harm.pth")
    (tmp_path / "bare.pth").write_bytes(pickle.dumps(Harm(), protocol=2))
    script(tmp_path / "net.pt")
    with zipfile.ZipFile(tmp_path / "net.pt") as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    parts["net/data.pkl"] = pickle.dumps(Harm(), protocol=2)
    with zipfile.ZipFile(tmp_path / "script.pt", "w") as changed:
        for name, content in parts.items():
            changed.writestr(name, content)
    for name in ("harm.pth", "bare.pth", "script.pt"):
        with pytest.raises(FedloomError, match=r"cannot be read as weights|have no need of"):
            read_weights(tmp_path / name)


def test_what_claims_to_be_larger_than_it_is(tmp_path) -> None:
    torch.save({"w": torch.zeros(1).expand(10**12)}, tmp_path / "wide.pth")
    with pytest.raises(FedloomError, match="far more than the file has"):
        read_weights(tmp_path / "wide.pth")
    torch.save(WEIGHTS, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth") as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(tmp_path / "packed.pth", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in parts.items():
            packed.writestr(name, content)
    with pytest.raises(FedloomError, match="is compressed, as torch does not"):
        read_weights(tmp_path / "packed.pth")


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth"])
def test_what_is_no_file_of_weights(tmp_path, name) -> None:
    with pytest.raises(FedloomError, match="there is no file of weights"):
        read_weights(tmp_path / name)
    (tmp_path / name).write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(FedloomError, match=r"is no safetensors file|cannot be read as weights"):
        read_weights(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(FedloomError, match="holds no tensors by name"):
        read_weights(tmp_path / "list.pth")

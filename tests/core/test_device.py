"""Devices: names, what is refused, randomness."""

from __future__ import annotations

import pytest
import torch

from fedloom.core import device as devices
from fedloom.core.device import CPU, Device, find, on_device
from fedloom.core.errors import FedloomError


def pretend_to_have(monkeypatch: pytest.MonkeyPatch, kind: str, count: int) -> None:
    there = [CPU, *(Device(kind, i) for i in range(count))]
    monkeypatch.setattr(devices, "available", lambda: there)


def test_the_cpu_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("cpu") == [CPU]
    pretend_to_have(monkeypatch, "cuda", 0)
    assert find("auto") == [CPU]


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:0,1", "mps", "xpu", "quantum", ""])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_to_have(monkeypatch, "cuda", 0)
    with pytest.raises(FedloomError, match=r"no device '.*' on this machine; there is cpu\.$"):
        find(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("cdua", "cuda"), ("CUDA:1", "cuda"), ("gpu", "auto"), ("mp", "mps"), ("Auto", "auto")],
)
def test_a_name_with_a_slip_gets_the_nearest_one(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_to_have(monkeypatch, "cuda", 0)
    with pytest.raises(FedloomError, match=rf"there is cpu; did you mean '{meant}'\?$"):
        find(name)


def test_names_with_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_to_have(monkeypatch, "cuda", 2)
    assert find("auto") == find("cuda") == [Device("cuda", 0)]
    assert find("cuda:1") == [Device("cuda", 1)]
    assert find("cuda:0,1") == find("cuda:0, 1") == [Device("cuda", 0), Device("cuda", 1)]
    with pytest.raises(FedloomError, match=r"no device 'cuda:2'.*there is cpu, cuda:0, cuda:1"):
        find("cuda:0,2")
    with pytest.raises(FedloomError, match="twice"):
        find("cuda:1,1")


def test_what_is_drawn_depends_on_the_key_alone_and_the_callers_generator_stays() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with CPU.seeded(5):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    with CPU.seeded(5):
        assert torch.equal(torch.rand(3), first)


def test_a_module_that_is_where_it_is_needed_is_not_copied() -> None:
    module = torch.nn.Linear(2, 2)
    assert on_device(module, torch.device("cpu")) is module

"""Where samples and copies of them lie, tried with cards that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedloom.client.worker import ClientWorker
from fedloom.core.device import CPU, Device, moved
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.executors.pool import _places
from fedloom.testing.small_world import place


class Travelling:
    """Stands for a tensor of the CPU, and notes what is done with it."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def pin_memory(self) -> Travelling:
        self.calls.append("pinned")
        return self

    def to(self, device: torch.device, non_blocking: bool = False) -> Travelling:
        self.calls.append((str(device), non_blocking))
        return self


@pytest.mark.parametrize(
    ("device", "calls"),
    [
        (Device("cuda", 1), ["pinned", ("cuda:1", True)]),
        (Device("mps"), [("mps", False)]),
    ],
    ids=str,
)
def test_nobody_goes_on_before_a_copy_of_ordinary_memory_is_done(
    device: Device, calls: list[Any]
) -> None:
    """The memory may be freed, or written to again, while the copy is under way."""
    x, worker = Travelling(), SimpleNamespace(device=device)
    ClientWorker.here(worker, x)  # type: ignore[arg-type]
    assert x.calls == calls


class CardModule:
    """What `torch.cuda` is to CUDA: 1000 bytes are free, and 400 that torch has not given back."""

    free = 1000

    def empty_cache(self) -> None:
        self.free = 1400

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return self.free, 4000


@dataclass(frozen=True)
class Card(Device):
    """A made-up card."""

    type: str = "cuda"
    module: Any = field(default_factory=CardModule, compare=False)

    @property
    def _module(self) -> Any:
        return self.module


def test_memory_of_an_earlier_run_is_free() -> None:
    card = Card(index=0)
    assert card.free_memory() == 1400
    assert card.fits(700) and not card.fits(701)


@pytest.mark.parametrize(
    ("cards", "workers", "fits"), [(1, 1, True), (1, 2, True), (1, 3, False), (2, 4, True)]
)
def test_samples_fit_for_all_workers_of_a_card_or_for_none(
    cards: int, workers: int, fits: bool
) -> None:
    samples = SimpleNamespace(data=SimpleNamespace(x=SimpleNamespace(nbytes=300)))
    devices = tuple(Card(index=i) for i in range(cards))
    worker: Any = SimpleNamespace(devices=devices, federation=samples)
    found = _places(worker, workers)
    assert [device.index for device, _ in found] == [i % cards for i in range(workers)]
    assert {there for _, there in found} == {fits}


def test_data_move_when_somebody_asks_for_them() -> None:
    worker = place(make("fedavg"))
    assert worker.classes == 4 and "data" not in vars(worker)
    assert worker.data is worker.federation.data and worker.resident


@pytest.fixture
def settings_of_torch() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    yield
    torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before


@pytest.mark.usefixtures("settings_of_torch")
@pytest.mark.parametrize("tf32", [True, False])
def test_cards_round_products_only_if_they_are_told_to_and_repeat_convolutions(tf32: bool) -> None:
    on_cpu = torch.backends.mkldnn.matmul.fp32_precision
    Device("cuda", 0).set_precision(tf32)
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.backends.cudnn.allow_tf32 is tf32
    assert torch.backends.cudnn.deterministic
    assert torch.backends.mkldnn.matmul.fp32_precision == on_cpu


def test_only_cuda_has_tf32() -> None:
    CPU.set_precision()
    with pytest.raises(FedloomError, match="tf32 is for CUDA devices, not for cpu"):
        CPU.set_precision(tf32=True)


def test_64_bit_floats_stay_where_there_are_such() -> None:
    x = torch.ones(2, dtype=torch.float64)
    assert moved(x, torch.device("meta")).dtype == torch.float64

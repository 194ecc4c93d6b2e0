"""Where tensors are computed: the CPU, or an accelerator that torch knows.

Models, samples and what a client receives live on the worker's device while it works. The server
and all stored states live on the CPU. Everything that depends on the kind of device is in this
file; the rest of the library only moves tensors to `device.torch`.
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .errors import FedloomError

# The share of a device's free memory that samples may take; the rest is for the network's work.
SAMPLES_SHARE = 0.5
NAMES = ("cpu", "cuda", "mps", "xpu", "auto")  # what a user may have meant
WITHOUT_DOUBLES = {"mps"}  # kinds of devices that have no 64-bit floats


@dataclass(frozen=True)
class Device:
    """One device. The default is the CPU."""

    type: str = "cpu"
    index: int | None = None

    def __str__(self) -> str:
        if self.index is None:
            return self.type
        return f"{self.type}:{self.index}"

    @property
    def torch(self) -> torch.device:
        """The device as torch names it."""
        return torch.device(str(self))

    @property
    def accelerated(self) -> bool:
        """Whether it is something else than the CPU."""
        return self.type != "cpu"

    @property
    def pins(self) -> bool:
        """Whether copies from pinned memory of the host go on while the device computes."""
        return self.type in ("cuda", "xpu")

    @property
    def lists(self) -> bool:
        """Whether torch has kernels that change a whole list of tensors there."""
        return self.type != "mps"

    @property
    def keeps_layouts(self) -> bool:
        """Whether networks stay as they were built, those of fedloom channels-last.

        That is quicker on a CPU. Accelerators gain by it in reduced precision only.
        """
        return not self.accelerated

    @property
    def title(self) -> str:
        """What the hardware is called, for the record."""
        if not self.accelerated:
            return platform.processor() or platform.machine() or "cpu"
        name = getattr(self._module, "get_device_name", None)
        if name is None:
            return self.type
        return str(name(self.torch))

    @property
    def _module(self) -> Any:
        """Torch's functions for this kind of device, such as `torch.cuda`."""
        return torch.get_device_module(self.type)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """While it is open, this process computes on the device."""
        if self.accelerated and self.index is not None:
            torch.accelerator.set_device_index(self.index)
        yield

    def set_precision(self, tf32: bool = False) -> None:
        """Let CUDA devices round products to tf32, or not, and let their convolutions repeat.

        Torch rounds convolutions by default there, and picks kernels that add up in any order.
        """
        if tf32 and self.type != "cuda":
            raise FedloomError(f"precision tf32 is for CUDA devices, not for {self}.")
        if self.type == "cuda":
            # Not `torch.set_float32_matmul_precision`: that would round on the CPU too.
            torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cudnn.deterministic = True

    # -- randomness -------------------------------------------------------------------------
    def random_state(self) -> tuple[Tensor, ...]:
        """The state of every generator that a network may draw from (dropout, noise, masks)."""
        if not self.accelerated:
            return (torch.get_rng_state(),)
        return torch.get_rng_state(), self._module.get_rng_state(*self._place)

    def restore_random(self, state: Sequence[Tensor]) -> None:
        """Set the generators to a state that `random_state` returned."""
        torch.set_rng_state(state[0])
        if self.accelerated:
            self._module.set_rng_state(state[1], *self._place)

    @contextmanager
    def seeded(self, key: int) -> Iterator[None]:
        """While it is open, all that a network draws depends on `key` alone.

        Afterwards the generators are as they were before.
        """
        before = self.random_state()
        # Not `torch.manual_seed`: it spends a millisecond on a stack trace for absent devices.
        torch.default_generator.manual_seed(key)
        if self.accelerated:
            with self._selected():
                self._module.manual_seed(key)
        try:
            yield
        finally:
            self.restore_random(before)

    @property
    def _place(self) -> tuple[Any, ...]:
        """How this device is named to the functions of its module; `torch.mps` has only one."""
        if self.index is None:
            return ()
        return (self.torch,)

    @contextmanager
    def _selected(self) -> Iterator[None]:
        """While it is open, the functions of the module mean this one of several devices."""
        if self.index is None or not hasattr(self._module, "device"):
            yield
            return
        with self._module.device(self.index):
            yield

    # -- memory -----------------------------------------------------------------------------
    def free_memory(self) -> int | None:
        """The bytes that are free on an accelerator; None where torch cannot tell."""
        info = getattr(self._module, "mem_get_info", None) if self.accelerated else None
        if info is None:
            return None
        # What a run before this one has freed is not free until torch gives it back.
        self._module.empty_cache()
        free, _ = info(*self._place)
        return int(free)

    def forget_peak(self) -> None:
        """Let `peak_memory_mb` begin anew, at what this process has on the device now."""
        reset = getattr(self._module, "reset_peak_memory_stats", None) if self.accelerated else None
        if reset is not None:
            self._module.init()  # a device that was never used has no statistics, and no such name
            reset(*self._place)

    def peak_memory_mb(self) -> float | None:
        """The most memory that this run has had in this process; None where unknown."""
        peak = getattr(self._module, "max_memory_allocated", None) if self.accelerated else None
        if peak is None:
            return None
        return float(peak(*self._place)) / 1e6

    def used_memory_mb(self) -> float | None:
        """The memory that all processes together have on an accelerator; None where unknown."""
        info = getattr(self._module, "mem_get_info", None) if self.accelerated else None
        if info is None:
            return None
        free, total = info(*self._place)
        return float(total - free) / 1e6

    def fits(self, nbytes: int, copies: int = 1) -> bool:
        """Whether this many bytes may stay on the device, once for each of its workers."""
        free = self.free_memory()
        return free is None or copies * nbytes <= SAMPLES_SHARE * free


CPU = Device()


def widest(device: torch.device) -> torch.dtype:
    """The most exact floats that a device has."""
    return torch.float32 if device.type in WITHOUT_DOUBLES else torch.float64


def exact(tensor: Tensor) -> Tensor:
    """A tensor in the most exact floats that its device has."""
    return tensor.to(widest(tensor.device))


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; where there are no 64-bit floats, it has those of 32 bits."""
    if tensor.dtype == torch.float64:
        tensor = tensor.to(widest(device))
    return tensor.to(device)


_COPIES: WeakKeyDictionary[nn.Module, dict[torch.device, nn.Module]] = WeakKeyDictionary()


def on_device(module: nn.Module, device: torch.device) -> nn.Module:
    """A frozen module where it is needed: itself, or a copy of it that is made once per device."""
    first = next(chain(module.parameters(), module.buffers()), None)
    if first is None or first.device == device:
        return module
    copies = _COPIES.setdefault(module, {})
    if device not in copies:
        copies[device] = copy.deepcopy(module).to(device)
    return copies[device]


# Classes of devices that need more than `Device` offers, by type.
KINDS: dict[str, type[Device]] = {}


def available() -> list[Device]:
    """The devices that this machine has, the CPU first."""
    if not torch.accelerator.is_available():
        return [CPU]
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    count = torch.accelerator.device_count()
    if kind.type == "mps":  # there is only one, without a number
        return [CPU, Device("mps")]
    make = KINDS.get(kind.type, Device)
    return [CPU, *(make(kind.type, i) for i in range(count))]


def find(name: str) -> list[Device]:
    """The devices that a name stands for: `cpu`, `cuda`, `cuda:1`, `cuda:0,1`, `mps`, `auto`.

    `auto` is the accelerator if there is one, else the CPU. A kind without a number is the first
    device of that kind.
    """
    there = available()
    if name == "auto":
        return there[1:2] or [CPU]
    kind, colon, numbers = name.partition(":")
    if kind not in {device.type for device in there}:
        raise _absent(name, there)
    if not colon:
        return [next(device for device in there if device.type == kind)]
    chosen = []
    for number in numbers.split(","):
        wanted = f"{kind}:{number.strip()}"
        matches = [device for device in there if str(device) == wanted]
        if not matches:
            raise _absent(wanted, there)
        chosen += matches
    if len(set(chosen)) < len(chosen):
        raise FedloomError(f"device {name!r} names a device twice.")
    return chosen


def _absent(name: str, there: Sequence[Device]) -> FedloomError:
    listed = ", ".join(map(str, there))
    kind = name.partition(":")[0]
    near = get_close_matches(kind.lower(), NAMES, n=1)
    if kind.lower() == "gpu":  # of whatever make
        near = ["auto"]
    if near and kind not in NAMES:
        listed += f"; did you mean {near[0]!r}?"
    else:
        listed += "."
    return FedloomError(f"there is no device {name!r} on this machine; there is {listed}")

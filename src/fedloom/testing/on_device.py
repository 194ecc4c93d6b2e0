"""The check that a method computes on an accelerator what it computes on the CPU.

The accelerator is the pretend one, whose bits are the CPU's, unless the environment variable
`FEDLOOM_DEVICE` names a real one: its last digits differ, so figures are compared roughly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

# Imported first: torch counts the devices when it computes its first gradient.
from .pretend import Counts, Pretend, named_device, pretend, reason_missing  # isort: skip

from ..client.fit import fit
from ..client.job import Job
from ..client.worker import ClientWorker
from ..core.device import CPU, Device, find
from ..core.local import Fit
from ..core.method import Method
from ..core.payload import Payload
from ..executors.base import Executor, Results, Task, execute
from ..executors.inplace import Inplace, copied
from .small_world import Trace, federation, same, trace

ROUGHLY = 1e-2  # how far weights on a real device may be from the CPU's, after two short rounds
NOISE = 5  # times as far as other random numbers alone take them
# Every operation takes long on the pretend device, so the runs are short: whole batches of 8 and
# others, one of them of a single sample, and a second round for what clients remember.
SIZES, ROUNDS = (8, 20, 9, 12), 2


def why_not(method: Method) -> str | None:
    """Why no method can be tried on an accelerator here; None: it can."""
    if named_device():
        return None
    return reason_missing()


@contextmanager
def accelerator() -> Iterator[Device]:
    """The device that tests compute on: the one that `FEDLOOM_DEVICE` names, or the pretend one."""
    named = named_device()
    device: Device = find(named)[0] if named else Pretend()
    with device.opened():
        yield device


def compare(method: Method) -> None:
    """Fail unless a method does the same on an accelerator as on the CPU."""

    def run(device: Device, wrap: Callable[[ClientWorker], Executor] = Inplace) -> Trace:
        return trace(method, federation(SIZES), wrap, device=device, rounds=ROUNDS)

    on_cpu = run(CPU)
    if named_device():
        with accelerator() as device:
            seen = run(device)
        roughly_same(on_cpu, seen, run(OtherNoise()))
        return
    with pretend() as counts:
        seen = run(Pretend(), lambda worker: Counting(worker, counts))
    same(on_cpu, seen, "on an accelerator")


class Counting(Inplace):
    """Fails if training makes the host wait for the device more than once per `local.fit`."""

    def __init__(self, worker: ClientWorker, counts: Counts) -> None:
        super().__init__(worker)
        self._counts = counts

    def run(self, tasks: Iterable[Task]) -> Results:
        for task in tasks:
            yield execute(self.worker, copied(task), self._train)

    def _train(self, job: Job) -> Fit:
        before = self._counts.copy()
        done = fit(job)
        asked = self._counts - before
        waits = asked.waits + asked.to_host
        assert waits <= 1, (
            f"training waits {waits} times for the device in {done.steps} steps: a loss or a "
            "gradient hook reads a value (.item(), float(), if, a mask as an index)"
        )
        return done


class OtherNoise(Device):
    """The CPU, but dropout and random masks draw other numbers, as they do on a real device."""

    @contextmanager
    def seeded(self, key: int) -> Iterator[None]:
        with super().seeded(key ^ 1):
            yield


def roughly_same(cpu: Trace, device: Trace, other_noise: Trace) -> None:
    """Fail unless two runs end with nearly the same server and the same states.

    A method that draws random numbers on its device draws others there. `other_noise` is a run on
    the CPU with other numbers, which shows how much they matter.
    """
    _near("the server's", cpu.server, device.server, other_noise.server)
    last = zip(cpu.states[-1], device.states[-1], other_noise.states[-1], strict=True)
    for k, (one, other, noisy) in enumerate(last):
        _near(f"client {k}'s", *map(Payload.decode, (one, other, noisy)))


def _near(whose: str, cpu: Payload, device: Payload, noisy: Payload) -> None:
    assert list(cpu) == list(device), f"{whose} names differ: {list(cpu)}, {list(device)}"
    for name, tensor in cpu.items():
        other, moved = device[name], noisy[name]
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or not tensor.numel():
            continue
        assert isinstance(other, Tensor) and isinstance(moved, Tensor)
        apart = float((tensor - other).abs().max())
        allowed = ROUGHLY * max(1.0, float(tensor.abs().max()))
        allowed += NOISE * float((tensor - moved).abs().max())
        assert apart <= allowed, f"{whose} {name!r} differs by {apart:.2g}"

"""The check that a method computes on an accelerator what it computes on the CPU.

The accelerator is the pretend one, whose bits are the CPU's, unless the environment variable
`FEDLOOM_DEVICE` names a real one: its last digits differ, so figures are compared roughly.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from torch import Tensor

# Imported first: torch counts the devices when it computes its first gradient.
from .pretend import Counts, Pretend, pretend, reason_missing  # isort: skip

from ..client.fit import fit
from ..client.job import Job
from ..client.worker import ClientWorker
from ..core.device import Device, find
from ..core.local import Fit
from ..core.method import Method
from ..executors.base import Results, Task, execute
from ..executors.inplace import Inplace, copied
from .small_world import Trace, same, trace, usual

NAMED = "FEDLOOM_DEVICE"
ROUGHLY = 1e-2  # how far weights on a real device may be from the CPU's, after three short rounds


def why_not(method: Method) -> str | None:
    """Why no method can be tried on an accelerator here; None: it can."""
    if os.environ.get(NAMED):
        return None
    return reason_missing()


def compare(method: Method) -> None:
    """Fail unless a method does the same on an accelerator as on the CPU."""
    named = os.environ.get(NAMED)
    if named:
        roughly_same(usual(method), _traced(method, find(named)[0]))
        return
    with pretend() as counts:
        seen = trace(method, device=Pretend(), wrap=lambda worker: Counting(worker, counts))
    same(usual(method), seen, "on an accelerator")


def _traced(method: Method, device: Device) -> Trace:
    with device.opened():
        return trace(method, device=device)


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


def roughly_same(cpu: Trace, device: Trace) -> None:
    """Fail unless two runs end with nearly the same server."""
    for name, tensor in cpu.server.items():
        other = device.server[name]
        if isinstance(tensor, Tensor) and isinstance(other, Tensor) and tensor.is_floating_point():
            apart = float((tensor - other).abs().max()) if tensor.numel() else 0.0
            scale = float(tensor.abs().max()) if tensor.numel() else 0.0
            assert apart <= ROUGHLY * max(1.0, scale), f"{name!r} differs by {apart:.2g}"

"""One process, one client after another, on one resident model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ..client.worker import ClientWorker
from ..core.payload import Payload
from . import EXECUTORS
from .base import Results, Task, execute


@EXECUTORS.register("inplace")
class Inplace:
    """Clients one by one in this process, with one thread.

    Worker processes have one thread each too, so the numbers are the same.
    """

    remote = eager = False

    def __init__(self, worker: ClientWorker, workers: int = 1) -> None:
        self.worker = worker
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def run(self, tasks: Iterable[Task]) -> Results:
        """Execute the tasks in order. What crosses the boundary is copied, as on a wire."""
        for task in tasks:
            result = execute(self.worker, copied(task))
            worker = self.worker.of(task.clients[0])
            yield replace(result, upload=result.upload.copy(), state=_kept(worker, result.state))

    @property
    def processes(self) -> list[int]:
        """No worker processes."""
        return []

    def close(self) -> None:
        """Restore the number of threads."""
        torch.set_num_threads(self._threads)


def _kept(worker: ClientWorker, state: Payload) -> Payload:
    """A client's state, copied unless each of its tensors has memory of its own."""
    if worker.device.accelerated:
        return state  # copied already: it came from the device
    resident = set()
    for tensor in (*worker.tensors.values(), *worker.first.values()):
        resident.add(tensor.untyped_storage().data_ptr())
    for value in state.values():
        if not isinstance(value, Tensor):
            continue
        memory = value.untyped_storage()
        if not value.is_contiguous() or memory.nbytes() != value.nbytes:
            return state.copy()
        if memory.data_ptr() in resident:
            return state.copy()
        resident.add(memory.data_ptr())
    return state


def copied(task: Task) -> Task:
    """The task with a download and a state that a client may write to."""
    return replace(task, down=task.down.copy(), state=task.state.copy())

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
    """Clients one by one in this process, with one thread, so that numbers equal those of single-threaded workers."""

    remote = eager = False

    def __init__(self, worker: ClientWorker, workers: int = 1) -> None:
        self.worker = worker
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def run(self, tasks: Iterable[Task]) -> Results:
        """Execute the tasks in order. What crosses the boundary is copied, as it would be on a wire."""
        for task in tasks:
            result = execute(
                self.worker, replace(task, down=task.down.copy(), state=task.state.copy())
            )
            yield replace(result, upload=result.upload.copy(), state=self._kept(result.state))

    def _kept(self, state: Payload) -> Payload:
        """A client's state, copied if any of its tensors is one of the resident model's or part of something larger."""
        tensors = [t for t in state.values() if isinstance(t, Tensor)]
        places = {t.untyped_storage().data_ptr() for t in tensors}
        whole = all(t.is_contiguous() and t.untyped_storage().nbytes() == t.nbytes for t in tensors)
        resident = (*self.worker.tensors.values(), *self.worker.first.values())
        shared = len(places) < len(tensors) or not places.isdisjoint(
            t.untyped_storage().data_ptr() for t in resident
        )
        return state if whole and not shared else state.copy()

    @property
    def processes(self) -> list[int]:
        """No worker processes."""
        return []

    def close(self) -> None:
        """Restore the number of threads."""
        torch.set_num_threads(self._threads)

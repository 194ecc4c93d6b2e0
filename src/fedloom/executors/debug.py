"""One process that watches every operation, to find out where a number stops being finite."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch

from ..client.worker import ClientWorker
from . import EXECUTORS
from .base import Results, Task
from .inplace import Inplace


@EXECUTORS.register("debug")
class Debug(Inplace):
    """As `inplace`, but slower: it stops at the first number that is not finite.

    It looks at losses and gradients, and names the operation.
    """

    def __init__(self, worker: ClientWorker, workers: int = 1) -> None:
        super().__init__(worker)
        worker.strict = True

    def run(self, tasks: Iterable[Task]) -> Results:
        """Execute the tasks in order, watching every operation."""
        with warnings.catch_warnings():
            # PyTorch warns that this is slow, but the user asked for it.
            warnings.filterwarnings("ignore", message="Anomaly Detection")
            watched = torch.autograd.detect_anomaly(check_nan=True)
        with watched:
            yield from super().run(tasks)

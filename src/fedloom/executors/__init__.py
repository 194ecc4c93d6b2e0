"""How clients are executed. All executors give the same numbers; they differ in where and how fast.

An executor is one file with `@EXECUTORS.register("NAME")` over its class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core.registry import Registry

if TYPE_CHECKING:  # torch stays out of here: help texts list the executors and cannot wait for it
    from ..client.worker import ClientWorker
    from .base import Executor

EXECUTORS: Registry[Callable[[ClientWorker, int], Executor]] = Registry(
    "executor", "fedloom.executors", __name__
)


def make(name: str, worker: ClientWorker, workers: int) -> Executor:
    """The executor of that name. `workers` is the number of processes, for those that have any."""
    from ..core.memory import keep_freed_memory

    executor = EXECUTORS.find(name)
    keep_freed_memory()
    return executor(worker, workers)

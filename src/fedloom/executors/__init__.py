"""How clients are executed. All executors give the same numbers; they differ in where and how fast."""

from __future__ import annotations

from collections.abc import Callable

from ..client.context import ClientWorker
from ..client.device import keep_freed_memory
from ..core.errors import unknown
from .auto import Auto
from .base import Executor, Result, Results, Task, execute
from .inplace import Debug, Inplace
from .pool import Pool
from .stacked import Vmap

EXECUTORS: dict[str, Callable[[ClientWorker, int], Executor]] = {
    "inplace": lambda worker, workers: Inplace(worker),
    "pool": Pool,
    "auto": Auto,
    "vmap": lambda worker, workers: Vmap(worker),
    "debug": lambda worker, workers: Debug(worker),
}


def make(name: str, worker: ClientWorker, workers: int) -> Executor:
    """The executor of that name."""
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    keep_freed_memory()
    return EXECUTORS[name](worker, workers)


__all__ = ["EXECUTORS", "Executor", "Result", "Results", "Task", "execute", "make"]

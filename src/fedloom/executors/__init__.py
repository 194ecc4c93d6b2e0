"""How clients are executed. All executors give the same numbers; they differ in where and how fast."""

from __future__ import annotations

from collections.abc import Callable

from ..client.context import Site
from ..client.device import keep_freed_memory
from ..core.errors import unknown
from .auto import Auto
from .base import Executor, Result, Results, Task, execute
from .inplace import Debug, Inplace
from .pool import Pool
from .stacked import Vmap

EXECUTORS: dict[str, Callable[[Site, int], Executor]] = {
    "inplace": lambda site, workers: Inplace(site),
    "pool": Pool,
    "auto": Auto,
    "vmap": lambda site, workers: Vmap(site),
    "debug": lambda site, workers: Debug(site),
}


def make(name: str, site: Site, workers: int) -> Executor:
    """The executor of that name."""
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    keep_freed_memory()
    return EXECUTORS[name](site, workers)


__all__ = ["EXECUTORS", "Executor", "Result", "Results", "Task", "execute", "make"]

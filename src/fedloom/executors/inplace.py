"""One process, one client after another, on one resident model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from ..local import Site
from .base import Result, Task, execute


class Inplace:
    """Clients one by one in this process, with one thread, so that numbers equal those of single-threaded workers."""

    remote = False

    def __init__(self, site: Site) -> None:
        self.site = site
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Execute the tasks in order. What crosses the boundary is copied, as it would be on a wire."""
        for task in tasks:
            result = execute(self.site, replace(task, down=task.down.copy(), state=task.state.copy()))
            yield replace(result, upload=result.upload.copy(), state=result.state.copy())

    @property
    def processes(self) -> list[int]:
        """No worker processes."""
        return []

    def close(self) -> None:
        """Restore the number of threads."""
        torch.set_num_threads(self._threads)


class Debug(Inplace):
    """As `inplace`, and slower: stops at the first loss or gradient that is not finite, naming the operation."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        site.strict = True

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Execute the tasks in order, watching every operation."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Anomaly Detection")  # that is what was asked for
            watched = torch.autograd.detect_anomaly(check_nan=True)
        with watched:
            yield from super().run(tasks)

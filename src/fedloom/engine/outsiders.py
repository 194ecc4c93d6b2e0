"""Clients that never train: how good the common model is for them, and a model of their own.

Each is scored by itself, as `fedloom personalise` treats a newcomer: it says hello, gets what the
server would send it (`before`), and does one round of work of its own (`after`). The server stays
as it is, and knows nothing of any other client outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..client.standard import told, without_group
from ..client.worker import ClientWorker
from ..core.payload import Payload
from ..executors.base import Executor, Result, Task
from .setup import widened

STAGES = ("common", "before", "after")
TESTED = ("test",)
Rows = dict[int, np.ndarray]  # by client, the counts from which metrics are made


@dataclass(frozen=True)
class Outsiders:
    """The clients outside a federation, after a round that has left this server."""

    worker: ClientWorker
    executor: Executor
    server: Payload
    round: int
    metric: str

    @property
    def numbers(self) -> range:
        """Their numbers, which follow those of the clients."""
        n = self.worker.clients
        return range(n, n + len(self.worker.federation.outside))

    def scores(self) -> dict[str, Rows]:
        """By stage, their counts on test samples; a stage that the method lacks is left out."""
        method = self.worker.method
        rows: dict[str, Rows] = {}
        if method.common(self.worker.arrived(self.server), self.worker) is not None:
            rows["common"] = self._rows(self._task("common", k, self.server) for k in self.numbers)
        if not method.traits.personalised or method.traits.by_client is None:
            return rows
        hellos = self.executor.run(self._task("hello", k, Payload()) for k in self.numbers)
        downloads = {hello.clients[0]: self._download(hello) for hello in list(hellos)}
        for stage, kind in (("before", "before"), ("after", "client")):
            rows[stage] = self._rows(self._task(kind, k, down) for k, down in downloads.items())
        return rows

    def _task(self, kind: Any, k: int, down: Payload) -> Task:
        number = self.round if kind == "common" else self.round + 1
        return Task(kind, number, (k,), down, splits=TESTED, metric=self.metric)

    def _rows(self, tasks: Iterable[Task]) -> Rows:
        rows = {}
        for result in self.executor.run(iter(tasks)):
            rows[result.clients[0]] = result.scores["test"][0].numpy()
        return rows

    def _download(self, hello: Result) -> Payload:
        """What one of them gets from a server to which it alone has introduced itself."""
        method, k = self.worker.method, hello.clients[0]
        wider = widened(self.server, method, self.worker.clients, len(self.numbers))
        greeting = without_group(hello.upload)
        joined = method.join(wider.replace(round=self.round + 1), {k: greeting})
        return told(method.download(joined, k), self.server, Payload())

    def groups(self) -> Iterator[tuple[str, list[int]]]:
        """The names under which they are scored, and who has each."""
        members: dict[str, list[int]] = {}
        for k, client in zip(self.numbers, self.worker.federation.outside, strict=True):
            members.setdefault(client.group, []).append(k)
        yield from members.items()

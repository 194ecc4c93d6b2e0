"""One process in which clients take their steps together, as one stack.

Methods are pure, so a client can be asked twice. The first time it is stopped where it would train,
only to see what it would train and how. What has one shape is then trained side by side
(client/fast/stacked.py), and the second time `local.fit` hands the weights over. Whatever cannot be
stacked, such as a loss of its own or, on a CPU, a convolutional network, is trained as `inplace`
does. The numbers agree with those of `inplace` to about 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from ..client.fast import allowed, stacked
from ..client.fast.stacked import Entry, Trained
from ..client.fit import fit
from ..client.job import Job
from ..core.errors import ClientError
from ..core.local import Fit
from ..core.payload import Payload
from . import EXECUTORS
from .base import LastPayload, Result, Results, Task, execute
from .inplace import Inplace, copied

CHUNK = 64  # clients that are asked at once
# Bytes of weights in a stack, so that large models are not held many times over.
STACK = 1 << 24
STACK_ON_ACCELERATOR = 1 << 29
FEW = 4  # clients; where a stack has room for fewer, stacking is not worth it


class Postponed(BaseException):
    """Ends a client's first asking where its training would begin.

    It is no failure and therefore no `Exception`: a method that handles its own failures lets it
    pass, and so does `execute`. Only `Vmap` raises it, and only `Vmap` catches it.
    """

    def __init__(self, entry: Entry | None) -> None:
        super().__init__()
        self.entry = entry  # None if the job cannot be stacked


@EXECUTORS.register("vmap")
class Vmap(Inplace):
    """Clients in this process, trained together where that is possible."""

    def run(self, tasks: Iterable[Task]) -> Results:
        """Execute the tasks, those of clients in chunks; what crosses the boundary is copied."""
        waiting = iter(tasks)
        # Copied while others are drawn: a method may fill the tensors of a download again.
        kept = LastPayload(Payload.copy)
        while True:
            chunk = [replace(task, down=kept(task.down)) for task in islice(waiting, CHUNK)]
            if not chunk:
                return
            ready = self._prepare([task for task in chunk if task.kind == "client"])
            for task in chunk:
                answer = ready.get(task.clients[0]) if task.kind == "client" else None
                if isinstance(answer, Result):
                    result = answer
                else:
                    result = execute(self.worker, copied(task), _trainer(answer))
                yield replace(result, upload=result.upload.copy(), state=result.state.copy())

    def _prepare(self, tasks: Sequence[Task]) -> dict[int, Trained | Result]:
        """By client: what was trained together, and results of clients that train nothing."""
        ready: dict[int, Trained | Result] = {}
        if len(tasks) < 2 or self.worker.training.precision != "fp32" or not allowed("stacked"):
            return ready  # a stack is not computed in bf16
        groups: dict[Hashable, list[Entry]] = {}
        for task in tasks:
            answer = self._ask(task)
            if isinstance(answer, Entry):
                groups.setdefault(answer.kind, []).append(answer)
            elif answer is not None:
                ready[task.clients[0]] = answer
        for group in groups.values():
            room = STACK_ON_ACCELERATOR if self.worker.device.accelerated else STACK
            most = room // max(1, sum(w.nbytes for w in group[0].weights.values()))
            if most < FEW:
                continue
            group = sorted(group, key=lambda entry: -entry.job.planned)
            for start in range(0, len(group), most):
                ready |= _train(group[start : start + most])
        return ready

    def _ask(self, task: Task) -> Entry | Result | None:
        """What the client would train in a stack, or the result itself if it trains nothing.

        None if what it would train cannot be stacked. A client that fails when it is asked
        fails the round, as it would when it is executed.
        """
        try:
            return execute(self.worker, copied(task), _postpone)
        except Postponed as postponed:
            return postponed.entry


def _postpone(job: Job) -> Fit:
    raise Postponed(stacked.entry(job))


def _trainer(trained: Trained | None) -> Callable[[Job], Fit]:
    """A trainer that hands over what was trained in a stack in place of the client's first fit."""
    if trained is None:
        return fit

    def train(job: Job) -> Fit:
        return fit(job) if job.earlier else trained.hand_over(job)

    return train


def _train(entries: Sequence[Entry]) -> dict[int, Trained | Result]:
    """Train entries of one kind together; returns their outcomes, by client. One alone waits."""
    if len(entries) < 2:
        return {}
    clients = [entry.job.client for entry in entries]
    try:
        return dict(zip(clients, stacked.train(entries), strict=True))
    except Exception as error:
        numbers = ", ".join(map(str, clients))
        reason = f"{type(error).__name__}: {error}"
        raise ClientError(
            f"client failed in round {entries[0].job.round}, clients {numbers}: {reason}"
        ) from error

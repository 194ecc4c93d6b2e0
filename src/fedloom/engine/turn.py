"""One round on its way: who takes part, what has moved, and the uploads as they arrive."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..client.context import weighted
from ..client.worker import ClientWorker
from ..core.claims import About
from ..core.errors import FedloomError
from ..core.payload import Payload
from ..executors.base import Result, Results
from .checkpoint import Store
from .edges import Edges
from .evaluate import TrainedScores

Arriving = Iterator[tuple[int, Payload]]  # (client, upload)
HINT = "; a smaller lr or clip=1 often helps, --executor debug shows where it arose."


@dataclass
class Turn:
    """One round."""

    round: int
    server: Payload  # as it is when the round begins
    cohort: list[int]
    present: list[int]  # the participants that can be asked
    lost: set[int]
    work: Mapping[int, float]
    due: bool  # whether the round is evaluated
    judge: Callable[[int, Payload], str | None]  # what is wrong with a client's upload, in words
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    # The number of floats in each message, hellos apart.
    floats: dict[str, list[int]] = field(default_factory=lambda: {"up": [], "down": []})
    results: Results | None = None  # the results to come, if the round began ahead of its time
    # In simulated time, if there is a clock: when the round begins and ends, and how many uploads
    # it waits for.
    begins: float = 0.0
    ends: float = 0.0
    counted: int = 0
    sent: int = 0  # bytes of uploads, hellos apart
    edges: Edges | None = None  # what the uploads come through, if there is a tree of servers

    def receive(self, result: Result) -> Payload:
        """The upload of a result: counted, and refused if the server cannot use it."""
        self.bytes["up"] += result.upload.nbytes
        client = result.clients[0]
        flaw = self.judge(client, result.upload) or self._misfit(result.upload)
        if flaw:
            hint = HINT if flaw.startswith("a NaN") else "."
            raise FedloomError(f"round {self.round}: client {client} uploaded {flaw}{hint}")
        return result.upload

    def mean_floats(self) -> dict[str, float]:
        """The mean number of floats in a message, by direction."""
        means = {}
        for way, counts in self.floats.items():
            means[way] = sum(counts) / len(counts) if counts else 0.0
        return means

    def _misfit(self, upload: Payload) -> str | None:
        """A tensor that is not like the server's of the same name, in words."""
        for name, value in upload.items():
            expected = self.server.get(name)
            if not isinstance(value, Tensor) or not isinstance(expected, Tensor):
                continue
            if (expected.shape, expected.dtype) != (value.shape, value.dtype):
                return (
                    f"{name!r} as {tuple(value.shape)} ({value.dtype}), the server has "
                    f"{tuple(expected.shape)} ({expected.dtype})"
                )
        return None


def about(worker: ClientWorker, k: int) -> About:
    """What the server knows of client `k`."""
    data = worker.federation.data
    samples = len(worker.rows(k))
    return About(samples, samples * math.prod(data.y.shape[1:]), worker.classes)


class Uploads:
    """The uploads of a round, one by one in a fixed order, as `aggregate` asks for them.

    Asking for the next upload waits for the next result. Its state goes to the store, its scores
    and losses are noted, and the upload itself is kept nowhere: memory does not grow with the
    cohort.
    """

    def __init__(
        self,
        turn: Turn,
        results: Results,
        store: Store,
        scores: TrainedScores,
        sizes: Callable[[int], int],
        tell: Callable[[int], None],
    ) -> None:
        self.scores = scores
        self.waited = 0.0  # seconds that the server has waited for results
        self._turn = turn
        self._results = results
        self._store = store
        self._sizes = sizes  # a client's number of training samples
        self._tell = tell  # hears how many clients have finished
        self._heard: list[int] = []
        self._losses: list[tuple[int, dict[str, float]]] = []
        self._complete = False

    def __iter__(self) -> Uploads:
        return self

    def __next__(self) -> tuple[int, Payload]:
        start = time.monotonic()
        try:
            return self._next()
        finally:
            self.waited += time.monotonic() - start

    def _next(self) -> tuple[int, Payload]:
        result = next(self._results, None)
        if result is None:
            self._complete = True
            raise StopIteration
        k = result.clients[0]
        upload = self._turn.receive(result)
        self._turn.floats["up"].append(upload.floats)
        self._turn.sent += upload.nbytes
        self.accept(result)
        return k, upload

    def results(self) -> Results:
        """The results themselves, none of which is accepted yet."""
        start = time.monotonic()
        for result in self._results:
            self.waited += time.monotonic() - start
            yield result
            start = time.monotonic()
        self.waited += time.monotonic() - start

    def accept(self, result: Result) -> None:
        """Keep all of a result but its upload."""
        k = result.clients[0]
        self._store.put(k, result.state)
        self.scores.add(k, result)
        self._heard.append(k)
        self._losses.append((self._sizes(k), result.losses))
        self._tell(len(self._losses))

    def reported(self) -> Iterator[tuple[int, float]]:
        """Each client that trained, and its loss, all parts together."""
        for k, (_, losses) in zip(self._heard, self._losses, strict=True):
            yield k, sum(losses.values())

    def losses(self) -> dict[str, float]:
        """The mean of each part of the loss over the clients that trained, weighted by size."""
        return weighted(self._losses)

    def refuse_unread(self, method: str) -> None:
        """Refuse a method whose `aggregate` did not look at every upload."""
        if not self._complete:
            raise FedloomError(
                f"{method}.aggregate must look at every upload; it stopped before the last one."
            )

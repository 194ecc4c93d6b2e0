"""What the server learns from strangers: an outcome that cannot be right is not kept.

Every upload has been judged on its own when it arrived. If the outcome of all together is still
wrong (an exception, a number that is not finite, a length that has jumped), it is worked out again
without the culprit, who is found by elimination: first those with whom alone it goes wrong, then
one without whom it goes right. If several are left who only go wrong together, they are added one
by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..core.claims import Sizes, not_finite
from ..core.errors import FedloomError
from ..core.files import write_atomic
from ..core.payload import Payload
from ..executors.base import Result
from .turn import Turn

Learn = Callable[[Iterable[tuple[int, Payload]]], Payload]


@runtime_checkable
class Strangers(Protocol):
    """An executor whose clients may lie."""

    @property
    def sizes(self) -> Sizes:
        """Which lengths are likely."""
        ...

    def refuse(self, round: int, hook: str, refused: Mapping[int, str], left: int) -> None:
        """Hear whose uploads the server could not use, and why; `left` is how many it could."""
        ...


def learned(
    executor: Strangers, turn: Turn, server: Payload, hook: str, learn: Learn, arrived: Arrived
) -> tuple[Payload, list[Result]]:
    """What the server makes of the uploads of strangers, and the results that it believes."""
    trial = Trial(server, learn, arrived, executor.sizes)
    outcome = trial.outcome()
    refused = {**arrived.refused, **trial.refused}
    believed = [result for k, result in arrived.results.items() if k not in refused]
    if refused:
        executor.refuse(turn.round, hook, refused, len(believed))
    return outcome, believed


class Arrived:
    """Results of strangers, in the order in which they came, until it is known whom to believe.

    Uploads are in files beside the checkpoint, if there is a folder: memory does not grow with the
    cohort. The store removes these files with the next checkpoint.
    """

    def __init__(self, turn: Turn, results: Iterable[Result], folder: Path | None) -> None:
        self.results: dict[int, Result] = {}  # without uploads
        self.floats: dict[int, int] = {}  # in each upload
        self.refused: dict[int, str] = {}  # client -> why its upload is not used
        self._folder = folder
        self._held: dict[int, Payload] = {}
        for result in results:
            client = result.clients[0]
            try:
                self._keep(client, turn.receive(result))
            except FedloomError as error:
                self.refused[client] = str(error)
                continue
            self.floats[client] = result.upload.floats
            self.results[client] = replace(result, upload=Payload())

    def _keep(self, client: int, upload: Payload) -> None:
        if self._folder is None:
            self._held[client] = upload
        else:
            write_atomic(self._file(client), upload.encode(), durable=False)

    def _file(self, client: int) -> Path:
        assert self._folder is not None
        return self._folder / f"upload-{client}.tmp"

    def uploads(self, clients: Iterable[int]) -> Iterable[tuple[int, Payload]]:
        """The uploads of these clients, one by one."""
        for client in clients:
            if self._folder is None:
                yield client, self._held[client]
            else:
                yield client, Payload.sealed(self._file(client).read_bytes())


@dataclass
class Trial:
    """An attempt to learn from uploads of which some may be lies.

    `learn` makes a new server of some uploads; `server` is the one before.
    """

    server: Payload
    learn: Learn
    arrived: Arrived
    sizes: Sizes
    refused: dict[int, str] = field(default_factory=dict)  # client -> why it was left out

    def outcome(self) -> Payload:
        """The server after as many of the uploads as it can bear; `refused` has the others."""
        everybody = list(self.arrived.results)
        outcome, why = self._attempt(everybody)
        if outcome is not None:
            return outcome
        rest = self._without_culprits(everybody, why)
        outcome, _ = self._attempt(rest)
        if outcome is not None:
            return outcome
        return self._one_by_one(rest)

    def _attempt(self, clients: Sequence[int]) -> tuple[Payload | None, str]:
        """The server after the uploads of these clients, or None and what is wrong with it."""
        try:
            outcome = self.learn(self.arrived.uploads(clients))
            why = not_finite(self.server, outcome) or self.sizes.flaw(self.server, outcome)
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        if why:
            return None, f"with it the server would have {why}"
        return outcome, ""

    def _without_culprits(self, clients: Sequence[int], why: str) -> list[int]:
        """The clients that are left once those whose uploads go wrong are refused."""
        for k in clients:
            outcome, reason = self._attempt([k])
            if outcome is None:
                self.refused[k] = reason
        if self.refused:
            return [k for k in clients if k not in self.refused]
        for k in clients:
            others = [j for j in clients if j != k]
            outcome, _ = self._attempt(others)
            if outcome is not None:
                self.refused[k] = why
                return others
        return list(clients)

    def _one_by_one(self, clients: Sequence[int]) -> Payload:
        """The server after the uploads that fit those before them."""
        kept: list[int] = []
        last = self.learn(())
        for k in clients:
            outcome, reason = self._attempt([*kept, k])
            if outcome is None:
                self.refused[k] = reason
            else:
                kept.append(k)
                last = outcome
        return last

"""Uploads are inspected before they touch the server.

A rehearsal shows what an upload should look like: the server executes the very task itself, for one
step, on blank samples, once with all classes and once with only one. Names that occur in both are
required, dimensions that agree are fixed; a dimension that differs depends on the data and has a
bound. A number in a name (a class, a client) stands for any number, unless tensors of different
kinds differ only in it.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ...client.standard import joined, told
from ...client.worker import ClientWorker
from ...core.claims import Sizes, flaw
from ...core.errors import ClientError
from ...core.payload import Payload, Value
from ...data.federation import Client
from ...engine.engine import first
from ...engine.turn import about
from ..base import Task, execute
from .sites import dealt

# Written in one way only, or one class could be sent twice: 3, and not 03 or a 3 of another script.
_NUMBER = re.compile(r"(?:(?<=/)|^)(?:0|[1-9][0-9]*)(?=/|$)")


@dataclass
class _Form:
    """What a value of an upload may be: its type and, for a tensor, bounds of each dimension."""

    kind: str
    low: tuple[int, ...]
    high: tuple[int, ...]
    seen: int = 1  # in how many rehearsals

    def widened(self, other: _Form, free: int) -> _Form | None:
        """A form that allows both; None if they have nothing in common.

        A dimension that differs may be anything up to `free`.
        """
        if (self.kind, len(self.low)) != (other.kind, len(other.low)):
            return None
        low = list(self.low)
        high = list(self.high)
        for i, bounds in enumerate(zip(other.low, other.high, strict=True)):
            if bounds != (low[i], high[i]):
                low[i] = 0
                high[i] = max(free, high[i], bounds[1])
        return _Form(self.kind, tuple(low), tuple(high), self.seen + other.seen)

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor may have this shape."""
        if len(shape) != len(self.low):
            return False
        bounds = zip(self.low, shape, self.high, strict=True)
        return all(low <= size <= high for low, size, high in bounds)


class Inspector:
    """Judges uploads by what the server expects. It changes nothing of the run."""

    def __init__(self, worker: ClientWorker, sizes: Sizes) -> None:
        self.worker = worker  # the server's: its samples are blank
        self.sizes = sizes
        # By kind of task: the number of rehearsals, and the form of each name or pattern of names;
        # None for a pattern whose tensors have nothing in common.
        self._forms: dict[str, tuple[int, dict[str, _Form | None]]] = {}

    def flaw(self, task: Task, upload: Payload) -> str | None:
        """What is wrong with an upload, in words; None if it can be used."""
        if task.kind == "before":
            return f"{next(iter(upload))!r} after scoring" if upload else None
        method = type(self.worker.method)
        return (
            self._unlike(task, upload)
            or flaw(method, upload, about(self.worker, task.clients[0]))
            or self.sizes.flaw(task.down, upload, change=True)
        )

    def _unlike(self, task: Task, upload: Payload) -> str | None:
        """How an upload differs from those of a rehearsal, in words."""
        # Forms seldom change (the first round may lack models of others, for example), so there is
        # another rehearsal only if an upload does not fit.
        if task.kind in self._forms and self._misfit(task, upload) is None:
            return None
        try:
            self._rehearse(task)
        except ClientError as error:
            if task.kind not in self._forms:
                warnings.warn(
                    f"names and shapes of {self.worker.method.name}'s uploads are not checked: "
                    f"nobody knows what they should look like, since on blank samples {error}",
                    stacklevel=2,
                )
                return None
        return self._misfit(task, upload)

    def _misfit(self, task: Task, upload: Payload) -> str | None:
        rehearsals, forms = self._forms[task.kind]
        bound = max(self.worker.clients, self.worker.classes)
        for name, value in upload.items():
            form = forms.get(name) or forms.get(_NUMBER.sub("*", name))
            if form is None or any(int(n) >= bound for n in _NUMBER.findall(name)):
                return f"{name!r}, which {self.worker.method.name} does not send"
            if _kind(value) != form.kind:
                return f"{name!r} as {_kind(value)}, not {form.kind}"
            shape = _shape(value)
            if not form.allows(shape):
                return f"{name!r} of shape {shape}, not {form.high}"
        for name, form in forms.items():
            required = form is not None and form.seen == rehearsals and not _numbered(name)
            if required and name not in upload:
                return f"no {name!r}"
        return None

    def _rehearse(self, task: Task) -> None:
        """Execute the task on blank samples, and note the form of what it uploads."""
        worker = self.worker
        client = worker.federation.clients[task.clients[0]]
        bound = max(len(client.train), worker.classes)
        rehearsals, forms_before = self._forms.get(task.kind, (0, {}))
        forms = dict(forms_before)
        for rows in (np.arange(worker.classes), np.zeros(1, dtype=np.int64)):
            for name, value in self._upload(task, dealt(rows, client)).items():
                form = _Form(_kind(value), _shape(value), _shape(value))
                for pattern in {name, _NUMBER.sub("*", name)}:
                    if pattern not in forms:
                        forms[pattern] = form
                        continue
                    before = forms[pattern]
                    forms[pattern] = before and before.widened(form, bound)
            rehearsals += 1
        self._forms[task.kind] = (rehearsals, forms)

    def _upload(self, task: Task, client: Client) -> Payload:
        """What this client would upload after one step."""
        rehearsing = self._with(task, client)
        try:
            return execute(rehearsing, replace(task, state=Payload(), splits=())).upload
        except ClientError:
            # Some clients cannot work in a later round without what they remember of the first.
            state = self._remembered(rehearsing, task.clients[0])
            return execute(rehearsing, replace(task, state=state, splits=())).upload

    @staticmethod
    def _remembered(rehearsing: ClientWorker, k: int) -> Payload:
        """What a client remembers after a first round of which it was the only participant."""
        method = rehearsing.method
        hello = execute(rehearsing, Task("hello", 1, (k,))).upload
        server = joined(method, first(rehearsing).replace(round=1), {k: hello})
        down = told(method.download(server, k), server, Payload())
        return execute(rehearsing, Task("client", 1, (k,), down)).state

    def _with(self, task: Task, client: Client) -> ClientWorker:
        """A worker that takes `client` for the one of the task, and trains it for one step."""
        worker = self.worker
        clients = list(worker.federation.clients)
        clients[task.clients[0]] = client
        return ClientWorker(
            worker.method,
            replace(worker.federation, clients=tuple(clients)),
            worker.networks,
            worker.training.changed(epochs=1, steps=1),
            worker.seed,
            standardise=worker.standardise,
        )


def _numbered(name: str) -> bool:
    return "*" in name or _NUMBER.search(name) is not None


def _kind(value: Value) -> str:
    if isinstance(value, Tensor):
        return str(value.dtype).removeprefix("torch.")
    return type(value).__name__


def _shape(value: Value) -> tuple[int, ...]:
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return ()

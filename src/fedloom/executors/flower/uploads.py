"""Uploads are looked at before they touch the server.

What an upload should look like is known from a rehearsal: the server executes the very task itself, for one step, on
blank samples, once with all classes and once with one class only. Names that both have are required, dimensions that
both share are fixed; a dimension that differs depends on the data and is bounded. A part of a name that is a number (a
class, a client) stands for any number that there is, unless tensors of different kinds differ in it only.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...client.worker import ClientWorker
from ...core.errors import ClientError
from ...core.payload import Payload, Value
from ..base import Task, execute
from .sites import dealt

_NUMBER = re.compile(r"(?:(?<=/)|^)\d+(?=/|$)")


@dataclass
class _Form:
    """What a value of an upload may be: its type and, for a tensor, the least and the largest of each dimension."""

    kind: str
    low: tuple[int, ...]
    high: tuple[int, ...]
    seen: int = 1  # in how many rehearsals

    def widened(self, other: _Form, free: int) -> _Form | None:
        """A form that allows both; a dimension that differs may be anything up to `free`. None: they do not mix."""
        if (self.kind, len(self.low)) != (other.kind, len(other.low)):
            return None
        differ = [
            a != b or c != d
            for a, b, c, d in zip(self.low, other.low, self.high, other.high, strict=True)
        ]
        low = tuple(0 if d else n for d, n in zip(differ, self.low, strict=True))
        high = tuple(
            max(free, a, b) if d else a
            for d, a, b in zip(differ, self.high, other.high, strict=True)
        )
        return _Form(self.kind, low, high, self.seen + other.seen)


class Inspector:
    """Judges uploads by what the server expects. It works on a site of its own and changes nothing of the run."""

    def __init__(self, site: ClientWorker) -> None:
        self.site = site  # the server's: its samples are blank
        # By kind of task: how many rehearsals there were, and the form of each name; None where a pattern fits nothing.
        self._forms: dict[str, tuple[int, dict[str, _Form | None]]] = {}

    def flaw(self, task: Task, upload: Payload) -> str | None:
        """What is wrong with an upload, in words; None if it can be used."""
        for name, value in upload.items():
            if isinstance(value, float) and not math.isfinite(value):
                return f"{name} = {value}"
            if (
                isinstance(value, Tensor)
                and value.is_floating_point()
                and not torch.isfinite(value).all()
            ):
                return f"a NaN or infinity in {name!r}"
        # Forms change seldom (a first round without models of others, say): rehearse again only where they do not fit.
        if task.kind in self._forms and self._misfit(task, upload) is None:
            return None
        try:
            self._rehearse(task)
        except ClientError as error:
            warnings.warn(
                f"uploads of {self.site.method.name} are only checked for numbers that are not finite: what they "
                f"should look like cannot be found out, since on blank samples {error}",
                stacklevel=2,
            )
            return None
        return self._misfit(task, upload)

    def _misfit(self, task: Task, upload: Payload) -> str | None:
        rehearsals, forms = self._forms[task.kind]
        bound = max(self.site.clients, self.site.classes)
        for name, value in upload.items():
            form = forms.get(name) or forms.get(_NUMBER.sub("*", name))
            if form is None or any(int(n) >= bound for n in _NUMBER.findall(name)):
                return f"{name!r}, which {self.site.method.name} does not send"
            if _kind(value) != form.kind:
                return f"{name!r} as {_kind(value)}, not {form.kind}"
            shape = _shape(value)
            fits = len(shape) == len(form.low)
            if not fits or any(
                not a <= n <= b for a, n, b in zip(form.low, shape, form.high, strict=True)
            ):
                return f"{name!r} of shape {shape}, not {form.high}"
        always = [
            n for n, form in forms.items() if form and form.seen == rehearsals and not _numbered(n)
        ]
        missing = [n for n in always if n not in upload]
        return f"no {missing[0]!r}" if missing else None

    def _rehearse(self, task: Task) -> None:
        """Execute the task on blank samples, and note what comes of it."""
        site, k = self.site, task.clients[0]
        own = site.federation.clients[k]
        free = max(len(own.train), site.classes)
        seen: list[dict[str, _Form]] = []
        for rows in (np.arange(site.classes), np.zeros(1, dtype=np.int64)):
            made_up = dealt(rows, own)
            clients = tuple(made_up if i == k else c for i, c in enumerate(site.federation.clients))
            stage = ClientWorker(
                site.method,
                replace(site.federation, clients=clients),
                site.given,
                site.training.changed(epochs=1, steps=1),
                site.seed,
            )
            upload = execute(stage, replace(task, state=Payload(), splits=())).upload
            seen.append({n: _Form(_kind(v), _shape(v), _shape(v)) for n, v in upload.items()})
        number, known = self._forms.get(task.kind, (0, {}))
        merged = dict(known)
        for forms in seen:
            for name, form in forms.items():
                for stored in {name, _NUMBER.sub("*", name)}:
                    old = merged.get(stored, form)
                    mixed = old and old.widened(form, free)
                    merged[stored] = form if stored not in merged else mixed
        self._forms[task.kind] = (number + len(seen), merged)


def _numbered(name: str) -> bool:
    return "*" in name or _NUMBER.search(name) is not None


def _kind(value: Value) -> str:
    return (
        str(value.dtype).removeprefix("torch.")
        if isinstance(value, Tensor)
        else type(value).__name__
    )


def _shape(value: Value) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()

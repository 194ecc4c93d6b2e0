"""What a federation's clients have, as plain values for `federation.json`.

Of up to `MANY` clients each one is listed. Of more, `clients` holds a few figures of all of them,
and what is known of each lies beside it as arrays (`arrays`, in the file `FILE`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.payload import Payload
from ..metrics.distribution import MANY
from .clients import SPLITS, Client, Clients, Outsider
from .dataset import Dataset

FILE = "clients.safetensors"
Facts = Mapping[str, Any]  # what `described` gives, or a file that once held it


class Dealt(Protocol):
    """A federation, as far as this module looks at it."""

    @property
    def data(self) -> Dataset: ...
    @property
    def clients(self) -> Sequence[Client]: ...
    @property
    def outside(self) -> Sequence[Outsider]: ...
    @property
    def partition(self) -> str: ...
    @property
    def description(self) -> str: ...


def described(federation: Dealt) -> dict[str, Any]:
    """The data, and sizes, domains and class counts of the clients."""
    data = federation.data
    clients: Any
    if many(federation.clients):
        clients = _figures(federation)
    else:
        clients = [_about(data, client) for client in federation.clients]
    facts = {
        "data": data.name,
        "partition": federation.partition,
        "description": federation.description,
        "classes": list(data.classes),
        "domains": list(data.domains),
        "shape": list(data.x.shape[1:]),
        "clients": clients,
    }
    if federation.outside:
        facts["outside"] = [
            {"group": client.group, **_about(data, client)} for client in federation.outside
        ]
    return facts


def many(clients: Sequence[Client]) -> bool:
    """Whether there are too many clients to list."""
    return isinstance(clients, Clients) and len(clients) > MANY


def number_of(facts: Facts) -> int:
    """How many clients a described federation has."""
    clients = facts.get("clients") or []
    return int(clients["n"]) if isinstance(clients, Mapping) else len(clients)


def listed(facts: Facts) -> list[dict[str, Any]]:
    """What is said of each client of a described federation; nothing if there are too many."""
    clients = facts.get("clients") or []
    return [] if isinstance(clients, Mapping) else clients


def samples_of(facts: Facts, split: str) -> int:
    """How many samples of a split all clients of a described federation have together."""
    clients = facts.get("clients") or []
    if isinstance(clients, Mapping):
        return int(clients[split]["sum"])
    return sum(client[split] for client in clients)


def _about(data: Dataset, client: Client) -> dict[str, Any]:
    about: dict[str, Any] = {"domain": client.domain}
    for split in SPLITS:
        about[split] = len(getattr(client, split))
    about["counts"] = _counts(data, client.train)
    about["test_counts"] = _counts(data, client.test)
    if data.group is not None:
        everything = np.concatenate([getattr(client, split) for split in SPLITS])
        about["groups"] = len(np.unique(data.group.numpy()[everything]))
    return about


def _counts(data: Dataset, rows: np.ndarray) -> list[int]:
    labels = data.y[torch.from_numpy(rows)].flatten()
    counts: list[int] = torch.bincount(labels, minlength=len(data.classes)).tolist()
    return counts


# -- many clients --------------------------------------------------------------------------------
def _figures(federation: Dealt) -> dict[str, Any]:
    """How many clients there are, how large they are, and a checksum of who has what."""
    clients, data = federation.clients, federation.data
    assert isinstance(clients, Clients)
    figures: dict[str, Any] = {"n": len(clients), "sha256": checksum(clients), "file": FILE}
    for split in SPLITS:
        sizes = clients.sizes(split)
        figures[split] = {
            "least": int(sizes.min()),
            "most": int(sizes.max()),
            "sum": int(sizes.sum()),
        }
    members = np.bincount(clients.domain[clients.domain >= 0], minlength=len(clients.domains))
    figures["domains"] = dict(zip(clients.domains, members.tolist(), strict=True))
    figures["counts"] = _counts(data, clients.rows["train"])
    figures["test_counts"] = _counts(data, clients.rows["test"])
    return figures


def checksum(clients: Clients) -> str:
    """Names who has which samples, and of which domain each client is."""
    whole = sha256(repr(clients.domains).encode())
    whole.update(clients.domain.astype("<i4").tobytes())
    for split in SPLITS:
        whole.update(clients.starts[split].astype("<i8").data)
        whole.update(np.ascontiguousarray(clients.rows[split], "<i8").data)
    return whole.hexdigest()


def arrays(federation: Dealt) -> Payload:
    """What is known of each of many clients.

    `domain` is a place among the `domains` of federation.json, -1 for none. Class counts leave out
    zeros: client k has `counts/number` samples of `counts/label` from `counts/starts[k]` up to
    `counts/starts[k + 1]`, and `test_counts` are alike.
    """
    clients = federation.clients
    assert isinstance(clients, Clients)
    parts: dict[str, Any] = {"domain": torch.from_numpy(clients.domain)}
    for split in SPLITS:
        parts[split] = torch.from_numpy(clients.sizes(split))
    for name, split in (("counts", "train"), ("test_counts", "test")):
        parts[name] = _sparse(clients, split, federation.data)
    return Payload(parts)


def _sparse(clients: Clients, split: str, data: Dataset) -> Payload:
    """Who has how many samples of which class, without zeros."""
    labels = data.y[torch.from_numpy(clients.rows[split])].numpy()
    per_sample = int(np.prod(labels.shape[1:]))
    owner = np.repeat(np.arange(len(clients)), per_sample * clients.sizes(split))
    classes = len(data.classes)
    cells, number = np.unique(owner * classes + labels.flatten(), return_counts=True)
    starts = np.searchsorted(cells, classes * np.arange(len(clients) + 1))
    return Payload(
        label=_narrow(cells % classes), number=_narrow(number), starts=torch.from_numpy(starts)
    )


def _narrow(values: np.ndarray) -> Tensor:
    """The values in as few bytes as they need."""
    for dtype in (np.uint8, np.int32):
        if values.max(initial=0) <= np.iinfo(dtype).max:
            return torch.from_numpy(values.astype(dtype))
    return torch.from_numpy(values)

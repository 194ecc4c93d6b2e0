"""Checksums of a federation, by which a run that is resumed knows its data again."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from .cache import content
from .clients import SPLITS, Client, Clients
from .described import checksum, many
from .federation import Federation


def fingerprint(federation: Federation) -> dict[str, str]:
    """Checksums of the samples, of their labels and of who has which of them.

    They depend on values only, not on how tensors lie in memory.
    """
    data = federation.data
    *samples, labels = data.tensors
    return {
        "samples": _joined(*map(content, samples), data.mean, data.std, data.vocabulary),
        "labels": _joined(content(labels), data.classes),
        "splits": _splits(federation),
    }


def _splits(federation: Federation) -> str:
    whole = sha256()
    clients: Sequence[Client] = federation.clients
    if isinstance(clients, Clients) and many(clients):
        whole.update(checksum(clients).encode())  # one by one they would take seconds
        clients = ()
    for client in (*clients, *federation.outside):
        whole.update(repr(client.domain).encode())
        for split in SPLITS:
            rows: np.ndarray = getattr(client, split)
            whole.update(f"{split} {len(rows)} ".encode())
            whole.update(rows.astype("<i8").tobytes())
    return whole.hexdigest()


def _joined(*facts: object) -> str:
    return sha256(repr(facts).encode()).hexdigest()

"""Checksums of a federation, by which a run that is resumed knows its data again."""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from .cache import content
from .federation import SPLITS, Federation


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
    for client in (*federation.clients, *federation.outside):
        whole.update(repr(client.domain).encode())
        for split in SPLITS:
            rows: np.ndarray = getattr(client, split)
            whole.update(f"{split} {len(rows)} ".encode())
            whole.update(rows.astype("<i8").tobytes())
    return whole.hexdigest()


def _joined(*facts: object) -> str:
    return sha256(repr(facts).encode()).hexdigest()

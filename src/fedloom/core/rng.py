"""Randomness as a value: every draw comes from a key of (seed, round, client, purpose).

No generator is shared or carried along, so results cannot depend on which worker runs a client, or
when.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def key(*parts: int | str) -> int:
    """A 63-bit integer that depends on every part and on their order; equal on every machine."""
    text = "\x1f".join(f"{type(p).__name__}:{p}".replace("\x1f", "\x1f\x1f") for p in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def torch_rng(*parts: int | str) -> torch.Generator:
    """A torch generator started from `key(*parts)`."""
    return torch.Generator().manual_seed(key(*parts))


def numpy_rng(*parts: int | str) -> np.random.Generator:
    """A NumPy generator started from `key(*parts)`."""
    return np.random.Generator(np.random.PCG64(key(*parts)))

"""Quicker ways through the same steps.

`dense` trains chains of linear layers without autograd's graph. `lowrank` keeps the gradients of
large linear layers as products. `stacked` trains small models of several clients side by side; only
the executor `vmap` uses it. Each gives the numbers of the plain way, up to rounding.

The environment variable `FEDLOOM_FAST` switches them off: `FEDLOOM_FAST=0` allows none of them,
`FEDLOOM_FAST=dense,stacked` only those two. Unset or 1, it allows all.
"""

from __future__ import annotations

import os

from ...core.errors import unknown
from ..worker import ClientWorker

NAMES = ("dense", "lowrank", "stacked")
LARGE = 1 << 18  # from this many numbers on, a weight is large: detours that spare it a pass pay


def pays_on(worker: ClientWorker) -> bool:
    """Whether `dense` and `lowrank` suit the worker: they are shortcuts for a CPU with fp32."""
    return worker.training.precision == "fp32" and not worker.device.accelerated


def allowed(name: str) -> bool:
    """Whether the fast way of that name may be used."""
    wanted = os.environ.get("FEDLOOM_FAST", "1")
    if wanted in ("0", "1"):
        return wanted == "1"
    names = [part.strip() for part in wanted.split(",")]
    for each in names:
        if each not in NAMES:
            raise unknown("fast way in FEDLOOM_FAST", each, NAMES)
    return name in names

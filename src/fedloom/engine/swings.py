"""A run whose accuracy jumps up and down says so: its step is probably too large."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

SWING = 0.3  # the fall of the mean accuracy between two evaluated rounds that is worth a warning
ENOUGH = 100  # test samples; with fewer, such a fall may be chance


def swings(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[float, int, int]]:
    """Every large fall: how much, and from which round to which."""
    falls = []
    for before, after in pairwise(metrics):
        high = (before.get("personal") or {}).get("accuracy_mean")
        low = (after.get("personal") or {}).get("accuracy_mean")
        if high is not None and low is not None and high - low >= SWING:
            falls.append((high - low, before["round"], after["round"]))
    return falls


def warn_of_swings(metrics: Sequence[Mapping[str, Any]], tests: int, lr: float) -> None:
    """Warn of the largest fall, if there is any and enough samples to believe it."""
    falls = swings(metrics)
    if not falls or tests < ENOUGH:
        return
    fall, start, end = max(falls)
    times = "once" if len(falls) == 1 else f"{len(falls)} times"
    warnings.warn(
        f"accuracy fell by 30 points or more between rounds {times}, by {100 * fall:.0f} points "
        f"from round {start} to round {end}: the step is too large, --set lr={lr / 5:g} may be "
        "steadier; so are more clients in a round.",
        stacklevel=2,
    )

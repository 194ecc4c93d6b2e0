"""Time to a target with devices like phones: a server that waits, over-selection, a buffer.

The devices' speeds and lines are log-normally distributed. The setting was fixed with a seed that
is not among those that are reported. What counts is simulated time, so the machine does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import fedloom

SEEDS = (0, 1, 2)
TARGET = 0.6  # of the test samples right, by the common model
WORLD = {
    "federation": "digits4",
    "partition": "dirichlet",
    "beta": 0.5,
    "clients": 40,
    "ratio": 0.25,
    "model": "cnn",
    "width": 8,
    "features": 32,
    "norm": True,
    "steps": 10,
    "batch": 20,
    "lr": 0.05,
}
PHONES = {
    "step_seconds": 0.1,
    "speed_spread": 1.2,
    "download_mbps": 20.0,
    "upload_mbps": 5.0,
    "line_spread": 0.8,
}
SERVERS: dict[str, dict[str, Any]] = {
    "waits": {"rounds": 120},
    "asks 30 % more": {"rounds": 120, "extra": 0.3},
    "has a buffer": {"rounds": 600, "mode": "async", "buffer": 2},
}


class Reached:
    """Stops a run at the target and notes when that was."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.moves = 0
        self.bytes = 0

    def after_round(self, engine: Any, record: dict[str, Any] | None) -> bool:
        """Whether the target is reached."""
        if record is None or record["common"]["accuracy_mean"] < TARGET:
            return False
        self.seconds, self.moves = record["simulated_seconds"], record["round"]
        self.bytes = sum(record["bytes_total"].values())
        return True


def measure(
    seeds: Sequence[int] = SEEDS,
    changes: dict[str, Any] | None = None,
    say: Callable[[str], object] | None = None,
) -> list[dict[str, Any]]:
    """Simulated seconds, moves of the server and traffic to the target, by seed and server."""
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        row: dict[str, Any] = {"seed": seed}
        for name, settings in SERVERS.items():
            reached = Reached()
            given = {**WORLD, **PHONES, **settings, **(changes or {}), "seed": seed}
            fedloom.run("fedavg", **given, callbacks=[reached])
            row[name] = {"s": reached.seconds, "moves": reached.moves, "mb": reached.bytes / 1e6}
            if say:
                say(f"seed {seed}, a server that {name}: {_told(row[name])}")
        row["ratio"] = None
        if row["waits"]["s"] and row["has a buffer"]["s"]:
            row["ratio"] = row["waits"]["s"] / row["has a buffer"]["s"]
        rows.append(row)
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    if say and len(ratios) == len(rows):
        mean = math.prod(ratios) ** (1 / len(ratios))
        say(f"waiting takes {mean:.2f} times as long as a buffer (geometric mean of the seeds)")
    return rows


def _told(figures: dict[str, Any]) -> str:
    """The figures of one run in words."""
    if figures["s"] is None:
        return f"never reaches {TARGET:.0%}"
    return f"{figures['s']:.1f} simulated seconds, {figures['moves']} moves, {figures['mb']:.1f} MB"

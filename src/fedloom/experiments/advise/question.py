"""What is asked of `fedloom advise`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.version import __version__
from .world import World


@dataclass(frozen=True)
class Question:
    """What is asked, beside the world that it is asked about.

    With `points` the clock has no part in the answer; without, they are found from `minutes` and
    from how quick this machine is. `command` are the options that name this world on the command
    line, if it was asked there.
    """

    world: World
    out: Path
    minutes: float = 20.0
    seed: int = 0
    rounds: int | None = None
    methods: tuple[str, ...] = ()
    command: str = ""
    points: int | None = None

    def deadline(self, start: float, share: float = 1.0) -> float:
        """When the clock ends a part of the work that may fill so much of the budget."""
        if self.points is not None:
            return math.inf
        return start + 60 * share * self.minutes

    def plain(self) -> dict[str, Any]:
        """What the answer depends on, as plain values."""
        budget: dict[str, Any] = {"minutes": self.minutes}
        if self.points is not None:
            budget = {"points": self.points}
        return {
            **budget,
            "seed": self.seed,
            "rounds": self.rounds,
            "methods": list(self.methods),
            "command": self.command,
            "world": self.world.fingerprint(self.seed),
            "fedloom": __version__,
        }

"""Who is asked in a round. A way of choosing is one file with `@SELECTIONS.register("NAME")`.

It is a function of the candidates, how many are wanted, and a generator whose key is the round's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...core.registry import Registry


@dataclass(frozen=True)
class Candidates:
    """The clients that can be asked, and what the server knows of each: an entry per client."""

    round: int
    who: np.ndarray
    sizes: np.ndarray  # numbers of training samples
    losses: np.ndarray  # the mean loss that it last reported; below 0: it never did
    heard: np.ndarray  # the round of that; 0: never
    seconds: np.ndarray | None = None  # how long it would take, if the run has a clock

    def among(self, clients: np.ndarray) -> Candidates:
        """The same, of these clients only."""
        kept = np.isin(self.who, clients)
        return Candidates(
            self.round,
            self.who[kept],
            self.sizes[kept],
            self.losses[kept],
            self.heard[kept],
            None if self.seconds is None else self.seconds[kept],
        )

    @property
    def unknown(self) -> np.ndarray:
        """Whether a client never reported a loss."""
        return np.asarray(self.heard == 0)


# (candidates, how many, generator) -> which of `candidates.who`
Selection = Callable[[Candidates, int, np.random.Generator], np.ndarray]
SELECTIONS: Registry[Selection] = Registry(
    "way of choosing clients", "fedloom.selections", __name__
)


def drawn(who: np.ndarray, weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """So many different clients, drawn one after another with chances in proportion to weights.

    Clients of weight 0 come in only when no others are left.
    """
    # The largest of log(u) / w are such a draw (Efraimidis and Spirakis); it needs no loop.
    with np.errstate(divide="ignore"):
        keys = np.log(rng.random(len(who))) / weights
    keys[weights <= 0] = -np.inf
    return np.asarray(who[np.argsort(-keys, kind="stable")[:n]])

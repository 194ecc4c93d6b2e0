"""Power of choice: of some clients drawn by size, those with the highest losses.

Cho, Wang, Joshi, "Towards understanding biased client selection in federated learning", AISTATS
2022. d = 2n clients are looked at. The loss is the one that a client reported when it last trained
(the paper's variant without an extra message); clients that never did come first.
"""

from __future__ import annotations

import numpy as np

from . import SELECTIONS, Candidates, drawn

LOOKED_AT = 2  # times as many as are wanted


@SELECTIONS.register("loss")
def by_loss(candidates: Candidates, n: int, rng: np.random.Generator) -> np.ndarray:
    """Of twice as many, drawn by size, those with the highest losses (power of choice)."""
    places = np.arange(len(candidates.who))
    seen = drawn(places, candidates.sizes.astype(float), LOOKED_AT * n, rng)
    losses = np.where(candidates.unknown, np.inf, candidates.losses)[seen]
    return np.asarray(candidates.who[seen[np.argsort(-losses, kind="stable")[:n]]])

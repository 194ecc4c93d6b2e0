"""Every client has the same chance."""

from __future__ import annotations

import numpy as np

from . import SELECTIONS, Candidates


@SELECTIONS.register("uniform")
def uniform(candidates: Candidates, n: int, rng: np.random.Generator) -> np.ndarray:
    """Everybody has the same chance."""
    return rng.choice(candidates.who, size=n, replace=False)

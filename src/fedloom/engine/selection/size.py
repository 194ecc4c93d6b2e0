"""The more samples a client has, the more often it is asked."""

from __future__ import annotations

import numpy as np

from . import SELECTIONS, Candidates, drawn


@SELECTIONS.register("size")
def by_size(candidates: Candidates, n: int, rng: np.random.Generator) -> np.ndarray:
    """Drawn with chances in proportion to numbers of samples."""
    return drawn(candidates.who, candidates.sizes.astype(float), n, rng)

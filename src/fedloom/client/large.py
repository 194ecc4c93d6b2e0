"""How many samples pass through a network at once where nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence

EVAL_BATCH = 512
# Large images are evaluated in smaller batches, or their feature maps would fill the memory.
EVAL_VALUES = 512 * 3 * 32 * 32


def eval_batch(shape: Sequence[int]) -> int:
    """How many samples of stored data of this shape are evaluated at once."""
    return max(16, min(EVAL_BATCH, EVAL_VALUES // max(1, math.prod(shape[1:]))))

"""How many samples pass through a network at once where nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from ..models.seen import Images

EVAL_BATCH = 512
# Large images are evaluated in smaller batches, or their feature maps would fill the memory.
EVAL_VALUES = 512 * 3 * 32 * 32


def eval_batch(shape: Sequence[int]) -> int:
    """How many samples of stored data of this shape are evaluated at once."""
    return max(16, min(EVAL_BATCH, EVAL_VALUES // max(1, math.prod(shape[1:]))))


def at_once(body: nn.Module, shape: Sequence[int]) -> int:
    """How many stored samples of this shape pass through a body at once.

    What counts is how large its network sees them, where it enlarges them.
    """
    sides = [m.preprocess.size for m in body.modules() if isinstance(m, Images)]
    return min(eval_batch(one) for one in (shape, *((1, 3, side, side) for side in sides)))

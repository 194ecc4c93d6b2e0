"""Samples must be finite: one NaN at one client would reach everybody's model."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.errors import FedloomError

AT_ONCE = 1 << 22  # numbers looked at together


def refuse_not_finite(x: object, where: str) -> None:
    """Refuse samples of which a number is not finite; the error names the first such row."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel():
        return
    rows = max(1, AT_ONCE * len(x) // x.numel())
    for start in range(0, len(x), rows):
        some = x[start : start + rows]
        # One pass without a copy: a sum is finite only if all of its numbers are.
        if math.isfinite(float(some.sum(dtype=torch.float64))):
            continue
        odd = ~torch.isfinite(some.flatten(1) if some.ndim > 1 else some[:, None]).all(1)
        if bool(odd.any()):
            row = start + int(odd.nonzero()[0])
            raise FedloomError(f"{where}: sample {row} holds a number that is not finite.")

"""Test parts for data that come without one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def mod10(n: int) -> Tensor:
    """Of `n` samples, counted from 0, those whose index ends in 8 or 9."""
    return torch.arange(n) % 10 > 7


def test_part(domain: Tensor, training: int | None) -> Tensor:
    """The samples after the first `training`; for data in one part (None), see `every_fifth`."""
    if training is None:
        return every_fifth(domain)
    return torch.arange(len(domain)) >= training


def every_fifth(domain: Tensor) -> Tensor:
    """Of each domain every fifth sample in stored order (the 5th, 10th, ...)."""
    test = np.zeros(len(domain), dtype=bool)
    for d in np.unique(domain.numpy()):
        test[np.flatnonzero(domain.numpy() == d)[4::5]] = True
    return torch.from_numpy(test)

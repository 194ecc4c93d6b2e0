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


def every_fifth_group(domain: Tensor, y: Tensor, group: Tensor) -> Tensor:
    """Of each domain every fifth group with all its samples, the last one if there are only few.

    A group counts for the domain and the label of its first sample. Groups of one label follow each
    other, so that each label gets its share of the test part.
    """
    numbers, first = np.unique(group.numpy(), return_index=True)
    homes, labels = domain.numpy()[first], y.numpy()[first]
    chosen: list[int] = []
    for d in np.unique(homes):
        here = np.flatnonzero(homes == d)
        here = here[np.lexsort((first[here], labels[here]))]
        if len(here) > 1:  # the only group of a domain has to be trained on
            chosen += numbers[here][min(4, len(here) - 1) :: 5].tolist()
    return torch.isin(group, torch.tensor(chosen, dtype=group.dtype))

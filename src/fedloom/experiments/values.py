"""Numbers out of summaries: one by its path, several as mean and spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any


def value_at(values: Mapping[str, Any], path: str) -> float | None:
    """The number at a path such as `personal.accuracy_mean.last`, or None."""
    value: Any = values
    for key in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def mean_and_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """The mean of the numbers that are there, and their standard deviation (ddof 1) if several."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None, None
    if len(numbers) == 1:
        return mean(numbers), None
    return mean(numbers), stdev(numbers)

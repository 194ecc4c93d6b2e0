"""How much better one method is than another, client by client, and how sure that is.

A pair is a client of one seed with its accuracy under both methods. Clients of one seed share a
split and a server, so it is the seeds that are independent: the interval is Student's, over the
mean differences of the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

Accuracies = Mapping[int, Sequence[float | None]]  # seed -> each client's accuracy
Pairs = dict[int, list[tuple[int, float, float]]]  # seed -> client, accuracies under both methods
LEVEL = 0.95  # of the interval


def oriented(values: Accuracies, higher: bool) -> Accuracies:
    """The values, or their negatives where less is better: more is always better then."""
    if higher:
        return values
    turned = {}
    for seed, clients in values.items():
        turned[seed] = [None if value is None else -value for value in clients]
    return turned


@dataclass(frozen=True)
class Gain:
    """The mean difference between two methods, with its interval; one seed gives no interval."""

    mean: float
    low: float | None
    high: float | None
    p: float | None  # two-sided
    seeds: int
    pairs: int
    clients: tuple[float | None, ...]  # each client's own gain, as a mean over seeds

    @property
    def won(self) -> bool:
        """Whether the first method is surely better."""
        return self.low is not None and self.low > 0

    @property
    def lost(self) -> bool:
        """Whether the first method is surely worse."""
        return self.high is not None and self.high < 0


def pairs_of(ours: Accuracies, theirs: Accuracies) -> Pairs:
    """By seed, the clients that have an accuracy under both methods."""
    pairs: Pairs = {}
    for seed in ours:
        if seed not in theirs or len(ours[seed]) != len(theirs[seed]):
            continue
        rows = []
        for client, (a, b) in enumerate(zip(ours[seed], theirs[seed], strict=True)):
            if a is not None and b is not None:
                rows.append((client, a, b))
        if rows:
            pairs[seed] = rows
    return pairs


def gain(ours: Accuracies, theirs: Accuracies) -> Gain | None:
    """How much is gained by going from `theirs` to `ours`; None if they share no client."""
    pairs = pairs_of(ours, theirs)
    if not pairs:
        return None
    by_client: dict[int, list[float]] = {}
    by_seed = []
    for rows in pairs.values():
        by_seed.append(float(np.mean([a - b for _, a, b in rows])))
        for client, a, b in rows:
            by_client.setdefault(client, []).append(a - b)
    mean = float(np.mean(by_seed))
    low, high, p = _interval(mean, by_seed, list(by_client.values()))
    size = max(map(len, ours.values()))
    clients: list[float | None] = [None] * size
    for client, gains in by_client.items():
        clients[client] = float(np.mean(gains))
    count = sum(map(len, pairs.values()))
    return Gain(mean, low, high, p, len(pairs), count, tuple(clients))


def _interval(
    mean: float, by_seed: Sequence[float], by_client: Sequence[Sequence[float]]
) -> tuple[float | None, float | None, float | None]:
    """Both ends of the interval round the mean, and p of no difference."""
    seeds = len(by_seed)
    if seeds < 2:
        return None, None, None
    by_seeds = float(np.std(by_seed, ddof=1)) / math.sqrt(seeds)
    # Few seeds may agree by chance: doubt is no smaller than if all pairs were independent. How
    # clients differ from each other is no error: they are who they are.
    by_pairs, freedom = _error_of_pairs(by_client)
    reach = max(_reach(by_seeds, seeds - 1), _reach(by_pairs, freedom))
    p = max(_p(mean, by_seeds, seeds - 1), _p(mean, by_pairs, freedom))
    return mean - reach, mean + reach, p


def _reach(error: float, freedom: int) -> float:
    """Half of Student's interval for a standard error with this many degrees of freedom."""
    if not error:
        return 0.0
    return error * float(stdtrit(freedom, (1 + LEVEL) / 2))


def _p(mean: float, error: float, freedom: int) -> float:
    """The two-sided p of Student's test that the mean is 0."""
    if error > 0:
        return 2 * float(stdtr(freedom, -abs(mean) / error))
    if mean:
        return 0.0
    return 1.0


def _error_of_pairs(by_client: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The standard error of the mean if a client's gains with different seeds are independent.

    With its degrees of freedom.
    """
    squares = 0.0
    freedom = 0
    count = 0
    for gains in by_client:
        squares += float(np.square(np.array(gains) - np.mean(gains)).sum())
        freedom += len(gains) - 1
        count += len(gains)
    if not freedom:
        return 0.0, 0
    return math.sqrt(squares / freedom / count), freedom

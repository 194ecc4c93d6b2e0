"""A figure of very many clients: its distribution in place of a list.

It takes some kilobytes, however many clients there are. What is kept are percentiles, the means of
the lowest and of the highest tenth, and for every domain the number of its clients with the sum and
the sum of squares of their values, from which mean and spread follow. Which client has which value
is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

# Above this many clients nobody lists them: lines of metrics hold the distribution of a figure.
MANY = 10_000
PERCENTILES = np.linspace(0, 1, 101)
DIGITS = 6  # of a percentile
Sums = tuple[int, float, float]  # clients, the sum of their values, the sum of squares
NONE = ""  # the name, in a distribution, of clients without a domain


@dataclass(frozen=True, eq=False)
class Coded(Sequence[str | None]):
    """The domain of each client, as its place among names; -1 is none."""

    places: np.ndarray
    names: tuple[str, ...]

    @staticmethod
    def of(domains: Sequence[str | None]) -> Coded:
        """The same domains, as places."""
        if isinstance(domains, Coded):
            return domains
        names = dict.fromkeys(name for name in domains if name is not None)
        place: dict[str | None, int] = {name: i for i, name in enumerate(names)}
        return Coded(np.array([place.get(name, -1) for name in domains], dtype=int), tuple(names))

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, k: int) -> str | None: ...
    @overload
    def __getitem__(self, k: slice) -> Coded: ...
    def __getitem__(self, k: int | slice) -> str | Coded | None:
        if isinstance(k, slice):
            return Coded(self.places[k], self.names)
        place = int(self.places[k])
        return None if place < 0 else self.names[place]

    def __iter__(self) -> Iterator[str | None]:
        for place in self.places.tolist():
            yield None if place < 0 else self.names[place]


@dataclass(frozen=True)
class Distribution:
    """How a figure is distributed over clients."""

    n: int  # clients that have a value
    quantiles: tuple[float, ...]  # at `PERCENTILES`
    lowest_tenth: float  # means
    highest_tenth: float
    domains: Mapping[str, Sums]

    @staticmethod
    def of(values: np.ndarray, domains: Sequence[str | None]) -> Distribution | None:
        """The distribution of one value per client; NaN is none. None if nobody has a value."""
        defined = ~np.isnan(values)
        ranked = np.sort(values[defined])
        if not len(ranked):
            return None
        tenth = max(1, math.ceil(len(ranked) * 0.1 - 1e-9))
        return Distribution(
            len(ranked),
            tuple(round(float(q), DIGITS) for q in np.quantile(ranked, PERCENTILES)),
            float(ranked[:tenth].mean()),
            float(ranked[-tenth:].mean()),
            _sums(values[defined], Coded.of(domains), defined),
        )

    def plain(self) -> dict[str, Any]:
        """As it stands in a line of metrics."""
        return {
            "n": self.n,
            "quantiles": list(self.quantiles),
            "lowest_tenth": self.lowest_tenth,
            "highest_tenth": self.highest_tenth,
            "domains": {name: list(sums) for name, sums in self.domains.items()},
        }

    @staticmethod
    def read(entry: object) -> Distribution | None:
        """The distribution in a line of metrics; None where there is a list, or nothing."""
        if not isinstance(entry, Mapping):
            return None
        domains = {name: (int(n), s, q) for name, (n, s, q) in entry["domains"].items()}
        tenths = entry["lowest_tenth"], entry["highest_tenth"]
        return Distribution(entry["n"], tuple(entry["quantiles"]), *tenths, domains)

    @cached_property
    def mean(self) -> float:
        """The mean over clients."""
        return sum(s for _, s, _ in self.domains.values()) / self.n

    @cached_property
    def std(self) -> float:
        """The spread over clients (ddof 0)."""
        squares = sum(q for _, _, q in self.domains.values()) / self.n
        return math.sqrt(max(0.0, squares - self.mean**2))

    @property
    def least(self) -> float:
        """The lowest value of a client."""
        return self.quantiles[0]

    @property
    def most(self) -> float:
        """The highest value of a client."""
        return self.quantiles[-1]


def _sums(values: np.ndarray, domains: Coded, defined: np.ndarray) -> dict[str, Sums]:
    """By domain, how many clients have a value, the sum of these and the sum of their squares."""
    places = domains.places[defined] + 1
    size = len(domains.names) + 1
    columns = (
        np.bincount(places, minlength=size).tolist(),
        np.bincount(places, values, size).tolist(),
        np.bincount(places, values**2, size).tolist(),
    )
    found = zip((NONE, *domains.names), *columns, strict=True)
    return {name: (n, s, q) for name, n, s, q in found if n}

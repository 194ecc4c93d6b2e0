"""Values of settings to try, and the choice among them: on validation data only."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from ..core.errors import FedloomError
from ..engine.config import Config, parse_set
from ..metrics.registry import Metric, headline
from ..metrics.summary import best_by_validation
from .plan import Cell
from .values import mean_and_std

Grid = dict[str, list[Any]]
Point = dict[str, Any]  # one value for each setting

_BEFORE_KEY = re.compile(r",(?=\s*[A-Za-z_][\w.+-]*\s*=)")


def parse_grid(items: Iterable[str], option: str = "--grid") -> Grid:
    """`["mu=0,0.1", "optimizer=sgd,adam"]` as keys and their values, each once.

    An item may have several keys: `lr=0.01,0.1,mu=0,1`.
    """
    grid: Grid = {}
    for item in items:
        for part in _separated(item):
            key, equals, text = part.partition("=")
            key = key.strip()
            if not equals or not key or not text.strip():
                raise FedloomError(f"{option} wants key=value,value,..., got {item!r}.")
            if key in grid:
                raise FedloomError(
                    f"{option} has {key!r} twice; give all of its values at once, separated by "
                    "commas."
                )
            grid[key] = distinct(_values(key, text))
    return grid


def _separated(item: str) -> list[str]:
    """The parts of `lr=0.01,0.1,mu=0,1`, one for each key; what is in brackets stays together."""
    parts = []
    start = 0
    for comma in _BEFORE_KEY.finditer(item):
        before = item[start : comma.start()]
        closed = before.count("[") == before.count("]") and before.count("{") == before.count("}")
        if closed and before.count('"') % 2 == 0:
            parts.append(before)
            start = comma.end()
    return [*parts, item[start:]]


def _values(key: str, text: str) -> list[Any]:
    try:
        values: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:  # bare words
        values = []
        for word in text.split(","):
            values.append(parse_set([f"{key}={word}"])[key])
    return values


def distinct(values: Iterable[Any]) -> list[Any]:
    """The values, each once; they may be lists, which have no hash."""
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept


def points(grid: Grid) -> list[Point]:
    """Every combination of values, the last key changing fastest."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def refuse_no_validation(config: Config, what: str) -> None:
    """Refuse to choose where nothing is held out to choose on."""
    if not config.validation:
        raise FedloomError(f"{what} chooses on validation data, and validation = 0 leaves none.")


def on_validation(cells: Sequence[Cell]) -> dict[str, Any]:
    """The headline metric of one point on validation data, over its runs, and those that failed.

    Each run counts with its best round.
    """
    values: list[float | None] = []
    failed = []
    for cell in cells:
        if cell.error:
            failed.append({"seed": cell.config.seed, "error": cell.error})
        if cell.run is None:
            continue
        best = best_by_validation(cell.run.metrics, headline(cell.config.schedule.metric))
        if best is not None:
            values.append(best["validation"]["personal"])
    mean, std = mean_and_std(values)
    return {"validation": mean, "validation_std": std, "failed": failed}


def best_row(rows: Sequence[Mapping[str, Any]], metric: Metric) -> Mapping[str, Any] | None:
    """The row of the point that is best on validation data; of equals, the first.

    A point that fails for some seed is out: its mean is over kinder seeds than the others'.
    """
    best: Mapping[str, Any] | None = None
    for row in rows:
        if row["validation"] is None or row["failed"]:
            continue
        if best is None or metric.better(row["validation"], best["validation"]):
            best = row
    return best

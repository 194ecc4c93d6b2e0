"""Which combinations of values are tried, if a budget does not suffice for all of them."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, Protocol

from ..core.errors import FedloomError
from ..core.rng import key, numpy_rng
from .choice import Grid, Point, points

SEARCHES = ("grid", "random", "tpe")
PATIENCE = 20  # suggestions in a row that were tried before, until TPE is not asked any more
STARTS = 10  # points that TPE draws at random at first, at most; a third of a smaller budget


class Search(Protocol):
    """Says what to try next, and hears how good it was."""

    def ask(self) -> list[Point]:
        """The points to try next, no point twice; none when the search is over."""

    def tell(self, point: Point, value: float | None) -> None:
        """How good a point is on validation data; None if its run failed."""


def size(grid: Grid) -> int:
    """The number of combinations."""
    return prod(map(len, grid.values()))


def search(how: str, grid: Grid, trials: int, seed: int, higher: bool) -> Search:
    """The search for `trials` points; where that is all of them, every search tries them all.

    `higher` says whether a higher value is better.
    """
    if size(grid) <= trials:
        return Listed(points(grid))
    if how == "random":
        return Listed(drawn(grid, trials, seed))
    if how == "tpe":
        return Tpe(grid, trials, seed, higher)
    raise FedloomError(
        f"a grid of {size(grid)} combinations needs as many trials, not {trials}: allow more, or "
        "draw some of them with --search random or tpe."
    )


def drawn(grid: Grid, trials: int, seed: int) -> list[Point]:
    """Different points at random; grids with the same values have the same draws."""
    every = points(grid)
    chosen = numpy_rng(seed, "tune").choice(len(every), size=trials, replace=False)
    return [every[i] for i in chosen]


class Listed:
    """Points that are known from the start."""

    def __init__(self, listed: list[Point]) -> None:
        self._left = listed

    def ask(self) -> list[Point]:
        """All points at once."""
        asked, self._left = self._left, []
        return asked

    def tell(self, point: Point, value: float | None) -> None:
        """Nothing depends on it."""


class Tpe:
    """Optuna's tree-structured Parzen estimator: one point after another, each from all before.

    Optuna sees the places of values in their lists, in order where the values are.
    """

    def __init__(self, grid: Grid, trials: int, seed: int, higher: bool) -> None:
        self._optuna = _optuna()
        self._grid = grid
        self._trials = trials
        self._tried: dict[tuple[int, ...], float | None] = {}
        self._asked: Any = None
        self._kinds = {name: self._kind(values) for name, values in grid.items()}
        sampler = self._optuna.samplers.TPESampler(
            seed=key(seed, "tune") % 2**32, n_startup_trials=max(1, min(STARTS, trials // 3))
        )
        direction = "minimize"
        if higher:
            direction = "maximize"
        said = self._optuna.logging.get_verbosity()
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)  # it announces the study
        self._study = self._optuna.create_study(sampler=sampler, direction=direction)
        self._optuna.logging.set_verbosity(said)

    def _kind(self, values: list[Any]) -> Any:
        """What Optuna is told about a setting: rising numbers have neighbours, names do not."""
        last = len(values) - 1
        numbers = all(isinstance(value, int | float) for value in values)
        if numbers and values == sorted(values):
            return self._optuna.distributions.IntDistribution(0, last)
        return self._optuna.distributions.CategoricalDistribution(range(last + 1))

    def ask(self) -> list[Point]:
        """The next point."""
        if len(self._tried) == self._trials:
            return []
        for _ in range(PATIENCE):
            place = self._suggested()
            if place not in self._tried:
                return [self._at(place)]
            self._answer(self._tried[place])
        ranges = [range(len(values)) for values in self._grid.values()]
        new = next(place for place in product(*ranges) if place not in self._tried)
        self._study.enqueue_trial(dict(zip(self._grid, new, strict=True)))
        return [self._at(self._suggested())]

    def tell(self, point: Point, value: float | None) -> None:
        """The value of the point that was asked for last."""
        place = tuple(self._grid[name].index(each) for name, each in point.items())
        self._tried[place] = value
        self._answer(value)

    def _suggested(self) -> tuple[int, ...]:
        self._asked = self._study.ask(self._kinds)
        return tuple(self._asked.params[name] for name in self._grid)

    def _answer(self, value: float | None) -> None:
        if value is None:
            self._study.tell(self._asked, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(self._asked, value)

    def _at(self, place: tuple[int, ...]) -> Point:
        point = {}
        for (name, values), i in zip(self._grid.items(), place, strict=True):
            point[name] = values[i]
        return point


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise FedloomError(
            "--search tpe needs Optuna, which is not installed; `pip install 'fedloom[tune]'` "
            "brings it."
        ) from None
    return optuna

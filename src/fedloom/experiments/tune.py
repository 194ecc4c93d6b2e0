"""Settings for every method of a comparison, each found with the same budget on validation data.

A trial is a run with one combination of values. Trials have seeds that the comparison does not
have: a chosen run was lucky, and its luck must not count in the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import FedloomError, unknown
from ..data.federation import Federation
from ..engine.config import Config, build, places
from ..engine.owners import owners
from ..metrics.registry import headline
from .choice import Grid, Point, best_row, distinct, on_validation, refuse_no_validation
from .plan import (
    Cell,
    Dealer,
    Display,
    Logs,
    Place,
    carry_out,
    changes_for,
    name_of,
    owner_of,
)
from .search import SEARCHES, Search, search, size

TUNABLE = ("training", "hyper", "network")
FIRST_SEED = 1000  # of the trials; far from those that people compare with
TRIALS = 10  # of a search that does not try everything, where the user names no budget


@dataclass(frozen=True)
class Tuning:
    """What the user asks for: the values to try, how to search, and the runs for each method.

    A setting with a method's name in front is tuned for that method only. Without `trials`, a grid
    gets as many as its largest number of combinations.
    """

    values: Mapping[str, Sequence[Any]]
    search: str = "grid"
    trials: int | None = None

    def __post_init__(self) -> None:
        if self.search not in SEARCHES:
            raise unknown("search", self.search, SEARCHES)
        if self.trials is not None and self.trials < 1:
            raise FedloomError(f"a method needs at least one trial, not {self.trials}.")
        for key, values in self.values.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise FedloomError(f"the values of {key!r} to tune are a list, not {values!r}.")


@dataclass
class Subject:
    """A method while it is tuned: the values of its own settings, and what was tried."""

    method: str
    grid: Grid
    keys: dict[str, str]  # where a config has each setting
    seeds: list[int]
    search: Search
    trials: list[tuple[Point, Cell]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The method's name in tables."""
        return name_of(self.method)

    def rows(self) -> list[dict[str, Any]]:
        """What was tried, each point with its figures over the seeds."""
        rows = []
        for point in distinct(point for point, _ in self.trials):
            cells = [cell for tried, cell in self.trials if tried == point]
            rows.append({"values": point, **on_validation(cells)})
        return rows

    def best(self) -> Mapping[str, Any] | None:
        """The row that validation data choose; None if nothing was tried or every trial failed."""
        if not self.trials:
            return None
        _, cell = self.trials[0]
        return best_row(self.rows(), headline(cell.config.schedule.metric))

    def record(self) -> dict[str, Any]:
        """What was tried and chosen, as plain values."""
        best: Mapping[str, Any] = self.best() or {}
        runs = []
        for point, cell in self.trials:
            run = {"seed": cell.config.seed, "folder": cell.folder.name, "status": cell.status}
            runs.append({"values": point, **run})
        return {
            "method": self.name,
            "settings": list(self.grid),
            "combinations": size(self.grid),
            "trials": len(self.trials),
            "seeds": self.seeds,
            "chosen": best.get("values"),
            "validation": best.get("validation"),
            "validation_std": best.get("validation_std"),
            "rows": self.rows(),
            "runs": runs,
        }


class Tuner:
    """Tunes the methods of a comparison; it refuses what cannot work before anything is computed.

    `seeds` are the comparison's, `given` and `changes` what its configs are made of.
    """

    def __init__(
        self,
        tuning: Tuning,
        methods: Sequence[str],
        seeds: Sequence[int],
        given: Mapping[str, Any],
        changes: Mapping[str, Any],
    ) -> None:
        self.tuning = tuning
        self._methods = list(dict.fromkeys(methods))
        self._names = list(map(name_of, self._methods))
        self._taken = set(seeds)
        self._first_seed = seeds[0]
        self._given = dict(given)
        self._changes = {
            method: changes_for(method, self._methods, changes) for method in self._methods
        }
        self._settings: dict[str, dict[str, str]] = {}  # by method, where a config has each
        self._grids: dict[str, Grid] = {}
        for method in self._methods:
            self._settings[method], self._grids[method] = self._own(method)
        self._refuse_nobodys()
        self.trials = self._budget()
        self.subjects = list(map(self._subject, self._methods))
        self._refuse_wrong_values()
        refuse_no_validation(self._config(self._methods[0], seeds[0], {}), "--tune")

    def _own(self, method: str) -> tuple[dict[str, str], Grid]:
        """The settings that a method has of those to tune, and their values.

        One for this method alone comes before one for all.
        """
        fixed = set()
        for key in self._changes[method]:
            fixed.update(self._places(method, key))
        keys: dict[str, str] = {}
        grid: Grid = {}
        mine = sorted(self.tuning.values, key=lambda key: owner_of(key, self._names)[0] is not None)
        for key in mine:
            owner, name = owner_of(key, self._names)
            if owner not in (None, name_of(method)):
                continue
            place = self._place(method, key, name)
            if place is None:
                continue
            if place in fixed:
                raise FedloomError(f"{key!r} is tuned and has a fixed value as well.")
            for other in [name for name, there in keys.items() if there == place]:
                del keys[other], grid[other]
            keys[name] = place
            grid[name] = distinct(self.tuning.values[key])
        return keys, grid

    def _place(self, method: str, key: str, name: str) -> str | None:
        """Where a method's config has a setting; None if the method does not have it."""
        found = []
        for place in self._places(method, name):
            if place.partition(".")[0] in TUNABLE:
                found.append(place)
        if len(found) > 1:
            raise FedloomError(f"{key!r} could be any of {', '.join(found)}: say which.")
        if found:
            return found[0]
        return None

    def _places(self, method: str, key: str) -> list[str]:
        return places(key, {**self._given, "method": method}, self._changes[method])

    def _refuse_nobodys(self) -> None:
        """Refuse a setting that no method has, and name the nearest that one has."""
        if not self.tuning.values:
            raise FedloomError("there is nothing to tune: give a setting and its values.")
        for key in self.tuning.values:
            owner, name = owner_of(key, self._names)
            wanted = [m for m in self._methods if owner in (None, name_of(m))]
            if any(name in self._grids[method] for method in wanted):
                continue
            if any(self._places(method, name) for method in wanted):
                raise FedloomError(
                    f"{key!r} cannot be tuned: it is the same for all methods; settings of local "
                    "training, of a method and of the model can be."
                )
            others = owners(name.rpartition(".")[2])
            if others and owner is None:
                raise FedloomError(
                    f"{key!r} is a setting of none of the methods compared; it belongs to "
                    f"{', '.join(others)}."
                )
            raise unknown("setting to tune", key, self._tunable(wanted))

    def _tunable(self, methods: Sequence[str]) -> set[str]:
        """The names of everything that can be tuned for some of these methods."""
        names: set[str] = set()
        for method in methods:
            config = self._config(method, self._first_seed, {})
            for section in TUNABLE:
                names.update(dict(getattr(config, section)))
        return names

    def _budget(self) -> int:
        if self.tuning.trials is not None:
            return self.tuning.trials
        if self.tuning.search == "grid":
            return max(map(size, self._grids.values()))
        return TRIALS

    def _subject(self, method: str) -> Subject:
        """A method with its budget.

        What it has more than combinations it spends on further seeds, with all of them or none.
        """
        grid = self._grids[method]
        repeats = 0
        if grid:
            repeats = max(1, self.trials // size(grid))
        free = (seed for seed in count(FIRST_SEED) if seed not in self._taken)
        metric = headline(self._config(method, self._first_seed, {}).schedule.metric)
        points = search(self.tuning.search, grid, self.trials, FIRST_SEED, metric.higher)
        return Subject(method, grid, self._settings[method], list(islice(free, repeats)), points)

    def _refuse_wrong_values(self) -> None:
        for subject in self.subjects:
            for name, values in subject.grid.items():
                for value in values:
                    self._config(subject.method, self._first_seed, {name: value})

    def _config(self, method: str, seed: int, point: Point) -> Config:
        keys = self._settings[method]
        values = {keys[name]: value for name, value in point.items()}
        given = {**self._given, "method": method, "seed": seed}
        return build(given, {**self._changes[method], **values})

    @property
    def _runs(self) -> int:
        """The number of all trials."""
        return sum(map(self._runs_of, self.subjects))

    def _runs_of(self, subject: Subject) -> int:
        return min(size(subject.grid), self.trials) * len(subject.seeds)

    @property
    def rounds(self) -> int:
        """The rounds of all trials."""
        rounds = 0
        for subject in self.subjects:
            config = self._config(subject.method, self._first_seed, {})
            rounds += self._runs_of(subject) * config.schedule.rounds
        return rounds

    def run(
        self, out: Path, watch: Display, dealer: Dealer, logs: Logs | None = None
    ) -> dict[str, Any]:
        """Carry out what is missing of the trials; return what was tried and chosen."""
        self._refuse_data(dealer)
        watch.note(
            f"tuning {', '.join(self.tuning.values)}: {self._runs} runs, {self.trials} for each "
            "method"
        )
        while asked := self._asked():
            self._carry_out(asked, out, watch, dealer, logs)
        return self._record()

    def _asked(self) -> list[tuple[Subject, Point, int]]:
        """What to run next, seed by seed, so that data are dealt out once for each."""
        asked = []
        for subject in self.subjects:
            if not subject.seeds:
                continue
            for point in subject.search.ask():
                asked += [(subject, point, seed) for seed in subject.seeds]
        return sorted(asked, key=lambda trial: trial[2])

    def _carry_out(
        self,
        asked: Sequence[tuple[Subject, Point, int]],
        out: Path,
        watch: Display,
        dealer: Dealer,
        logs: Logs | None,
    ) -> None:
        """Run these trials, and tell the searches."""
        configs = []
        labels = []
        for subject, point, seed in asked:
            configs.append(self._config(subject.method, seed, point))
            values = " ".join(f"{name}={value}" for name, value in point.items())
            labels.append(f"tuning {subject.name} {values}")
        place = self._place_of_next()
        cells = carry_out(configs, out, watch, dealer, logs, labels, report=False, place=place)
        for (subject, point, _), cell in zip(asked, cells, strict=True):
            subject.trials.append((point, cell))
        for subject in self.subjects:
            for point in distinct(point for other, point, _ in asked if other is subject):
                row = next(row for row in subject.rows() if row["values"] == point)
                value = row["validation"]
                if row["failed"]:
                    value = None
                subject.search.tell(point, value)

    def _place_of_next(self) -> Place:
        """Where the next trials stand among all."""
        rounds = []
        for subject in self.subjects:
            rounds += [cell.config.schedule.rounds for _, cell in subject.trials]
        return Place(len(rounds), self._runs, sum(rounds))

    def _refuse_data(self, dealer: Dealer) -> None:
        """Refuse a federation on which nothing can be chosen, or not without a look at test data.

        A test part that is drawn anew for every seed shares samples with the trials' training part.
        """
        subject = next(subject for subject in self.subjects if subject.seeds)
        compared = dealer(self._config(subject.method, self._first_seed, {}))
        tried = dealer(self._config(subject.method, subject.seeds[0], {}))
        if not any(len(client.validation) for client in tried.clients):
            raise FedloomError(
                "--tune chooses on validation data, and no client of this federation has any."
            )
        seen = np.union1d(_samples(tried, "train"), _samples(tried, "validation"))
        if np.intersect1d(seen, _samples(compared, "test")).size:
            raise FedloomError(
                "--tune would train on samples that the comparison tests on, because every seed "
                "has a test part of its own (split = merged): it needs data whose test part stays "
                "apart (split = official)."
            )

    def _record(self) -> dict[str, Any]:
        config = self._config(self._methods[0], self._first_seed, {})
        seeds: set[int] = set()
        for subject in self.subjects:
            seeds.update(subject.seeds)
        return {
            "values": {key: distinct(values) for key, values in self.tuning.values.items()},
            "search": self.tuning.search,
            "trials": self.trials,
            "seeds": sorted(seeds),
            "metric": config.schedule.metric,
            "rounds": config.schedule.rounds,
            "methods": [subject.record() for subject in self.subjects],
        }

    def chosen(self, configs: Sequence[Config]) -> list[Config]:
        """The configs of the comparison, each with what its method got."""
        best: dict[str, Point] = {}
        for subject in self.subjects:
            best[subject.name] = (subject.best() or {}).get("values", {})
        tuned = []
        for config in configs:
            values = best[name_of(config.method)]
            tuned.append(self._config(config.method, config.seed, values))
        return tuned


def _samples(federation: Federation, split: str) -> np.ndarray:
    """The numbers of all samples that clients have in a split."""
    return np.concatenate([getattr(client, split) for client in federation.clients])

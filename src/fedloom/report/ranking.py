"""Who is best in which column, and whether that can be trusted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ..metrics.gains import Accuracies
from ..metrics.registry import Metric
from .columns import Column, cell, columns_for, headline_key
from .entries import ALONE, Entry, RunData, domain_names
from .figures import Value
from .statistics import ALPHA, level, paired_tests
from .twins import twins


class Ranking:
    """Every method's mean and std in every column, with marks for the best."""

    def __init__(
        self,
        entries: Sequence[Entry],
        runs: Sequence[RunData],
        metric: Metric,
        against: str = ALONE,
    ) -> None:
        self.entries = entries
        self.metric = metric
        self.against = against
        self.headline = headline_key(self.metric)
        self.gain = f"gain_over_{against}"
        self.better_off = f"better_than_{against}"
        self.columns_by_key = {column.key: column for column in columns_for(metric, against)}
        self._runs = runs
        self.twins = twins(entries, runs)  # of local: they win nothing
        self._cells: dict[str, dict[int, tuple[Value, Value]]] = {}

    @cached_property
    def results(self) -> dict[str, Accuracies]:
        """Each client's headline by the method's name and by seed.

        Two federations with the same seed are told apart: their clients are not the same.
        """
        places: dict[tuple[str, str], int] = {}
        results: dict[str, Accuracies] = {}
        for entry in self.entries:
            by_seed: dict[int, list[Value]] = {}
            for run in entry.shown:
                federation = (str(run.seed), json.dumps(run.federation, sort_keys=True))
                place = places.setdefault(federation, len(places))
                by_seed[place] = run.judged
            if by_seed:
                results[entry.name] = by_seed
        return results

    @cached_property
    def tests(self) -> list[dict[str, Any]]:
        """Every two methods against each other in the headline metric, by the methods' names."""
        return paired_tests(self.results, self.metric.name)

    def values(self, key: str) -> dict[int, tuple[Value, Value]]:
        """Mean and std over seeds of a column, by the number of the method."""
        if key not in self._cells:
            column = self.columns_by_key[key]
            cells = {}
            for entry in self.entries:
                cells[entry.number] = cell(entry, column, self._runs)
            self._cells[key] = cells
        return self._cells[key]

    def means(self, key: str) -> dict[int, float]:
        """The means of a column, of the methods that have one."""
        means = {}
        for series, (mean, _) in self.values(key).items():
            if mean is not None:
                means[series] = mean
        return means

    def columns(self) -> list[Column]:
        """The columns that at least one method fills; averages over domains need two of them."""
        one_domain = len(domain_names(self.entries)) < 2
        filled = []
        for column in self.columns_by_key.values():
            by_domain = column.key.startswith(("domain", "sigma_type"))
            if self.means(column.key) and not (one_domain and by_domain):
                filled.append(column)
        return filled

    def order(self) -> list[Entry]:
        """The methods by the headline metric, the best first, those without a value last."""
        order = self.ranked(self.headline)
        measured = self.means(self.headline)
        for entry in self.entries:
            if entry.number not in measured:
                order.append(entry)
        return order

    def ranked(self, key: str) -> list[Entry]:
        """The methods with a value in a column, the best first."""
        means = self.means(key)
        measured = [entry for entry in self.entries if entry.number in means]
        higher = self.columns_by_key[key].higher is not False
        return sorted(measured, key=lambda entry: means[entry.number], reverse=higher)

    def competing(self, key: str) -> list[Entry]:
        """The same without the methods that come down to training alone."""
        return [entry for entry in self.ranked(key) if entry not in self.twins]

    def leaders(self, key: str) -> list[Entry]:
        """The best method in a column, then those whose gap to it prints as zero."""
        ranked = self.competing(key)
        means = self.means(key)
        show = self.columns_by_key[key].show
        leaders = []
        for entry in ranked:
            gap = abs(means[entry.number] - means[ranked[0].number])
            if show(gap) == show(0.0):
                leaders.append(entry)
        return leaders

    def seed_sets(self) -> set[tuple[str, ...]]:
        """The sets of seeds that the methods ran with."""
        sets = set()
        for entry in self.entries:
            if entry.shown:
                sets.add(tuple(sorted(map(str, entry.seeds))))
        return sets

    def marks(self, column: Column) -> dict[int, str]:
        """Which methods are marked as `best`, or as a `tie` with the best.

        A single seed may have been lucky, and means over different seeds cannot be compared: then
        nothing is marked. Nor is the smallest loss where nobody gains.
        """
        means = self.means(column.key)
        seeds = self.seed_sets()
        if column.higher is None or len(means) < 2 or len(seeds) != 1 or len(min(seeds)) < 2:
            return {}
        if column.group == "Cost":  # a method that sends nothing does not compete
            competing = {series: mean for series, mean in means.items() if mean > 0}
            means = competing or means
        top = min(means.values())
        if column.higher:
            top = max(means.values())
        if column.key == self.gain and (top <= 0 or level(top, self.metric)):
            return {}
        # Methods that look equal at the printed precision share the mark; if all do, none has it.
        best = set()
        for series, mean in means.items():
            if column.show(mean) == column.show(top):
                best.add(series)
        if len(best) == len(means):
            return {}
        marks = dict.fromkeys(best, "best")
        if column.key == self.headline:
            for series in self._ties(best):
                marks.setdefault(series, "tie")
        return marks

    def _ties(self, best: set[int]) -> set[int]:
        """Methods that no test tells apart from one of the best."""
        numbers = {entry.name: entry.number for entry in self.entries}
        ties: set[int] = set()
        for test in self.tests:
            pair = {numbers[test["a"]], numbers[test["b"]]}
            if test["p_holm"] is not None and test["p_holm"] >= ALPHA and pair & best:
                ties |= pair
        return ties

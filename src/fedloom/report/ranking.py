"""Who is best in which column, and whether that can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .columns import COLUMNS, Column, cell
from .entries import Entry, RunData, domain_names
from .figures import Value

SIGNIFICANT = 0.05


class Ranking:
    """Every method's mean and std in every column, with marks for the best."""

    def __init__(
        self, entries: Sequence[Entry], runs: Sequence[RunData], board: Mapping[str, Any]
    ) -> None:
        self.entries = entries
        self._runs = runs
        self.tests: list[Mapping[str, Any]] = []
        for test in board.get("tests") or []:
            if isinstance(test, Mapping):
                self.tests.append(test)
        self._cells: dict[str, dict[int, tuple[Value, Value]]] = {}

    def values(self, key: str) -> dict[int, tuple[Value, Value]]:
        """Mean and std over seeds of a column, by the number of the method."""
        if key not in self._cells:
            column = next(c for c in COLUMNS if c.key == key)
            cells = {e.number: cell(e, column, self._runs) for e in self.entries}
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
        for column in COLUMNS:
            by_domain = column.key.startswith(("domain", "sigma_type"))
            if self.means(column.key) and not (one_domain and by_domain):
                filled.append(column)
        return filled

    def order(self) -> list[Entry]:
        """The methods by personal accuracy, the best first, those without one last."""
        means = self.means("personal")
        return sorted(self.entries, key=lambda e: means.get(e.number, -1.0), reverse=True)

    def top(
        self, key: str, *, lowest: bool = False, among: Sequence[Entry] | None = None
    ) -> Entry | None:
        """The method with the highest, or the lowest, mean in a column."""
        means = self.means(key)
        candidates = [e for e in among or self.entries if e.number in means]
        if not candidates:
            return None
        pick = min if lowest else max
        return pick(candidates, key=lambda e: means[e.number])

    def seed_sets(self) -> set[tuple[str, ...]]:
        """The sets of seeds that the methods ran with."""
        return {tuple(sorted(map(str, e.seeds))) for e in self.entries if e.shown}

    def marks(self, column: Column) -> dict[int, str]:
        """Which methods are marked as `best`, or as a `tie` with the best.

        A single seed may have been lucky, and means over different seeds cannot be compared: then
        nothing is marked.
        """
        means = self.means(column.key)
        seeds = self.seed_sets()
        if column.higher is None or len(means) < 2 or len(seeds) != 1 or len(min(seeds)) < 2:
            return {}
        if column.group == "Cost":  # a method that sends nothing does not compete
            means = {series: mean for series, mean in means.items() if mean > 0} or means
        pick = max if column.higher else min
        top = column.show(pick(means.values()))
        # Methods that look equal at the printed precision share the mark; if all do, none has it.
        best = {series for series, mean in means.items() if column.show(mean) == top}
        if len(best) == len(means):
            return {}
        marks = dict.fromkeys(best, "best")
        if column.key == "personal":
            for series in self._ties(best):
                marks.setdefault(series, "tie")
        return marks

    def _ties(self, best: set[int]) -> set[int]:
        """Methods that no test tells apart from one of the best."""
        numbers = {e.method: e.number for e in self.entries}
        ties: set[int] = set()
        for test in self.tests:
            a, b = numbers.get(test.get("a", "")), numbers.get(test.get("b", ""))
            chance = test.get("p_holm", test.get("p"))
            if a is None or b is None or not isinstance(chance, int | float):
                continue
            if chance >= SIGNIFICANT and {a, b} & best:
                ties |= {a, b}
        return ties

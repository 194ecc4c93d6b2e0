"""The figures of the papers, drawn from our own runs.

A recipe names the kind of a figure and gives its options:

    [[drawings]]
    kind = "by-round"
    measure = "domain_avg"

Each kind is a function of a `Table` and those options. It returns a `Picture`, which can be had in
any format, or None if there is nothing to show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...core.registry import Registry
from ...data.federation import Federation
from ...engine.folder import Run
from ..entries import Entry, RunData
from ..feature_plots.opened import Opened, opened
from ..figures import Figure
from ..panels import Panels, save

Block = Mapping[str, Any]  # settings of one name, as a table shows them: rows by columns
Picture = Callable[[str], bytes]  # a format (svg, pdf or png) -> the file
Drawing = Callable[..., Picture | None]
DRAWINGS: Registry[Drawing] = Registry("kind of figure", "fedloom.drawings", __name__)


@dataclass(frozen=True)
class Runs:
    """The finished runs of one setting, by row."""

    setting: str
    who: str  # "common" or "personal": whose figures the table shows
    rows: Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Table:
    """What figures are drawn from: a table's numbers, and the runs behind them."""

    name: str
    title: str
    blocks: Sequence[Block]
    runs: Sequence[Runs]
    device: str = "cpu"  # where models are asked
    federations: dict[str, Federation] = field(default_factory=dict)  # data that runs share

    def chosen(self, settings: Sequence[str] | None) -> list[Runs]:
        """The settings that have runs: those named, in this order, or all."""
        found = []
        for name in settings or [runs.setting for runs in self.runs]:
            for runs in self.runs:
                if runs.setting == name and any(runs.rows.values()):
                    found.append(runs)
        return found

    def series(self, row: str) -> int:
        """The number of a row, which gives it the same colour in all panels."""
        rows: dict[str, None] = {}
        for runs in self.runs:
            rows |= dict.fromkeys(runs.rows)
        for block in self.blocks:
            rows |= dict.fromkeys(row["row"] for row in block["rows"])
        return list(rows).index(row)

    def opened(self, row: str, run: Run) -> Opened:
        """A run of a row whose models can be asked."""
        entry = Entry(0, row, run.config.method, [RunData.of(run)])
        return opened(entry, run, self.federations, self.device)

    def picture(self, figures: Sequence[tuple[str, Figure]], across: int = 2) -> Picture | None:
        """Figures with headings as one picture; None without any figure."""
        if not figures:
            return None
        return partial(save, Panels(self.title, figures, across))


def draw(kind: str, table: Table, options: Mapping[str, Any]) -> Picture | None:
    """A figure of this kind."""
    return DRAWINGS.find(kind)(table, **options)


def mean_of(row: Mapping[str, Any], column: int) -> float | None:
    """Our figure in a row and a column, or None."""
    if not row["ours"]:
        return None
    mean: float | None = row["ours"][column]["mean"]
    return mean


def lettered(names: Sequence[str]) -> list[str]:
    """Headings of panels: `(a) first`, `(b) second`; a single panel needs no letter."""
    if len(names) == 1:
        return list(names)
    return [f"({chr(ord('a') + i)}) {name}" for i, name in enumerate(names)]

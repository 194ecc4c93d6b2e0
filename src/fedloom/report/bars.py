"""Bars in groups: one group for each name, in it a bar for each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .columns import Show, text
from .entries import Entry, RunData, mean_std, present
from .figures import Axis, Chart, Mark, Value

Cells = Mapping[int, Sequence[tuple[Value, Value]]]  # by method: mean and std of each group


@dataclass(frozen=True)
class Scale:
    """The vertical axis: its label, the factor from values to it, and how tips show a value.

    `ends` is what values on the axis can be.
    """

    label: str
    factor: float
    show: Show
    ends: tuple[float, float] | None = None


def cells_of(
    entries: Sequence[Entry], names: Sequence[str], get: Callable[[RunData, str], Value]
) -> dict[int, list[tuple[Value, Value]]]:
    """Mean and std over seeds of what `get` reads from a run under each name."""
    cells: dict[int, list[tuple[Value, Value]]] = {}
    for entry in entries:
        row = []
        for name in names:
            row.append(mean_std(get(run, name) for run in entry.shown))
        cells[entry.number] = row
    return cells


def filled(entries: Sequence[Entry], cells: Cells) -> list[Entry]:
    """The methods that have at least one value."""
    some = []
    for entry in entries:
        means = [mean for mean, _ in cells[entry.number]]
        if present(means):
            some.append(entry)
    return some


def bars(
    heading: str, names: Sequence[str], entries: Sequence[Entry], cells: Cells, scale: Scale
) -> Chart:
    """The chart; whiskers are the std over seeds."""
    wide = 0.84 / len(entries)
    marks = []
    for place, entry in enumerate(entries):
        shift = (place - (len(entries) - 1) / 2) * wide
        x: list[float] = []
        y: list[float] = []
        errors: list[Value] = []
        tips: list[str] = []
        for j, (value, std) in enumerate(cells[entry.number]):
            if value is None:
                continue
            x.append(j + shift)
            y.append(scale.factor * value)
            error = None
            if std is not None:
                error = scale.factor * std
            errors.append(error)
            tips.append(f"{entry.name}, {names[j]}: {text(value, std, scale.show)}")
        mark = Mark("bars", x, y, entry.number, entry.name, dy=errors, tips=tips, size=wide)
        marks.append(replace(mark, ends=scale.ends))
    ticks = [(float(j), name) for j, name in enumerate(names)]
    across = Axis(ticks=ticks, ends=(-0.5, len(names) - 0.5))
    return Chart(heading, marks, across, Axis(scale.label, zero=True), width=1080, height=320)

"""Lines: by round, along the settings or the columns of a table, and along the rows of a sweep."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ...metrics.registry import DEFAULT, headline
from ..columns import columns_for
from ..figures import PERCENT, Axis, Chart, Mark, Value
from . import DRAWINGS, Block, Picture, Runs, Table, lettered, mean_of

Point = tuple[float, float, Value]  # where it stands, its mean and its std, both in percent


@DRAWINGS.register("by-round")
def by_round(
    table: Table, *, measure: str, settings: Sequence[str] | None = None
) -> Picture | None:
    """A measure by round: a panel per setting, a line per row, the mean of its runs."""
    chosen = table.chosen(settings)
    names = lettered([runs.setting for runs in chosen])
    label = f"{_label(measure)}, %"
    figures = []
    for name, runs in zip(names, chosen, strict=True):
        marks = _curves(table, runs, measure)
        figures.append((name, Chart(name, marks, Axis("round", whole=True), Axis(label))))
    return table.picture(figures)


def _curves(table: Table, runs: Runs, measure: str) -> list[Mark]:
    """A line per row; the common model's figures where they are wanted and there is one."""
    marks = []
    for row, repeats in runs.rows.items():
        values: dict[int, list[float]] = {}
        for run in repeats:
            for record in run.metrics:
                value = (record.get(runs.who) or record["personal"]).get(measure)
                if value is not None:
                    values.setdefault(record["round"], []).append(100 * value)
        rounds = sorted(values)
        if rounds:
            means = [fmean(values[turn]) for turn in rounds]
            marks.append(Mark("line", rounds, means, table.series(row), row))
    return marks


def _label(measure: str) -> str:
    """What a measure is called."""
    for column in columns_for(headline(DEFAULT)):
        if column.key == measure:
            return column.label.lower()
    return measure.replace("_", " ")


@DRAWINGS.register("by-setting")
def by_setting(
    table: Table, *, panels: Sequence[Mapping[str, Any]], column: str | None = None
) -> Picture | None:
    """One column along settings: a line per row, with error bars of the std over seeds.

    Each of the `panels` has a `name`, the `label` of its axis and the `settings` along it. They are
    equally far apart, each with the number in its name (`alpha 0.5`). Without a `column`, it is the
    first.
    """
    shown = []
    for panel in panels:
        blocks = [block for block in table.blocks if block["name"] in panel["settings"]]
        if any(map(_measured, blocks)):
            shown.append((panel, blocks))
    names = lettered([panel["name"] for panel, _ in shown])
    figures = []
    for name, (panel, blocks) in zip(names, shown, strict=True):
        place = 0
        if column is not None:
            place = blocks[0]["columns"].index(column)
        points: dict[str, list[Point]] = {}
        for x, block in enumerate(blocks):
            for row in block["rows"]:
                _add_point(points.setdefault(row["row"], []), x, row, place)
        ticks = _ticks([block["name"] for block in blocks])
        label = f"{blocks[0]['columns'][place].lower()}, %"
        chart = Chart(name, _lines(table, points), Axis(panel["label"], ticks), Axis(label))
        figures.append((name, chart))
    return table.picture(figures)


@DRAWINGS.register("by-column")
def by_column(table: Table, *, label: str, across: int = 5) -> Picture | None:
    """A panel per setting: its columns along the axis, a line per row."""
    blocks = list(filter(_measured, table.blocks))
    figures = []
    for block in blocks:
        points: dict[str, list[Point]] = {}
        for row in block["rows"]:
            for x in range(len(block["columns"])):
                _add_point(points.setdefault(row["row"], []), x, row, x)
        axis = Axis(label, _ticks(block["columns"]))
        name = block["name"]
        chart = Chart(name, _lines(table, points), axis, Axis("accuracy, %"), width=300, height=240)
        figures.append((name, chart))
    return table.picture(figures, across)


@DRAWINGS.register("sweep")
def sweep(table: Table, *, label: str, columns: Sequence[str]) -> Picture | None:
    """The values of one setting along the axis, as rows name them: a panel for each column."""
    figures = []
    for block in filter(_measured, table.blocks):
        rows = block["rows"]
        ticks = _ticks([row["row"] for row in rows])
        for column in columns:
            points: list[Point] = []
            for x, row in enumerate(rows):
                _add_point(points, x, row, block["columns"].index(column))
            marks = [_line(points, 0)]
            heading = f"{block['name']}: {column}"
            figures.append((heading, Chart(heading, marks, Axis(label, ticks), Axis("%"))))
    return table.picture(figures)


def _measured(block: Block) -> bool:
    """Whether a setting has any figure of ours."""
    return any(row["ours"] for row in block["rows"])


def _add_point(points: list[Point], x: float, row: Mapping[str, Any], column: int) -> None:
    """Add the figure in a row and a column, if there is one."""
    mean = mean_of(row, column)
    if mean is None:
        return
    std = row["ours"][column]["std"]
    if std is not None:
        std *= 100
    points.append((float(x), 100 * mean, std))


def _lines(table: Table, points: Mapping[str, Sequence[Point]]) -> list[Mark]:
    """A line per row that has points."""
    marks = []
    for row, its_points in points.items():
        if its_points:
            marks.append(_line(its_points, table.series(row), row))
    return marks


def _line(points: Sequence[Point], series: int, name: str = "") -> Mark:
    """A line with error bars."""
    x, y, std = zip(*points, strict=True)
    return Mark("line", x, y, series, name, dy=std, ends=PERCENT)


def _ticks(names: Sequence[str]) -> list[tuple[float, str]]:
    """Places that are equally far apart, each with the number in its name, or the whole name."""
    ticks = []
    for place, name in enumerate(names):
        numbers = re.findall(r"\d[\d.]*", name)
        ticks.append((float(place), (numbers or [name])[0]))
    return ticks

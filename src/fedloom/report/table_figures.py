"""The figures of a reproduced table: lines over settings or rounds, or a heat map, each as SVG."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ..engine.folder import Run
from ..metrics.registry import DEFAULT, headline
from .columns import columns_for
from .entries import present
from .figures import PERCENT, Axis, Chart, Figure, Heat, Mark, Value
from .static import save

Block = Mapping[str, Any]  # a setting of a table, as `table.json` holds it


def lines(board: Mapping[str, Any], name: str, settings: Sequence[str]) -> str:
    """The first column of these settings: a line per row, with error bars of the std over seeds.

    A setting is labelled with the number in its name (`alpha 0.5`); all are equally far apart.
    """
    blocks = [block for block in board["settings"] if block["name"] in settings]
    marks = []
    for series, row in enumerate(blocks[0]["rows"]):
        points = _points(blocks, row["row"])
        if points:
            x, y, std = zip(*points, strict=True)
            marks.append(Mark("line", x, y, series, row["row"], dy=std, ends=PERCENT))
    ticks = []
    for place, block in enumerate(blocks):
        numbers = re.findall(r"[\d.]+", block["name"])
        ticks.append((float(place), "".join(numbers[:1])))
    y_label = f"{blocks[0]['columns'][0]}, %; bars: std over seeds"
    return _svg(Chart(name, marks, Axis(name, ticks), Axis(y_label)))


def curves(title: str, who: str, measure: str, runs: Mapping[str, Sequence[Run]]) -> str:
    """A measure by round: a line per row, the mean of its runs, of the common or personal model."""
    marks = []
    for series, (row, repeats) in enumerate(runs.items()):
        by_round: dict[int, list[float]] = {}
        for run in repeats:
            for record in run.metrics:
                value = (record.get(who) or record["personal"]).get(measure)
                if value is not None:
                    by_round.setdefault(record["round"], []).append(100 * value)
        rounds = sorted(by_round)
        if rounds:
            means = [fmean(by_round[turn]) for turn in rounds]
            marks.append(Mark("line", rounds, means, series, row))
    label = measure
    for column in columns_for(headline(DEFAULT)):
        if column.key == measure:
            label = column.label
    axis = Axis(f"{title}: {label.lower()}, %")
    return _svg(Chart(title, marks, Axis("round", whole=True), axis))


def heat_map(block: Block) -> str:
    """A setting's figures, rows by columns; rows without figures are left out."""
    names: list[str] = []
    cells: list[list[Value]] = []
    values: list[float] = []
    for row in block["rows"]:
        if _mean(row) is not None:
            names.append(row["row"])
            cells.append([figure["mean"] for figure in row["ours"]])
            values += present(cells[-1])
    ends = (min(values, default=0.0), max(values, default=1.0))
    bands = [None] * len(block["columns"])
    return _svg(
        Heat(block["name"], names, block["columns"], bands, cells, ends, _two_digits, of="")
    )


def _points(blocks: Sequence[Block], name: str) -> list[tuple[float, float, Value]]:
    """Where each setting stands, and the mean and std of a row in its first column, in percent."""
    points: list[tuple[float, float, Value]] = []
    for place, block in enumerate(blocks):
        for row in block["rows"]:
            mean = _mean(row)
            if row["row"] != name or mean is None:
                continue
            std = row["ours"][0]["std"]
            if std is not None:
                std *= 100
            points.append((float(place), 100 * mean, std))
    return points


def _mean(row: Mapping[str, Any]) -> Value:
    """The mean in a row's first column."""
    if not row["ours"]:
        return None
    mean: Value = row["ours"][0]["mean"]
    return mean


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _svg(figure: Figure) -> str:
    return save(figure, "svg", legend=True).decode()

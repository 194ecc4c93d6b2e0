"""A reproduced figure as pictures: lines over settings or rounds of a table, or a heat map of rows by columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..engine.folder import Run
from ..report.figures import Axis, Chart, Heat, Mark
from ..report.gather import COLUMNS


def lines(board: Mapping[str, Any], name: str, settings: Sequence[str]) -> str:
    """The first column of these settings as SVG: a line per row, with error bars of the std over seeds.

    A setting stands at the number in its name (`alpha 0.5`), and settings are drawn at equal distances.
    """
    blocks = [block for block in board["settings"] if block["name"] in settings]
    marks = []
    for series, row in enumerate(blocks[0]["rows"]):
        points = list(_points(blocks, row["row"]))
        if points:
            x, y, std = zip(*points, strict=True)
            marks.append(Mark("line", x, y, series, row["row"], dy=std))
    ticks = [
        (float(i), "".join(re.findall(r"[\d.]+", block["name"])[:1]))
        for i, block in enumerate(blocks)
    ]
    y_label = f"{blocks[0]['columns'][0]}, %; bars: std over seeds"
    return Chart(name, marks, Axis(name, ticks), Axis(y_label)).draw(legend=True).svg(alone=True)


def _points(
    blocks: Sequence[Mapping[str, Any]], name: str
) -> Iterator[tuple[float, float, float | None]]:
    for i, block in enumerate(blocks):
        for row in block["rows"]:
            if row["row"] == name and row["ours"] and row["ours"][0]["mean"] is not None:
                mean, std = row["ours"][0]["mean"], row["ours"][0]["std"]
                yield float(i), 100 * mean, None if std is None else 100 * std


def curves(title: str, who: str, measure: str, runs: Mapping[str, Sequence[Run]]) -> str:
    """A measure by round as SVG: a line per row, the mean of its runs, of the common or the personal model."""
    marks = []
    for series, (row, own) in enumerate(runs.items()):
        seen: dict[int, list[float]] = {}
        for record in (record for run in own for record in run.metrics):
            value = (record.get(who) or record["personal"]).get(measure)
            if value is not None:
                seen.setdefault(record["round"], []).append(100 * value)
        if seen:
            marks.append(
                Mark("line", sorted(seen), [fmean(seen[r]) for r in sorted(seen)], series, row)
            )
    label = next((column.label for column in COLUMNS if column.key == measure), measure)
    y = Axis(f"{title}: {label.lower()}, %")
    return Chart(title, marks, Axis("round", whole=True), y).draw(legend=True).svg(alone=True)


def heat_map(block: Mapping[str, Any]) -> str:
    """A setting's figures as SVG, rows by columns; rows without figures are left out."""
    rows = [row for row in block["rows"] if row["ours"] and row["ours"][0]["mean"] is not None]
    cells = [[figure["mean"] for figure in row["ours"]] for row in rows]
    known = [value for row in cells for value in row if value is not None]
    ends = (min(known, default=0.0), max(known, default=1.0))
    bands: list[str | None] = [None] * len(block["columns"])
    names = [row["row"] for row in rows]
    return (
        Heat(
            block["name"], names, block["columns"], bands, cells, ends, lambda v: f"{v:.2f}", of=""
        )
        .draw()
        .svg(True)
    )

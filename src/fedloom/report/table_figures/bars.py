"""Bars: the rows of each setting beside each other, with further figures as dots above them."""

from __future__ import annotations

from collections.abc import Sequence

from ..figures import Axis, Chart, Mark
from . import DRAWINGS, Picture, Table, mean_of

ROOM = 0.8  # of the distance between two settings, what their bars take


@DRAWINGS.register("bars")
def bars(
    table: Table, *, column: str, dots: Sequence[str] = (), of: str | None = None
) -> Picture | None:
    """A group of bars per setting, one per row, for a column.

    `dots` are further columns, shares too, of the row `of`.
    """
    blocks = [block for block in table.blocks if any(row["ours"] for row in block["rows"])]
    if not blocks:
        return None
    rows = [row["row"] for row in blocks[0]["rows"]]
    wide = ROOM / len(rows)
    marks = []
    for series, name in enumerate(rows):
        x, y = [], []
        for place, block in enumerate(blocks):
            mean = mean_of(block["rows"][series], block["columns"].index(column))
            if mean is not None:
                x.append(place + wide * (series + 0.5) - ROOM / 2)
                y.append(100 * mean)
        marks.append(Mark("bars", x, y, series + 1, f"{name}: {column}", size=wide))
    for extra, heading in enumerate(dots):
        x, y = [], []
        for place, block in enumerate(blocks):
            row = next(row for row in block["rows"] if row["row"] == of)
            mean = mean_of(row, block["columns"].index(heading))
            if mean is not None:
                x.append(float(place))
                y.append(100 * mean)
        sign = ("diamond", "triangle-up")[extra % 2]
        series = len(rows) + 1 + extra
        marks.append(Mark("dots", x, y, series, f"{of}: {heading}", symbol=sign, size=4))
    ticks = [(float(place), block["name"]) for place, block in enumerate(blocks)]
    width = max(460.0, 80.0 + 62 * len(blocks))
    chart = Chart(table.title, marks, Axis("", ticks), Axis("%", zero=True), width=width)
    return table.picture([("", chart)])

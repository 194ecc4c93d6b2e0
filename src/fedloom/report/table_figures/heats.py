"""Heat maps: a table's rows by its columns, and one column over a grid of two settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..entries import present
from ..figures import Grid, Heat, Value
from . import DRAWINGS, Block, Picture, Table, lettered, mean_of


@DRAWINGS.register("heat")
def heat(table: Table) -> Picture | None:
    """A panel per setting, rows by columns; rows and columns without any figure are left out."""
    shown = []
    for block in table.blocks:
        drawn = _rows_by_columns(block)
        if drawn.rows:
            shown.append(drawn)
    names = lettered([drawn.title for drawn in shown])
    return table.picture(list(zip(names, shown, strict=True)))


def _rows_by_columns(block: Block) -> Heat:
    measured = []
    for column in range(len(block["columns"])):
        if any(mean_of(row, column) is not None for row in block["rows"]):
            measured.append(column)
    names: list[str] = []
    cells: list[list[Value]] = []
    for row in block["rows"]:
        line = [mean_of(row, column) for column in measured]
        if present(line):
            names.append(row["row"])
            cells.append(line)
    columns = [block["columns"][column] for column in measured]
    return _map(block["name"], names, columns, cells, _two_digits)


@DRAWINGS.register("grid")
def grid(table: Table, *, column: str) -> Picture | None:
    """One column over the values of two settings, as rows name them: `alpha 0.5, beta 0.4`.

    The first setting goes down, the second across.
    """
    figures = []
    for block in table.blocks:
        place = block["columns"].index(column)
        values: dict[tuple[str, str], float] = {}
        for row in block["rows"]:
            down, across = row["row"].split(", ")
            mean = mean_of(row, place)
            if mean is not None:
                values[down, across] = 100 * mean
        if not values:
            continue
        downs = list(dict.fromkeys(down for down, _ in values))
        acrosses = list(dict.fromkeys(across for _, across in values))
        cells: list[list[Value]] = []
        for down in downs:
            cells.append([values.get((down, across)) for across in acrosses])
        heading = f"{block['name']}: {column}, %"
        figures.append((heading, _map(heading, downs, acrosses, cells, _one_digit)))
    return table.picture(figures)


def _map(
    title: str,
    names: Sequence[str],
    columns: Sequence[str],
    cells: Grid,
    show: Callable[[float], str],
) -> Heat:
    """A heat map whose colours reach from the least to the largest value."""
    values: list[float] = []
    for line in cells:
        values += present(line)
    ends = (min(values, default=0.0), max(values, default=1.0))
    return Heat(title, names, columns, [None] * len(columns), cells, ends, show, of="")


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _one_digit(value: float) -> str:
    return f"{value:.1f}"

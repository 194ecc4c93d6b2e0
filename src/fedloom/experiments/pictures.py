"""The pictures of a reproduced table: each as SVG, and as PDF beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..core.files import write_atomic
from ..report.side import side_figure
from ..report.table_figures import Runs, Table, draw
from .board import side_by_side

FORMATS = ("svg", "pdf")


def write_pictures(
    drawings: Sequence[Mapping[str, Any]],
    board: Mapping[str, Any],
    runs: Sequence[Runs],
    out: Path,
    device: str,
) -> list[str]:
    """Draw what a recipe asks for; the names of the SVG files.

    A picture is called like its table or, where a table has several, by its `name` too. One that
    cannot be drawn costs the table nothing but a warning.
    """
    table = Table(board["table"], board["title"], side_by_side(board), runs, device)
    names = []
    for drawing in drawings:
        options = dict(drawing)
        kind = options.pop("kind")
        name = "-".join([table.name, *options.pop("name", "").split()])
        make = partial(_write, kind, table, options, out / name)
        if side_figure(f"the picture {name}", make, False):
            names.append(f"{name}.svg")
    return names


def _write(kind: str, table: Table, options: Mapping[str, Any], file: Path) -> bool:
    """Write a picture in all formats; whether there was anything to draw."""
    picture = draw(kind, table, options)
    if picture is None:
        return False
    for format in FORMATS:
        write_atomic(file.with_name(f"{file.name}.{format}"), picture(format))
    return True

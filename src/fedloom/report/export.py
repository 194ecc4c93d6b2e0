"""The figures of a page as files for a paper, and its leaderboard as a LaTeX table."""

from __future__ import annotations

import re
from pathlib import Path

from ..core.errors import unknown
from ..core.files import write_atomic
from . import static
from .columns import MINUS, Column
from .document import main
from .entries import Entry, seeds_of, shown_runs
from .figures import ABSENT, Panel
from .page import Page

FORMATS = ("html", *static.FORMATS, "tex")
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "^": r"\^{}",
        "~": r"\~{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        # Greek and signs that a plain LaTeX does not have.
        "\u03c3": r"$\sigma$",
        "\u00a0": "~",
        MINUS: "$-$",
        ABSENT: "--",
        "\u00b1": r"$\pm$",
    }
)


def formats(text: str) -> list[str]:
    """The formats named in a comma-separated list."""
    names = []
    for part in text.lower().split(","):
        name = part.strip()
        if name and name not in FORMATS:
            raise unknown("format", name, FORMATS)
        if name:
            names.append(name)
    return names


def export(page: Page, folder: Path, wanted: list[str]) -> list[Path]:
    """Write every figure and the leaderboard in the formats wanted; return the files."""
    written: list[Path] = []

    def write(name: str, data: bytes) -> None:
        write_atomic(folder / name, data)
        written.append(folder / name)

    drawn = [format for format in static.FORMATS if format in wanted]
    panels: list[Panel] = []
    if drawn:
        panels = _panels(page)
    for panel in panels:
        if isinstance(panel.figure, bytes):  # a picture to begin with
            write(f"{panel.id}.png", panel.figure)
            continue
        for format in drawn:
            data = static.save(panel.figure, format, legend=len(page.entries) > 1)
            write(f"{panel.id}.{format}", data)
    if "tex" in wanted:
        write("leaderboard.tex", table(page).encode())
    return written


def _panels(page: Page) -> list[Panel]:
    """The figures of the page, which its sections hand over when they are shown."""
    if not page.panels:
        main(page)
    return page.panels


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return text.translate(LATEX)


def table(page: Page) -> str:
    """The leaderboard's main columns; best means are bold, as they are marked on the page."""
    columns = [column for column in page.ranking.columns() if not column.minor]
    heads = ["Method"]
    for column in columns:
        head = column.label
        if column.unit:
            head += f" ({column.unit})"
        heads.append(escape(head))
    lines = []
    for entry in page.ranking.order():
        cells = [escape(entry.name)]
        for column in columns:
            cells.append(_cell(page, entry, column))
        lines.append(" & ".join(cells) + r" \\")
    seeds = sorted(set(map(str, seeds_of(shown_runs(page.entries)))))
    note = f"One seed ({''.join(seeds) or '-'})"
    if len(seeds) > 1:
        note = f"Mean over seeds {', '.join(seeds)}, std over seeds (ddof 1)"
    title = re.sub(r"[.]$", "", page.title)
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}; bold: best mean of a column",
            r"\begin{table}\centering",
            rf"\caption{{{escape(title)}. {escape(note)}.}}",
            rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _cell(page: Page, entry: Entry, column: Column) -> str:
    value, std = page.ranking.values(column.key)[entry.number]
    if value is None:
        return "--"
    shown = column.show(value).replace(MINUS, "-")
    if page.ranking.marks(column).get(entry.number) == "best":
        shown = rf"\mathbf{{{shown}}}"
    if std:
        shown += rf" \pm {column.show(std).lstrip('+')}"
    return f"${shown}$"

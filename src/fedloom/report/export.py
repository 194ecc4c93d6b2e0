"""The figures of a page as files for a paper, and its leaderboard as a LaTeX table."""

from __future__ import annotations

import re
from pathlib import Path

from ..core.errors import unknown
from ..core.files import write_atomic
from . import static
from .columns import MINUS, Column
from .document import main
from .entries import Entry
from .figures import ABSENT
from .page import Page

FORMATS = ("html", *static.FORMATS, "tex")
LATEX = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"} | {c: f"\\{c}" for c in "&%$#_{}"}
# Greek and signs that a plain LaTeX does not have.
SIGNS = {"\u03c3": r"$\sigma$", "\u00a0": "~", MINUS: "$-$", ABSENT: "--", "\u00b1": r"$\pm$"}


def formats(text: str) -> list[str]:
    """The formats named in a comma-separated list."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    return names


def export(page: Page, folder: Path, wanted: list[str]) -> list[Path]:
    """Write every figure and the leaderboard in the formats wanted; return the files."""
    written: list[Path] = []

    def write(name: str, data: bytes) -> None:
        write_atomic(folder / name, data)
        written.append(folder / name)

    drawn = [format for format in static.FORMATS if format in wanted]
    if drawn and not page.panels:  # sections hand their figures over when they are shown
        main(page)
    for panel in page.panels if drawn else ():
        if isinstance(panel.figure, bytes):  # a picture to begin with
            write(f"{panel.id}.png", panel.figure)
            continue
        for format in drawn:
            data = static.save(panel.figure, format, legend=len(page.entries) > 1)
            write(f"{panel.id}.{format}", data)
    if "tex" in wanted:
        write("leaderboard.tex", table(page).encode())
    return written


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(LATEX.get(c) or SIGNS.get(c, c) for c in text)


def table(page: Page) -> str:
    """The leaderboard's main columns; best means are bold, as they are marked on the page."""
    columns = [column for column in page.ranking.columns() if not column.minor]
    heads = ["Method"]
    for column in columns:
        heads.append(escape(f"{column.label} ({column.unit})" if column.unit else column.label))
    lines = []
    for entry in page.ranking.order():
        cells = [escape(entry.name), *(_cell(page, entry, column) for column in columns)]
        lines.append(" & ".join(cells) + r" \\")
    seeds = sorted({str(seed) for entry in page.entries for seed in entry.seeds})
    note = f"One seed ({seeds[0] if seeds else '-'})"
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

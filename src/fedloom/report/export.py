"""The figures of a page as files for a paper, and its leaderboard as a LaTeX table."""

from __future__ import annotations

import re
from pathlib import Path

from ..core.errors import unknown
from ..core.files import write_atomic
from . import panels
from .figures import ABSENT
from .gather import COLUMNS, MINUS
from .page import Page

FORMATS = ("html", "svg", "png", "tex")
LATEX = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"} | {c: f"\\{c}" for c in "&%$#_{}"}
# Greek and signs that a plain LaTeX would not know.
SIGNS = {"\u03c3": r"$\sigma$", "\u00a0": "~", MINUS: "$-$", ABSENT: "--", "\u00b1": r"$\pm$"}


def formats(text: str) -> list[str]:
    """The formats named in a comma-separated list."""
    found = [f.strip().lower() for f in text.split(",") if f.strip()]
    for name in found:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    return found


def export(page: Page, folder: Path, wanted: list[str]) -> list[Path]:
    """Write every figure as SVG or PNG and the leaderboard as LaTeX, as far as `wanted`."""
    written: list[Path] = []

    def write(name: str, data: bytes) -> None:
        write_atomic(folder / name, data)
        written.append(folder / name)

    found = [*panels.every(page.entries), *(p for group in page.views.values() for p in group)]
    for panel in found if {"svg", "png"} & set(wanted) else []:
        if isinstance(panel.figure, bytes):  # a picture to begin with
            write(f"{panel.id}.png", panel.figure)
            continue
        drawing = panel.figure.draw(legend=len(page.entries) > 1)
        if "svg" in wanted:
            write(f"{panel.id}.svg", drawing.svg(alone=True).encode())
        if "png" in wanted:
            write(f"{panel.id}.png", drawing.png())
    if "tex" in wanted:
        write("leaderboard.tex", table(page).encode())
    return written


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(LATEX.get(c) or SIGNS.get(c, c) for c in text)


def table(page: Page) -> str:
    """The leaderboard with its main columns; best means in bold, as on the page."""
    shown = [
        c
        for c in COLUMNS
        if not c.minor and any(v is not None for v, _ in page.values(c.key).values())
    ]
    if len(panels.domain_names(page.entries)) < 2:
        shown = [c for c in shown if c.key != "domain_std"]
    heads = [escape(f"{c.label} ({c.unit})" if c.unit else c.label) for c in shown]
    ranks = page.values("personal")
    lines = []
    for entry in sorted(
        page.entries, key=lambda e: -(-1.0 if (v := ranks[e.number][0]) is None else v)
    ):
        cells = [escape(entry.name)]
        for c in shown:
            value, std = page.values(c.key)[entry.number]
            if value is None:
                cells.append("--")
                continue
            said = c.show(value).replace(MINUS, "-")
            said = rf"\mathbf{{{said}}}" if page.marks(c).get(entry.number) == "best" else said
            cells.append(f"${said}$" if not std else rf"${said} \pm {c.show(std).lstrip('+')}$")
        lines.append(" & ".join(cells) + r" \\")
    seeds = sorted({str(s) for e in page.entries for s in e.seeds})
    note = (
        f"Mean over seeds {', '.join(seeds)}, std over seeds (ddof 1)"
        if len(seeds) > 1
        else f"One seed ({seeds[0] if seeds else '-'})"
    )
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}; bold: best mean of a column",
            r"\begin{table}\centering",
            rf"\caption{{{escape(re.sub(r'[.]$', '', page.title))}. {escape(note)}.}}",
            rf"\begin{{tabular}}{{l{'r' * len(shown)}}}",
            r"\toprule",
            " & ".join(["Method", *heads]) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )

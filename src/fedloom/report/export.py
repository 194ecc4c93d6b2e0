"""The figures of a page as files for a paper, and its leaderboard as a LaTeX table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import unknown
from ..core.files import write_atomic
from . import static
from .canvas import FORMATS as DRAWN
from .columns import MINUS, Column
from .document import main
from .entries import Entry, seeds_of, shown_runs
from .figures import ABSENT, Panel
from .page import Page
from .statistics import ALPHA

FORMATS = ("html", *DRAWN, "tex")
# How papers write methods and plug-ins; a page needs no method's code, so it cannot be asked.
PROPER = (
    "Local", "FedAvg", "FedAvg-FT", "FedAvg-after", "FedProx", "SCAFFOLD", "FedBN", "FedPer",
    "Per-FedAvg",
    "pFedMe", "FedRep", "FedProto", "FedAMP", "Ditto", "FedFomo", "FedPHP", "FedRoD", "FedALA",
    "APFL", "MOON", "FPL", "FedTGP", "FedRCL", "FedHEAL", "FedSA", "FDSE", "AFL", "q-FFL", "TERM",
    "HarmoFL", "FedSAM", "FedMix", "Zero-shot", "Tip-Adapter", "Tip-Adapter-F", "ECALP", "CacheFL",
    "FedPGA", "FedCLIP", "PromptFL", "FedDTR", "FedPCL", "FedPACT", "FedGCR", "FedGC", "F2DC",
    "FedDyn", "FedLC", "FedNTD", "IFCA", "CFL", "FedIT", "FFA-LoRA", "FedSA-LoRA", "LoRA-FAIR",
    "FLoRA", "FedBABU", "LG-FedAvg", "FedDBE", "FedCP", "ELCFS", "FedAS", "FedGH", "FedIIR",
    "FedPAC", "FedPGP", "FedPLVM", "FedSR", "FedTPG", "GPFL", "pFedHN",
    "DFDC", "DAA", "FedGR", "DP", "GA", "FedAvgM", "FedAdagrad", "FedAdam", "FedYogi", "FedNova",
    "FedDisco", "FedDecorr", "Krum", "Multi-Krum",
)  # fmt: skip
SPELLED = {name.lower().replace("-", ""): name for name in PROPER}
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


def export(page: Page, folder: Path, wanted: list[str], columns: Sequence[str] = ()) -> list[Path]:
    """Write every figure and the leaderboard in the formats wanted; return the files.

    `columns` are those of the LaTeX table, by their keys; by default the main ones.
    """
    written: list[Path] = []

    def write(name: str, data: bytes) -> None:
        write_atomic(folder / name, data)
        written.append(folder / name)

    drawn = [format for format in DRAWN if format in wanted]
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
        write("leaderboard.tex", table(page, columns).encode())
    return written


def _panels(page: Page) -> list[Panel]:
    """The figures of the page, which its sections hand over when they are shown."""
    if not page.panels:
        main(page)
    return page.panels


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return text.translate(LATEX)


def table(page: Page, keys: Sequence[str] = ()) -> str:
    """The leaderboard: methods by their proper names, best means bold, significance marked."""
    columns = chosen_columns(page, keys)
    heads = ["Method"]
    for column in columns:
        head = column.label
        if column.unit:
            head += f" ({column.unit})"
        heads.append(escape(head))
    lines = []
    for entry in page.ranking.order():
        cells = [escape(proper(entry.name))]
        for column in columns:
            cells.append(_cell(page, entry, column))
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}; bold: best mean of a column",
            r"\begin{table}\centering",
            rf"\caption{{{_caption(page, columns)}}}",
            rf"\label{{tab:{_label(page.title)}}}",
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


def chosen_columns(page: Page, keys: Sequence[str]) -> list[Column]:
    """The columns with these keys, in their order; without keys, the main ones."""
    filled = {column.key: column for column in page.ranking.columns()}
    if not keys:
        return [column for column in filled.values() if not column.minor]
    chosen = []
    for key in keys:
        if key not in filled:
            raise unknown("column of the table", key, filled)
        chosen.append(filled[key])
    return chosen


def _caption(page: Page, columns: Sequence[Column]) -> str:
    """What the table shows, its seeds, and what the marks mean."""
    seeds = sorted(set(map(str, seeds_of(shown_runs(page.entries)))))
    note = f"One seed ({''.join(seeds) or '-'})"
    if len(seeds) > 1:
        note = f"Mean over seeds {', '.join(seeds)}, std over seeds (ddof 1)"
    title = " ".join(map(_proper_word, page.title.removesuffix(".").split(" ")))
    caption = f"{escape(title)}. {escape(note)}."
    headline = page.ranking.columns_by_key[page.ranking.headline]
    if headline in columns and _worse(page):
        caption += (
            r" $^{*}$: significantly worse than the first method ($p < 0.05$, Wilcoxon's "
            "signed-rank test over seeds and clients, Holm's correction)."
        )
    return caption


def _label(title: str) -> str:
    """The title as a label: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "leaderboard"


def _worse(page: Page) -> set[str]:
    """The methods that the first one beats significantly, by name."""
    competing = page.ranking.competing(page.ranking.headline)
    worse = set()
    for test in page.ranking.tests:
        significant = test["p_holm"] is not None and test["p_holm"] < ALPHA
        wins, losses = test["wins"], test["pairs"] - test["wins"] - test["ties"]
        if competing and test["a"] == competing[0].name and significant and wins > losses:
            worse.add(test["b"])
    return worse


def proper(name: str) -> str:
    """A method as papers write it, its plug-ins too; settings behind it stay as they are.

    So does a name that no paper has, such as that of a row.
    """
    words, space, settings = name.partition(" ")
    spelled = [SPELLED.get(word.replace("-", ""), word) for word in words.split("+")]
    return "+".join(spelled) + space + settings


def _proper_word(word: str) -> str:
    """A word of a title, which may be a method in a list of methods."""
    name = word.removesuffix(",")
    return proper(name) + word[len(name) :]


def _cell(page: Page, entry: Entry, column: Column) -> str:
    value, std = page.ranking.values(column.key)[entry.number]
    if value is None:
        return "--"
    shown = column.show(value).replace(MINUS, "-")
    if page.ranking.marks(column).get(entry.number) == "best":
        shown = rf"\mathbf{{{shown}}}"
    if std:
        shown += rf" \pm {column.show(std).lstrip('+')}"
    if column.key == page.ranking.headline and entry.name in _worse(page):
        shown += "^{*}"
    return f"${shown}$"

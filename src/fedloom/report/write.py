"""Write the page about runs, and their figures and table for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import FedloomError
from ..core.files import write_atomic
from .document import html
from .entries import RunData
from .export import export, formats
from .folders import load, title
from .page import Page


@dataclass(frozen=True)
class Written:
    """What was written: the page, and files for a paper."""

    page: Path | None = None
    figures: list[Path] = field(default_factory=list)


def write(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    format: str = "html",
    views: bool = False,
    against: str | None = None,
    trust: bool = False,
    columns: Sequence[str] = (),
    device: str | None = None,
    console: Any = None,
) -> Written:
    """Write a page about the runs in some folders; `format` is a list such as `html,pdf,tex`.

    `columns` are those of the LaTeX table. `views` looks into the models, which takes minutes and
    computes on `device`, by default the CPU; `console` then shows how far it has got.
    """
    if device and not views:
        raise FedloomError("--device is for --views: nothing else of a report is computed.")
    wanted = formats(format)
    runs, board = load(folders, trust=views and trust)
    if not runs:
        raise FedloomError(
            f"{', '.join(map(str, folders))}: no run is in there (a run has a config.toml)."
        )
    seen = None
    if views:
        from .feature_plots import look

        seen = look(runs, console, device or "cpu")
    data = [RunData.of(run) for run in runs]
    about = title(runs, board)
    page = Page(data, about, board, interactive=True, views=seen, against=against)
    target = out or _default_page(folders)
    written = Written()
    if "html" in wanted:
        write_atomic(target, html(page).encode())
        written = Written(target)
    if set(wanted) - {"html"}:
        figures = export(page, target.parent / "figures", wanted, columns)
        written = Written(written.page, figures)
    return written


def _default_page(folders: Sequence[Path]) -> Path:
    if len(folders) == 1:
        return folders[0] / "report.html"
    return Path("report.html")

"""The commands `report` and `dash`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import FedloomError
from .options import Trust, console, print_line

Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR...", help="Run folders, or folders that hold runs, as `compare` leaves them."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The page to write. Default: report.html in DIR, or here if there are several."
    ),
]
Formats = Annotated[
    str,
    typer.Option(help="Any of html, svg, pdf, png and tex, comma-separated.", metavar="LIST"),
]
Views = Annotated[
    bool,
    typer.Option(
        "--views",
        help="Also look into the models: t-SNE, spectra, similarities, Grad-CAM (takes minutes).",
    ),
]


def report(
    folders: Folders,
    out: Out = None,
    format: Formats = "html",
    views: Views = False,
    trust: Trust = False,
) -> None:
    """Write one HTML page about one or many runs, finished or not; it averages over seeds.

    Examples:

        fedloom report runs/demo

        fedloom report runs/a runs/b --out both.html

        fedloom report runs/demo --format svg,tex

    If a run of `local` is among them, the page shows gains over it. With the extra `plots`
    (`pip install 'fedloom[plots]'`), you can zoom into figures and read off their values. With
    `svg`, `pdf`, `png` or `tex`, figures and a LaTeX table go to the folder `figures` beside the
    page. No method file is executed, except for `--views` with `--trust`.
    """
    from ..core.files import write_atomic
    from ..report.document import html
    from ..report.entries import RunData
    from ..report.export import export, formats
    from ..report.folders import load, title
    from ..report.page import Page

    wanted = formats(format)
    runs, board = load(folders, trust=views and trust)
    if not runs:
        raise FedloomError(
            f"{', '.join(map(str, folders))}: no run is in there (a run has a config.toml)."
        )
    seen = None
    if views:
        from ..report.feature_plots import look

        seen = look(runs, console)
    data = [RunData.of(run) for run in runs]
    page = Page(data, title(runs, board), board, interactive=True, views=seen)
    target = out or _default_page(folders)
    if "html" in wanted:
        write_atomic(target, html(page).encode())
        print_line(f"report: {target.resolve()}")
    if set(wanted) - {"html"}:
        figures = target.parent / "figures"
        print_line(f"{len(export(page, figures, wanted))} files: {figures}")


def _default_page(folders: list[Path]) -> Path:
    if len(folders) == 1:
        return folders[0] / "report.html"
    return Path("report.html")


def dash(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, or a folder that holds runs.")
    ],
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = (
        8321
    ),
) -> None:
    """Follow runs live in a browser on this machine; Ctrl-C ends it."""
    from ..report.dash import Dash

    server = Dash(folder, port)
    print_line(f"{server.address} (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.print("ended.")
    finally:
        server.server_close()

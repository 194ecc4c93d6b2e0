"""The commands `report` and `dash`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Run folders, or folders that hold runs, as `compare` leaves."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page to write. Default: report.html in DIR, or here if there are several."
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(help="html, svg, png, tex: any of them, separated by commas.", metavar="LIST"),
    ] = "html",
    views: Annotated[
        bool,
        typer.Option(
            "--views",
            help="Also look into the models: t-SNE, spectra, similarities, Grad-CAM (takes minutes).",
        ),
    ] = False,
) -> None:
    """Write one HTML page about one or many runs, finished or not; seeds of a method are put together.

    Examples:

        fedloom report runs/demo

        fedloom report runs/a runs/b --out both.html

        fedloom report runs/demo --format svg,tex

    If a run of `local` is among them, gains over it are shown. Figures can be zoomed and asked if the extra `plots` is
    installed (`pip install 'fedloom[plots]'`). With `svg`, `png` or `tex`, figures and a LaTeX table go to the folder
    `figures` beside the page.
    """
    from ..core.errors import FedloomError
    from ..core.files import write_atomic
    from ..report.export import export, formats
    from ..report.folders import load, title
    from ..report.page import Page

    wanted = formats(format)
    runs, board = load(folders)
    if not runs:
        raise FedloomError(
            f"{', '.join(map(str, folders))}: no run is in there (a run has a config.toml)."
        )
    seen = None
    if views:
        from ..report.views import look

        seen = look(runs, console)
    name = title(runs, board)
    page = Page([r.data() for r in runs], name, board, interactive=True, views=seen)
    target = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    if "html" in wanted:
        write_atomic(target, page.html().encode())
        console.print(f"report: {target.resolve()}", soft_wrap=True, highlight=False)
    if set(wanted) - {"html"}:
        written = export(page, target.parent / "figures", wanted)
        console.print(
            f"{len(written)} files: {target.parent / 'figures'}", soft_wrap=True, highlight=False
        )


def dash(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, or a folder that holds runs.")
    ],
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8321,
) -> None:
    """Show a page that follows runs while they go on, to a browser on this machine only. Ctrl-C ends it."""
    from ..report.dash import Dash

    server = Dash(folder, port)
    console.print(f"{server.address} (Ctrl-C ends it)", highlight=False, soft_wrap=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.print("ended.")
    finally:
        server.server_close()

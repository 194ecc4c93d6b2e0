"""The commands `report` and `dash`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import DeviceOption, Trust, console, print_line, separated

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

Against = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="The method that gains and losses are measured against. Default: local, or what the "
        "comparison was told.",
    ),
]

Columns = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="The columns of the LaTeX table, by their names in leaderboard.json, such as "
        "personal,worst_client,bytes_up_per_round. Default: the main ones.",
    ),
]


def report(
    folders: Folders,
    out: Out = None,
    format: Formats = "html",
    views: Views = False,
    against: Against = None,
    columns: Columns = None,
    device: DeviceOption = None,
    trust: Trust = False,
) -> None:
    """Write one HTML page about one or many runs, finished or not; it averages over seeds.

    Examples:

        fedloom report runs/demo

        fedloom report runs/a runs/b --out both.html

        fedloom report runs/demo --format svg,tex

        fedloom report runs/demo --against fedavg

    The page answers first: which method to pick, for whom it is good, what it costs and how sure
    that is. Gains are over `local`, or over the method of `--against`. With the extra `plots`
    (`pip install 'fedloom[plots]'`), you can zoom into figures and read off their values. With
    `svg`, `pdf`, `png` or `tex`, figures and a LaTeX table go to the folder `figures` beside the
    page. No method file is executed, except for `--views` with `--trust`.
    """
    from ..report.write import write

    done = write(
        folders,
        out,
        format=format,
        views=views,
        against=against,
        trust=trust,
        columns=separated(columns),
        device=device,
        console=console,
    )
    if done.page:
        print_line(f"report: {done.page.resolve()}")
    if done.figures:
        print_line(f"{len(done.figures)} files: {done.figures[0].parent}")


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

"""`fedloom bench speed --peers` on the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedloom.cli.options import console

from . import show
from .race import measure


def race(
    jobs: Sequence[str],
    only: Sequence[str],
    pfllib: Path | None,
    small: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Measure, write `speed.json`, `speed.md` and `speed.svg`, and show the tables.

    The exit code is 1 if a contender failed.
    """

    def say(text: str) -> None:
        if not as_json:
            console.print(text, highlight=False, soft_wrap=True, markup=False)

    # The bar is drawn when something has happened, not by a clock: a thread that draws would take
    # time from what is measured.
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, auto_refresh=False, disable=as_json
    ) as bar:
        task = bar.add_task("")

        def step(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total, refresh=True)

        found = measure(jobs, only, pfllib, small, say=say, step=step)
    out.mkdir(parents=True, exist_ok=True)
    (out / "speed.json").write_text(json.dumps(found, indent=1))
    (out / "speed.md").write_text(show.markdown(found))
    (out / "speed.svg").write_text(show.picture(found))
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        for table in (show.ratios(found), show.measured(found)):
            console.print(table)
        console.print(show.LEGEND, highlight=False)
        for text in show.failures(found):
            console.print(
                f"failed: {text}", style="red", highlight=False, soft_wrap=True, markup=False
            )
        console.print(f"results: {out.resolve()}", highlight=False, soft_wrap=True)
    if show.failures(found):
        raise typer.Exit(1)

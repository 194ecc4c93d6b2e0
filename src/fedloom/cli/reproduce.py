"""The command `reproduce`: a paper's table from our own runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from ..core.errors import unknown
from .experiments import print_paragraph
from .groups import Machine, Printing, grouped
from .options import console, given, print_json, print_line, separated, watching

if TYPE_CHECKING:
    from ..experiments.recipe import Recipe, Scale

SCALES: tuple[Scale, ...] = ("mini", "full")

Name = Annotated[
    str | None,
    typer.Argument(metavar="TABLE", help="A table, such as `feddtr-1` or `fedpcl-table2`."),
]
ListTables = Annotated[
    bool, typer.Option("--list", help="List the tables and how long they should take.")
]
ScaleName = Annotated[str, typer.Option(help="mini (for two cores) or full (the paper's setting).")]
Only = Annotated[str | None, typer.Option(help="Run these methods only, comma-separated.")]
Settings = Annotated[
    str | None,
    typer.Option(help="Run these settings only: parts of their names, comma-separated."),
]
OtherEncoder = Annotated[
    str | None,
    typer.Option(help="A frozen encoder in place of the recipe's, such as `clip:PATH`."),
]
Out = Annotated[Path | None, typer.Option(help="The folder. Default: runs/reproduce/TABLE-SCALE.")]


@grouped
def reproduce(
    *,
    table: Name = None,
    list_: ListTables = False,
    scale: ScaleName = "mini",
    only: Only = None,
    settings: Settings = None,
    encoder: OtherEncoder = None,
    out: Out = None,
    machine: Machine,
    printing: Printing,
) -> None:
    """Put a paper's table together from our own runs, beside the paper's figures.

    Examples:

        fedloom reproduce --list

        fedloom reproduce f2dc-2 --scale mini --only fedavg,fedprox

        fedloom reproduce feddtr-1 --settings CIFAR-10,Fashion

    The table states what differs from the paper (data, network, rounds), and why a row was not
    run, where its method or its data are missing. The command reuses finished runs and continues
    interrupted ones.
    """
    from ..experiments.recipe import overview, recipe
    from ..experiments.reproduce import reproduce as carry_out

    if list_ or table is None:
        _print_overview(overview(machine.data_root), printing.as_json)
        return
    chosen_scale = _parse_scale(scale)
    plan = recipe(table)
    methods = separated(only)
    parts = separated(settings)
    plan.has(methods, parts)
    if not printing.silent:
        print_line(_announcement(plan, chosen_scale, methods, parts, encoder, machine.data_root))
    folder = out or Path("runs/reproduce") / f"{plan.name}-{scale}"
    options = given(executor=plan.executor, data_root=machine.data_root) | machine.execution()
    with watching(1, printing.silent) as watch:
        board = carry_out(
            table, chosen_scale, folder, watch, methods, options, encoder, parts, machine.precision
        )
    if printing.as_json:
        print_json(board)
    elif not printing.quiet:
        _print_board(board, folder)
    if not _anything_run(board):
        raise typer.Exit(1)


def _anything_run(board: Mapping[str, Any]) -> bool:
    """Whether the table has a figure of ours; where it has none, every row says why."""
    figures = []
    for block in board["settings"]:
        figures += [row["ours"] for row in block["rows"]]
    return any(figures)


def _parse_scale(text: str) -> Scale:
    for scale in SCALES:
        if scale == text:
            return scale
    raise unknown("scale", text, SCALES)


def _announcement(
    plan: Recipe,
    scale: Scale,
    methods: Sequence[str],
    parts: Sequence[str],
    encoder: str | None,
    data_root: str | None,
) -> str:
    from ..experiments.recipe import titled

    title = f"{titled(plan, scale)}: scale {scale}"
    if scale == "full":
        return f"{title}, sized for a large machine"
    time = f"{_estimate(plan, methods, parts, data_root)} on two idle cores"
    if encoder or any(setting.given[scale].get("encoder") for setting in plan.settings):
        time += ", and more where features are computed first"
    return f"{title}, {time}"


def _estimate(
    plan: Recipe, methods: Sequence[str], parts: Sequence[str], data_root: str | None
) -> str:
    """How long a part of a table will take."""
    from ..experiments.recipe import at_hand, is_part

    rows = [row for row in plan.rows if not methods or plan.method(row) in methods]
    available = at_hand(plan, "mini", data_root)
    chosen = [name for name in available if not parts or is_part(parts, name)]
    minutes = plan.minutes * len(rows) * len(chosen) / max(1, len(available))
    if minutes < 1.5:
        return "about a minute"
    return f"about {minutes:.0f} minutes"


def _print_overview(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    table = Table("table", "what it is", "rows", "settings", "minutes", box=box.SIMPLE_HEAD)
    for row in rows:
        rows_here = f"{row['rows']['here']} of {row['rows']['all']}"
        settings_here = f"{row['settings']['here']} of {row['settings']['all']}"
        minutes = f"{row['minutes']:g}"
        table.add_row(row["table"], row["title"], rows_here, settings_here, minutes)
    console.print(table)
    console.print(
        "rows and settings: those whose methods and data are available (data lie under "
        "--data-root or FEDLOOM_DATA). minutes: an estimate for all of them at the scale mini, "
        "on two idle cores.",
        highlight=False,
    )


def _print_board(board: Mapping[str, Any], folder: Path) -> None:
    from ..experiments.board import asked_for

    for block in asked_for(board):
        console.print(_block_table(block))
        print_paragraph(_missing_rows(block))
        if block["data"]:
            differences = [f"Differs: {difference}." for difference in block["differs"]]
            print_paragraph([f"Ours: {block['data']}.", *differences])
    seeds = "one seed"
    if len(board["seeds"]) > 1:
        seeds = "spreads over seeds are in the files"
    console.print(f"\nIn percent; {seeds}.", highlight=False)
    print_line(f"table: {(folder / 'table.md').resolve()}")
    for name in board["pictures"]:
        print_line(f"picture: {(folder / name).resolve()}")


def _missing_rows(block: Mapping[str, Any]) -> list[str]:
    """Why rows are missing, a line for each reason."""
    rows_by_reason: dict[str, list[str]] = {}
    for row in block["rows"]:
        if row["remark"]:
            rows_by_reason.setdefault(row["remark"], []).append(row["row"])
    lines = []
    for reason, rows in rows_by_reason.items():
        lines.append(f"{', '.join(rows)}: {reason}")
    return lines


def _block_table(block: Mapping[str, Any]) -> Table:
    """Our figures of a setting above the paper's, without spreads, which would not fit."""
    from ..experiments.board import texts

    table = Table(
        "method",
        "",
        box=box.SIMPLE_HEAD,
        title=block["name"],
        title_justify="left",
        show_edge=False,
        pad_edge=False,
        padding=0,
    )
    for heading in block["columns"]:
        table.add_column(heading, justify="right")
    for row in block["rows"]:
        name = row["row"]
        if row["ours"]:
            table.add_row(name, "ours", *_without_spreads(texts(block, row)))
            name = ""
        if set(row["paper"]) != {"-"}:  # the paper has this row
            table.add_row(name, "paper", *_without_spreads(row["paper"]))
    return table


def _without_spreads(figures: Sequence[str]) -> list[str]:
    return [figure.split("(")[0] for figure in figures]

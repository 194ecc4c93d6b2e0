"""The commands that run many runs: `compare`, `sweep`, `reproduce`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Column, Table

from ..core.errors import FedloomError, unknown
from .main import (
    AsJson,
    Clients,
    Data,
    EncoderOption,
    Executor,
    Log,
    Model,
    Partition,
    Precision,
    Quiet,
    Root,
    Rounds,
    Set,
    Workers,
    _given,
    _watch,
    app,
    console,
    execution,
)

if TYPE_CHECKING:
    from ..experiments.reproduce import Recipe

Seeds = Annotated[str, typer.Option(help="Comma-separated seeds.")]


def compare(
    methods: Annotated[list[str], typer.Argument(metavar="METHOD...", help="Methods to compare.")],
    data: Data = None,
    partition: Partition = None,
    model: Model = None,
    encoder: EncoderOption = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seeds: Seeds = "0",
    target: Annotated[
        float | None,
        typer.Option(
            help="Personal accuracy in percent to which costs are counted. Default: what local reaches."
        ),
    ] = None,
    set_: Set = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the runs, the leaderboard and the report.")
    ] = Path("runs/compare"),
    precision: Precision = None,
    executor: Executor = None,
    workers: Workers = None,
    data_root: Root = None,
    log: Log = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run several methods on the same federation and put them side by side.

    Examples:

        fedloom compare fedprox fedper --partition domains --clients 8 --seeds 0,1,2 --set fedprox.mu=0.1

        fedloom compare fedbn --set norm=true --target 80

    Local and FedAvg are always run as well, for gains and losses are measured against them; FedAvg with local
    fine-tuning comes from FedAvg's runs. Finished runs in the folder are used again, interrupted ones continued; a run
    that fails is named and leaves the others standing. A setting with a method's name in front (`fedprox.mu`) concerns
    that method only.
    """
    from ..engine.config import parse_set
    from ..experiments.compare import compare as carry_out
    from ..experiments.compare import plan, with_references

    if target is not None and not 1 <= target <= 100:
        raise FedloomError(f"--target is in percent, between 1 and 100, got {target:g}.")
    numbers = _seeds(seeds)
    changes = parse_set(set_ or [])
    changes |= {"executor": "pool"} | execution(executor or changes.get("executor"), workers)
    changes |= _given(rounds=rounds, precision=precision, data_root=data_root)
    wanted = with_references(methods)
    configs = plan(
        wanted,
        numbers,
        _given(data=data, partition=partition, model=model, encoder=encoder, clients=clients),
        changes,
    )
    title = f"{', '.join(wanted)} on {configs[0].data}, {configs[0].partition}"
    with _watch(sum(c.schedule.rounds for c in configs), quiet or as_json) as watch:
        board = carry_out(
            configs, out, watch, title, None if target is None else target / 100, _logs(log)
        )
    if as_json:
        print(json.dumps(board, indent=1))
    elif not quiet:
        _show(board, out)
    if any(run["status"] == "failed" for run in board["runs"]):
        raise typer.Exit(1)


def _seeds(text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(s) for s in text.split(",")))
    except ValueError:
        raise FedloomError(
            f"--seeds wants whole numbers separated by commas, got {text!r}."
        ) from None


# heading, column, factor, decimals, whether its spread over seeds is shown
SHOWN = [
    ("personal", "personal", 100, 1, True),
    ("by val", "personal_best_by_validation", 100, 1, False),
    ("common", "common", 100, 1, True),
    ("std", "domain_std", 100, 1, False),
    ("worst", "worst_client", 100, 1, False),
    ("better", "better_than_local", 100, 0, False),
    ("gain", "gain_over_local", 100, 1, False),
    ("MB up", "bytes_up_per_round", 1e-6, 1, False),
    ("time", "seconds", 1, 0, False),
]
LEGEND = (
    "In percent. personal: mean accuracy of the clients' own models after the last round (by val: in the round chosen "
    "on validation data); common: of the one model for all; std: spread over domains; worst: worst client; better: "
    "share of clients better off than alone (local); gain: mean gain over alone, in points. MB up: all uploads of a "
    "round. time: seconds."
)


def _show(board: Mapping[str, Any], out: Path) -> None:
    """The leaderboard on a terminal of 80 columns."""
    from ..experiments.compare import cell, sentences

    rows, many = board["rows"], len(board["settings"]["seeds"]) > 1
    # A long name is folded; a figure cut short would be a wrong figure.
    name = Column("method", overflow="fold")
    table = Table(
        name, box=box.SIMPLE_HEAD, title=board["title"], show_edge=False, pad_edge=False, padding=0
    )
    for heading, *_ in SHOWN:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["method"], *(cell(row, c, f, d, spread, gap="") for _, c, f, d, spread in SHOWN)
        )
    console.print(table)
    console.print(
        LEGEND + " ±: std over seeds; all other figures are means over seeds." * many,
        highlight=False,
    )
    _paragraph("", [f"{r['method']}: {r['note']}" for r in rows if r["note"]])
    _paragraph("", sentences(board))
    _paragraph(
        "failed",
        [f"{r['method']}, seed {f['seed']}: {f['error']}" for r in rows for f in r["failed"]],
    )
    console.print(f"\nreport: {(out / 'report.html').resolve()}", soft_wrap=True, highlight=False)


def _paragraph(name: str, lines: Sequence[str]) -> None:
    if lines:
        console.print()
    for line in lines:
        console.print(f"[bold red]{name}[/] {line}" if name else line, highlight=False)


def sweep(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="The method whose settings are searched.")
    ],
    grid: Annotated[
        list[str],
        typer.Option(
            help="A setting and its values, `key=v1,v2`; several grids are crossed.",
            metavar="KEY=V1,V2",
        ),
    ],
    data: Data = None,
    partition: Partition = None,
    model: Model = None,
    encoder: EncoderOption = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seeds: Seeds = "0",
    set_: Set = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the runs, the table and the heat maps.")
    ] = Path("runs/sweep"),
    precision: Precision = None,
    executor: Executor = None,
    workers: Workers = None,
    data_root: Root = None,
    log: Log = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Try every combination of some settings of a method; the best one is chosen on validation data only.

    Examples:

        fedloom sweep fedprox --grid mu=0.001,0.01,0.1,1 --clients 8 --seeds 0,1

        fedloom sweep fedavg --grid lr=0.01,0.05,0.1 --grid epochs=1,2,5 --out runs/lr

    Finished runs in the folder are used again, interrupted ones continued. Two or more grids also give heat maps (SVG).
    """
    from ..engine.config import parse_set
    from ..experiments.sweep import parse_grid, plan, remark, shown
    from ..experiments.sweep import sweep as carry_out

    values = parse_grid(grid)
    changes = parse_set(set_ or [])
    changes |= {"executor": "pool"} | execution(executor or changes.get("executor"), workers)
    changes |= _given(rounds=rounds, precision=precision, data_root=data_root)
    given = _given(data=data, partition=partition, model=model, encoder=encoder, clients=clients)
    configs = plan(method, values, _seeds(seeds), given, changes)
    title = f"{', '.join(values)} of {method} on {configs[0].data}, {configs[0].partition}"
    with _watch(sum(c.schedule.rounds for c in configs), quiet or as_json) as watch:
        board = carry_out(values, configs, out, watch, title, _logs(log))
    if as_json:
        print(json.dumps(board, indent=1))
    elif not quiet:
        table = Table(*values, "validation", "test", "", box=box.SIMPLE_HEAD, title=title)
        for row in board["rows"]:
            said = [str(v) for v in row["values"].values()]
            table.add_row(*said, shown(row, "validation"), shown(row, "test"), remark(board, row))
        console.print(table)
        console.print(
            "In percent. Chosen on validation data; test accuracy decides nothing.", highlight=False
        )
        console.print(f"table: {(out / 'sweep.md').resolve()}", soft_wrap=True, highlight=False)
    if any(row["failed"] for row in board["rows"]):
        raise typer.Exit(1)


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="A table, such as `feddtr-1` or `fedpcl-table2`."),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the tables, with their expected time.")
    ] = False,
    scale: Annotated[
        str, typer.Option(help="mini (for two cores) or full (the paper's setting).")
    ] = "mini",
    only: Annotated[
        str | None, typer.Option(help="Run these methods only, separated by commas.")
    ] = None,
    settings: Annotated[
        str | None,
        typer.Option(help="Run these settings only: parts of their names, separated by commas."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="A frozen encoder in place of the recipe's, such as `clip:PATH`."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder. Default: runs/reproduce/TABLE-SCALE.")
    ] = None,
    precision: Precision = None,
    executor: Executor = None,
    workers: Workers = None,
    data_root: Root = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Put a paper's table together from our own runs, beside the paper's figures.

    Examples:

        fedloom reproduce --list

        fedloom reproduce f2dc-2 --scale mini --only fedavg,fedprox

        fedloom reproduce feddtr-1 --settings CIFAR-10,Fashion

    What differs from the paper (data, network, rounds) is stated in the table. Rows whose method or data are not here
    say so. Finished runs are used again, interrupted ones continued.
    """
    from ..experiments.reproduce import overview, recipe, titled
    from ..experiments.reproduce import reproduce as carry_out

    if list_ or table is None:
        _list_tables(overview(data_root), as_json)
        return
    if scale not in ("mini", "full"):
        raise unknown("scale", scale, ("mini", "full"))
    found = recipe(table)
    chosen, blocks = (text.split(",") if text else () for text in (only, settings))
    found.has(chosen, blocks)
    if not (quiet or as_json):
        minutes = f"{_estimate(found, only, settings, data_root)} on two idle cores"
        if any(s.given[scale].get("encoder") or encoder for s in found.settings):  # type: ignore[index]
            minutes += ", and more where features are computed first"
        about = minutes if scale == "mini" else "sized for a large machine"
        title = titled(found, scale)  # type: ignore[arg-type]
        console.print(f"{title}: scale {scale}, {about}", highlight=False)
    folder = out or Path("runs/reproduce") / f"{found.name}-{scale}"
    how = _given(executor=found.executor, data_root=data_root) | execution(executor, workers)
    with _watch(1, quiet or as_json) as watch:
        board = carry_out(table, scale, folder, watch, chosen, how, encoder, blocks, precision)  # type: ignore[arg-type]
    if as_json:
        print(json.dumps(board, indent=1))
    elif not quiet:
        _show_table(board)
        console.print(f"table: {(folder / 'table.md').resolve()}", soft_wrap=True, highlight=False)
        for name in board["pictures"]:
            console.print(f"picture: {(folder / name).resolve()}", soft_wrap=True, highlight=False)
    if not any(row["ours"] for block in board["settings"] for row in block["rows"]):
        raise typer.Exit(1)  # nothing was run: each row says why


def _estimate(table: Recipe, only: str | None, settings: str | None, data_root: str | None) -> str:
    """How long a part of a table will take."""
    from ..experiments.reproduce import at_hand

    chosen = [row for row in table.rows if not only or table.method(row) in only.split(",")]
    there = at_hand(table, "mini", data_root)
    wanted = [
        n
        for n in there
        if not settings or any(part.lower() in n.lower() for part in settings.split(","))
    ]
    minutes = table.minutes * len(chosen) * len(wanted) / max(1, len(there))
    return "about a minute" if minutes < 1.5 else f"about {minutes:.0f} minutes"


def _list_tables(found: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=1))
        return
    shown = Table("table", "what it is", "rows", "settings", "minutes", box=box.SIMPLE_HEAD)
    for row in found:
        able = [f"{row[key]['here']} of {row[key]['all']}" for key in ("rows", "settings")]
        shown.add_row(row["table"], row["title"], *able, f"{row['minutes']:g}")
    console.print(shown)
    console.print(
        "rows and settings: those whose methods and data are here (data lie under --data-root or FEDLOOM_DATA). "
        "minutes: an estimate for all of them at the scale mini, on two idle cores.",
        highlight=False,
    )


def _show_table(board: Mapping[str, Any]) -> None:
    from ..experiments.reproduce import asked_for, texts

    for block in asked_for(board):
        shown = Table("method", "", box=box.SIMPLE_HEAD, title=block["name"], title_justify="left", show_edge=False,
                      pad_edge=False, padding=0)  # fmt: skip
        for heading in block["columns"]:
            shown.add_column(heading, justify="right")
        for row in block["rows"]:
            if row["ours"]:
                shown.add_row(row["row"], "ours", *(f.split("(")[0] for f in texts(block, row)))
            if set(row["paper"]) != {"-"}:  # the paper does not have this row
                shown.add_row(
                    "" if row["ours"] else row["row"],
                    "paper",
                    *(f.split("(")[0] for f in row["paper"]),
                )
        console.print(shown)
        missing: dict[str, list[str]] = {}
        for row in block["rows"]:
            if row["remark"]:
                missing.setdefault(row["remark"], []).append(row["row"])
        _paragraph("", [f"{', '.join(rows)}: {why}" for why, rows in missing.items()])
        if block["data"]:
            _paragraph(
                "", [f"Ours: {block['data']}.", *(f"Differs: {d}." for d in block["differs"])]
            )
    seeds = "spreads over seeds are in the files" if len(board["seeds"]) > 1 else "one seed"
    console.print(f"\nIn percent; {seeds}.", highlight=False)


def _logs(names: str | None) -> Any:
    """What opens the loggers of a run, or None."""
    from ..loggers import LOGGERS, logging_to

    wanted = names.split(",") if names else []
    for name in wanted:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
    return (lambda config, folder: logging_to(wanted, config, folder)) if wanted else None


for command in (compare, sweep, reproduce):
    app.command()(command)

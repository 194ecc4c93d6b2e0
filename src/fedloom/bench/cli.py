"""The commands that run many runs: `compare`, `sweep`, `reproduce`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Column, Table

from ..cli import (
    AsJson,
    Clients,
    Data,
    Executor,
    Model,
    Partition,
    Quiet,
    Root,
    Rounds,
    Set,
    Workers,
    _given,
    _watch,
    app,
    console,
)
from ..errors import FedloomError

Seeds = Annotated[str, typer.Option(help="Comma-separated seeds.")]


def compare(
    methods: Annotated[list[str], typer.Argument(metavar="METHOD...", help="Methods to compare.")],
    data: Data = None,
    partition: Partition = None,
    model: Model = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seeds: Seeds = "0",
    target: Annotated[
        float | None,
        typer.Option(help="Personal accuracy in percent to which costs are counted. Default: what local reaches."),
    ] = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs, the leaderboard and the report.")] = Path(
        "runs/compare"
    ),
    executor: Executor = "pool",
    workers: Workers = None,
    data_root: Root = None,
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
    from ..config import parse_set
    from .compare import compare as carry_out
    from .compare import plan, with_references

    if target is not None and not 1 <= target <= 100:
        raise FedloomError(f"--target is in percent, between 1 and 100, got {target:g}.")
    numbers = _seeds(seeds)
    changes = parse_set(set_ or []) | _given(rounds=rounds, executor=executor, workers=workers, data_root=data_root)
    wanted = with_references(methods)
    configs = plan(wanted, numbers, _given(data=data, partition=partition, model=model, clients=clients), changes)
    title = f"{', '.join(wanted)} on {configs[0].data}, {configs[0].partition}"
    with _watch(sum(c.schedule.rounds for c in configs), quiet or as_json) as watch:
        board = carry_out(configs, out, watch, title, None if target is None else target / 100)
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
        raise FedloomError(f"--seeds wants whole numbers separated by commas, got {text!r}.") from None


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
    from .compare import cell, sentences

    rows, many = board["rows"], len(board["settings"]["seeds"]) > 1
    table = Table(
        Column("method", no_wrap=True), box=box.SIMPLE_HEAD, title=board["title"], pad_edge=False, padding=(0, 1, 0, 0)
    )
    for heading, *_ in SHOWN:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["method"], *(cell(row, c, f, d, spread, gap="") for _, c, f, d, spread in SHOWN))
    console.print(table)
    console.print(LEGEND + " ±: std over seeds; all other figures are means over seeds." * many, highlight=False)
    _paragraph("", [f"{r['method']}: {r['note']}" for r in rows if r["note"]])
    _paragraph("", sentences(board))
    _paragraph("failed", [f"{r['method']}, seed {f['seed']}: {f['error']}" for r in rows for f in r["failed"]])
    console.print(f"\nreport: {(out / 'report.html').resolve()}", soft_wrap=True, highlight=False)


def _paragraph(name: str, lines: Sequence[str]) -> None:
    if lines:
        console.print()
    for line in lines:
        console.print(f"[bold red]{name}[/] {line}" if name else line, highlight=False)


for command in (compare,):
    app.command()(command)

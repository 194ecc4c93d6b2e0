"""The command `reproduce`: a paper's table from our own runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from ..core.errors import FedloomError, unknown
from .experiments import print_paragraph
from .groups import Machine, Printing, grouped
from .options import Rounds, Set, console, given, print_json, print_line, separated, watching
from .overview import print_overview

if TYPE_CHECKING:
    from ..experiments.blocks import Block, Order
    from ..experiments.table import Scale

SCALES: tuple[Scale, ...] = ("mini", "full")

Name = Annotated[
    str | None,
    typer.Argument(metavar="TABLE", help="A table, such as `feddtr-1` or `fedpcl-table2`."),
]
ListTables = Annotated[
    bool, typer.Option("--list", help="List the tables (or one), and what they still need.")
]
ScaleName = Annotated[
    str | None,
    typer.Option(help="mini (for two cores) or full (the paper's setting). Default: mini."),
]
Only = Annotated[str | None, typer.Option(help="Run these methods only, comma-separated.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        help="Run these settings only: parts of their names, or their data sets, comma-separated; "
        "repeat it for more."
    ),
]
OtherEncoder = Annotated[
    list[str] | None,
    typer.Option(
        help="The paper's frozen encoders, comma-separated, such as `clip:PATH`; `slot=NAME` for "
        "one of several (see `--list`); repeat it for more."
    ),
]
Seeds = Annotated[
    str | None, typer.Option(help="Seeds in place of the table's, comma-separated: `0,1`.")
]
Plan = Annotated[bool, typer.Option("--plan", help="Print what it would cost, and stop.")]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Run the I-th of N parts. With all parts' folders copied into one, the same command "
        "without it puts the table together.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="The folder. Default: runs/reproduce/TABLE-SCALE.")]


@grouped
def reproduce(
    *,
    table: Name = None,
    list_: ListTables = False,
    scale: ScaleName = None,
    only: Only = None,
    settings: Settings = None,
    encoder: OtherEncoder = None,
    set_: Set = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    plan: Plan = False,
    shard: ShardOption = None,
    out: Out = None,
    machine: Machine,
    printing: Printing,
) -> None:
    """Put a paper's table together from our own runs, beside the paper's figures.

    Examples:

        fedloom reproduce --list

        fedloom reproduce f2dc-2 --scale mini --only fedavg,fedprox

        fedloom reproduce feddtr-1 --settings CIFAR-10,Fashion

        fedloom reproduce f2dc-1 --scale full --plan

    The table states what differs from the paper (data, network, rounds), and why a row was not
    run, where its method, its data or its encoder are missing. The command reuses finished runs and
    continues interrupted ones.
    """
    from ..engine.config import parse_set
    from ..experiments.blocks import Order, planned
    from ..experiments.needs import overview, titled
    from ..experiments.recipe import recipe
    from ..experiments.reproduce import carry_out_table
    from ..experiments.shards import parse_shard
    from ..experiments.table import Brought, parse_encoders, split_names

    if list_ or table is None:
        refuse_without_table(
            scale=scale,
            only=only,
            settings=settings,
            encoder=encoder,
            set=set_,
            seeds=seeds,
            rounds=rounds,
            plan=plan or None,
            shard=shard,
            out=out,
            precision=machine.precision,
            executor=machine.executor,
            workers=machine.workers,
            device=machine.device,
            quiet=(printing.quiet and not printing.as_json) or None,
        )
        rows = overview(machine.data_root, table)
        if printing.as_json:
            print_json(rows)
        else:
            print_overview(rows)
        return
    chosen_scale = _parse_scale(scale or "mini")
    recipe_ = recipe(table)
    if rounds is not None and rounds < 1:
        raise FedloomError(f"--rounds {rounds}: a table needs at least one round.")
    changes = parse_set(set_ or [])
    if rounds is not None and "rounds" in changes:
        raise FedloomError("--rounds and --set rounds say the same: leave one out.")
    changes |= given(rounds=rounds)
    if machine.precision:
        changes["training.precision"] = machine.precision
    order = Order(
        chosen_scale,
        separated(only),
        split_names(settings or [], recipe_.setting_names()),
        given(executor=recipe_.executor, data_root=machine.data_root) | machine.execution(),
        Brought(parse_encoders(recipe_, ",".join(encoder or [])), changes, _parse_seeds(seeds)),
        parse_shard(shard),
    )
    folder = out or Path("runs/reproduce") / f"{recipe_.name}-{chosen_scale}"
    blocks = planned(recipe_, order)
    if plan or not printing.silent:
        title = f"{titled(recipe_, chosen_scale, order.brought)}: scale {chosen_scale}"
        _print_cost(title, blocks, order, folder, printing.as_json)
    if plan:
        return
    with watching(1, printing.silent) as watch:
        board = carry_out_table(recipe_, order, blocks, folder, watch)
    if printing.as_json:
        print_json(board)
    elif not printing.quiet:
        _print_board(board, folder)
    if not _anything_run(board):
        raise typer.Exit(1)


def _print_cost(
    title: str, blocks: Sequence[Block], order: Order, folder: Path, as_json: bool
) -> None:
    """Print what a table would cost, and what of it cannot be run."""
    from ..experiments.blocks import absent_configs, all_configs
    from ..experiments.board import LEFT_OUT
    from ..experiments.cost import cost_of, this_machine
    from ..experiments.shards import of_shard

    here = this_machine(str(order.execution.get("device", "cpu")))
    cost = cost_of(of_shard(all_configs(blocks), order.shard, folder), folder)
    absent = cost_of(of_shard(absent_configs(blocks), order.shard, folder), folder)
    reasons: dict[str, int] = {}
    for block in blocks:
        for reason in block.reasons.values():
            if reason and reason != LEFT_OUT:
                reasons[reason] = reasons.get(reason, 0) + 1
    if as_json:
        lacking = absent.plain(here)
        whole = {"title": title, **cost.plain(here), "not_at_hand": lacking, "not_run": reasons}
        print_json(whole)
        return
    print_line(title)
    print_line(cost.line(here))
    if absent.runs:
        print_line(absent.line(here, "not at hand"))
    for reason, rows in reasons.items():
        print_line(f"{rows} rows {reason}")


def refuse_without_table(**options: Any) -> None:
    """Refuse options that mean nothing where tables are only listed."""
    named = list(given(**options))
    if named:
        raise FedloomError(f"--{named[0]} is for one table: name it, and leave --list out.")


def _parse_seeds(text: str | None) -> list[int]:
    seeds = []
    for part in separated(text):
        if not part.strip().isdigit():
            raise FedloomError(f"--seeds wants whole numbers such as 0,1,2; got {part!r}.")
        if int(part) in seeds:
            raise FedloomError(f"--seeds names {part} twice.")
        seeds.append(int(part))
    return seeds


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


def _print_board(board: Mapping[str, Any], folder: Path) -> None:
    from ..experiments.board import asked_for

    for block in asked_for(board):
        console.print(_fitting(block))
        print_paragraph(_missing_rows(block))
        if block["data"]:
            differences = [f"Differs: {difference}." for difference in block["differs"]]
            print_paragraph([f"Ours: {block['data']}.", *differences])
    seeds = "one seed"
    if len(board["seeds"]) > 1:
        seeds = "(spread over seeds), here where it fits, and in the files"
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


def _fitting(block: Mapping[str, Any]) -> Table:
    """A setting's figures with their spreads, or without where the lines would be too long."""
    whole = _block_table(block, list)
    boundless = console.options.update(max_width=1000)
    if console.measure(whole, options=boundless).maximum <= console.width:
        return whole
    return _block_table(block, _without_spreads)


def _block_table(block: Mapping[str, Any], written: Callable[[Sequence[str]], list[str]]) -> Table:
    """Our figures of a setting above the paper's."""
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
            table.add_row(name, "ours", *written(texts(block, row)))
            name = ""
        if set(row["paper"]) != {"-"}:  # the paper has this row
            table.add_row(name, "paper", *written(row["paper"]))
    for row in block["floors"]:
        table.add_row(row["row"], "", *written(texts(block, row)))
    return table


def _without_spreads(figures: Sequence[str]) -> list[str]:
    return [figure.split("(")[0] for figure in figures]

"""The commands that compare many runs: `compare` and `sweep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Column, Table

from ..core.errors import FedloomError, unknown
from .groups import Machine, Printing, World, grouped
from .options import Log, Metric, NoReport, Set, console, print_json, print_line, watching

if TYPE_CHECKING:
    from ..engine.config import Config
    from ..experiments.tune import Tuning

Methods = Annotated[list[str], typer.Argument(metavar="METHOD...", help="The methods to compare.")]
Seeds = Annotated[str, typer.Option(help="Comma-separated seeds.")]
Target = Annotated[
    float | None,
    typer.Option(
        help="Personal accuracy in percent up to which costs are counted. "
        "Default: the accuracy of `local`."
    ),
]
Against = Annotated[
    str,
    typer.Option(metavar="METHOD", help="The method that gains and losses are measured against."),
]
Tune = Annotated[
    list[str] | None,
    typer.Option(
        help="A setting and its values, `lr=0.01,0.1` (or several, `lr=0.01,0.1,mu=0.1,1`), of "
        "which every method that has it, `local` and `fedavg` included, gets those that are best "
        "on validation data.",
        metavar="KEY=V1,V2",
    ),
]
SearchOption = Annotated[
    str | None,
    typer.Option(
        "--search",
        help="How --tune searches: grid (all combinations, the default), random, or tpe (with the "
        "extra `tune`).",
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        help="The runs that --tune has for each method. Default: as many as the largest grid has "
        "combinations; 10 for random and tpe."
    ),
]
ComparisonFolder = Annotated[
    Path, typer.Option(help="The folder for the runs, the leaderboard and the report.")
]
SweepFolder = Annotated[
    Path, typer.Option(help="The folder for the runs, the table and the heat maps.")
]
Grids = Annotated[
    list[str],
    typer.Option(
        help="A setting and its values, `key=v1,v2`; several grids are crossed.",
        metavar="KEY=V1,V2",
    ),
]
SweptMethod = Annotated[
    str, typer.Argument(metavar="METHOD", help="The method whose settings are searched.")
]

# heading, column, factor, decimals, whether its spread over seeds is shown
Shown = tuple[str, str, float, int, bool]
LAST: Shown = ("last", "personal_last", 100, 1, False)
SHOWN: list[Shown] = [
    ("personal", "personal", 100, 1, True),
    LAST,
    ("common", "common", 100, 1, True),
    ("std", "domain_std", 100, 1, False),
    ("worst", "worst_client", 100, 1, False),
    ("better", "better_than_local", 100, 0, False),
    ("gain", "gain_over_local", 100, 1, False),
    ("MB up", "bytes_up_per_round", 1e-6, 1, False),
    ("time", "seconds", 1, 0, False),
]
LEGEND_LAST = " (last: in the last round)"
LEGEND = (
    "In percent. personal: mean accuracy of the clients' own models in the round chosen on "
    f"validation data, where there are any{LEGEND_LAST}; common: of the one model for all; std: "
    "spread over domains; worst: worst client; better: share of clients better off than alone "
    "(local); gain: mean gain over alone, in points. MB up: all uploads of a round. time: seconds."
)


@grouped
def compare(
    *,
    methods: Methods,
    world: World,
    metric: Metric = None,
    seeds: Seeds = "0",
    target: Target = None,
    against: Against = "local",
    set_: Set = None,
    tune: Tune = None,
    search: SearchOption = None,
    trials: Trials = None,
    out: ComparisonFolder = Path("runs/compare"),
    machine: Machine,
    log: Log = None,
    no_report: NoReport = False,
    printing: Printing,
) -> None:
    """Run several methods on the same federation and put them side by side.

    Examples:

        fedloom compare fedprox fedper --clients 8 --seeds 0,1,2 --set fedprox.mu=0.1

        fedloom compare fedbn --set norm=true --target 80

        fedloom compare fedprox ditto --tune lr=0.01,0.1 --tune mu=0.01,0.1,1

    Local and FedAvg always run too, since gains and losses are measured against them; FedAvg with
    local fine-tuning comes from FedAvg's runs. The command reuses finished runs in the folder and
    continues interrupted ones; it names a run that fails and goes on with the others. A setting
    with a method's name in front (`fedprox.mu`) applies to that method only. With --tune, every
    method, these two included, first gets the same number of runs to find its settings on
    validation data.
    """
    from ..experiments.compare import compare as carry_out
    from ..experiments.compare import plan, with_references
    from ..experiments.tune import Tuner

    if target is not None and not 1 <= target <= 100:
        raise FedloomError(f"--target is in percent, between 1 and 100, got {target:g}.")
    names = with_references(methods)
    changes = _changes(set_, machine, world, metric)
    configs = plan(names, _parse_seeds(seeds), world.start(), changes)
    tuner = None
    if tune or search or trials:
        tuning = _tuning(tune, search, trials)
        tuner = Tuner(tuning, names, _parse_seeds(seeds), world.start(), changes)
    title = f"{', '.join(names)} {_setting(configs)}"
    share = None
    if target is not None:
        share = target / 100
    with watching(_total_rounds(configs), printing.silent) as watch:
        board = carry_out(
            configs, out, watch, title, share, _loggers(log), not no_report, against, tuner=tuner
        )
    if printing.as_json:
        print_json(board)
    elif not printing.quiet:
        _print_leaderboard(board, out)
    if any(run["status"] == "failed" for run in board["runs"]):
        raise typer.Exit(1)


def _tuning(tune: list[str] | None, search: str | None, trials: int | None) -> Tuning:
    """What --tune, --search and --trials ask for."""
    from ..experiments.choice import parse_grid
    from ..experiments.tune import Tuning

    if not tune:
        raise FedloomError("--search and --trials say how --tune works: give --tune key=v1,v2 too.")
    return Tuning(parse_grid(tune, "--tune"), search or "grid", trials)


def _changes(
    set_: list[str] | None, machine: Machine, world: World, metric: str | None
) -> dict[str, Any]:
    """The settings of many runs, which take the pool unless the user names another executor."""
    from ..engine.config import parse_set

    settings = {"executor": "pool", **parse_set(set_ or [])}
    return machine.changes(settings, rounds=world.rounds, metric=metric)


def _setting(configs: Sequence[Config]) -> str:
    """What all runs have in common, as the end of a title."""
    return f"on {configs[0].data}, {configs[0].partition}"


def _total_rounds(configs: Sequence[Config]) -> int:
    return sum(config.schedule.rounds for config in configs)


def _parse_seeds(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise FedloomError(
            f"--seeds wants whole numbers separated by commas, got {text!r}."
        ) from None
    return list(dict.fromkeys(numbers))


def _print_leaderboard(board: Mapping[str, Any], out: Path) -> None:
    """Print the leaderboard on a terminal of 80 columns."""
    from ..experiments.leaderboard_text import cell, failures, remarks, sentences

    verdict = board.get("verdict")
    if verdict:
        console.print(f"[bold]{escape(verdict['line'])}[/]", highlight=False)
        for sentence in verdict["more"]:
            console.print(f"- {escape(sentence)}", highlight=False)
        console.print()
    columns = _columns(board)
    # A long name is folded; a figure cut short would be a wrong figure.
    table = Table(
        Column("method", overflow="fold"),
        box=box.SIMPLE_HEAD,
        title=board["title"],
        show_edge=False,
        pad_edge=False,
        padding=0,
    )
    for heading, *_ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    notes = []
    for row in board["rows"]:
        figures = []
        for _, column, factor, decimals, spread in columns:
            figures.append(cell(row, column, factor, decimals, spread, gap=""))
        table.add_row(row["method"], *figures)
        if row["note"]:
            notes.append(f"{row['method']}: {row['note']}")
    for reference in board["references"]:
        blank = ["-"] * len(columns)
        blank[_place_of_accuracy(columns)] = f"{100 * reference['value']:.1f}"
        table.add_row(reference["name"], *blank)
    console.print(table)
    console.print(_legend(board), highlight=False)
    print_paragraph(_tuned(board))
    print_paragraph(notes)
    print_paragraph(remarks(board))
    print_paragraph(sentences(board))
    print_paragraph(failures(board), "failed")
    print_line(f"\nreport: {(out / 'report.html').resolve()}")


def _columns(board: Mapping[str, Any]) -> list[Shown]:
    """The columns of the table; a headline other than accuracy comes first.

    It takes the place of accuracy in the last round, so the table stays narrow.
    """
    from ..metrics.registry import DEFAULT, headline

    metric = headline(board["settings"]["metric"])
    if metric.name == DEFAULT:
        return SHOWN
    heading = metric.name.replace("_", "\n")
    first: Shown = (heading, metric.name, metric.factor, metric.decimals, True)
    others = []
    for column in SHOWN:
        if column[1] == "gain_over_local":
            column = ("gain", column[1], metric.factor, metric.decimals, False)
        if column is not LAST:
            others.append(column)
    return [first, *others]


def _place_of_accuracy(columns: Sequence[Shown]) -> int:
    """Where the accuracy of personal models stands, with which a reference is compared."""
    names = [name for _, name, *_ in columns]
    return names.index("personal")


def _legend(board: Mapping[str, Any]) -> str:
    """What the columns mean."""
    from ..experiments.leaderboard_text import uncapped
    from ..metrics.registry import DEFAULT, headline

    metric = headline(board["settings"]["metric"])
    legend = LEGEND
    if metric.name != DEFAULT:
        legend = legend.replace(LEGEND_LAST, "")
        measured = f"mean gain over alone in {metric.in_a_sentence}, positive if better"
        legend = legend.replace("mean gain over alone, in points", measured)
        name = metric.name.replace("_", " ")
        legend += f" {name}: {uncapped(metric.explanation)}"
        if metric.unit != "percent":
            legend += " Not in percent."
    for reference in board["references"]:
        legend += f" {reference['name']}: {uncapped(reference['explanation'])}"
    if len(board["settings"]["seeds"]) > 1:
        legend += " ±: std over seeds; all other figures are means over seeds."
    return legend


def _tuned(board: Mapping[str, Any]) -> list[str]:
    """What was tuned, and what each method got."""
    from ..report.tuning import lines, summary

    tuning = board.get("tuning")
    if not tuning:
        return []
    texts = [summary(tuning)]
    for method, chosen, value, runs, combinations, seeds in lines(tuning):
        spent = f"{value} on validation data; runs: {runs}, combinations: {combinations}"
        texts.append(f"{method}: {chosen} ({spent}, seeds: {seeds})")
    return texts


def print_paragraph(lines: Sequence[str], name: str = "") -> None:
    """Print an empty line and some lines, each after a name in red; nothing if there are none."""
    if lines:
        console.print()
    front = ""
    if name:
        front = f"[bold red]{name}[/] "
    for line in lines:
        console.print(f"{front}{line}", highlight=False)


@grouped
def sweep(
    *,
    method: SweptMethod,
    grid: Grids,
    world: World,
    metric: Metric = None,
    seeds: Seeds = "0",
    set_: Set = None,
    out: SweepFolder = Path("runs/sweep"),
    machine: Machine,
    log: Log = None,
    printing: Printing,
) -> None:
    """Try every combination of some settings of a method; choose one on validation data only.

    Examples:

        fedloom sweep fedprox --grid mu=0.001,0.01,0.1,1 --clients 8 --seeds 0,1

        fedloom sweep fedavg --grid lr=0.01,0.05,0.1 --grid epochs=1,2,5 --out runs/lr

    The command reuses finished runs in the folder and continues interrupted ones. Two or more
    grids also give heat maps (SVG).
    """
    from ..experiments.choice import parse_grid
    from ..experiments.sweep import plan
    from ..experiments.sweep import sweep as carry_out

    values = parse_grid(grid)
    changes = _changes(set_, machine, world, metric)
    configs = plan(method, values, _parse_seeds(seeds), world.start(), changes)
    title = f"{', '.join(values)} of {method} {_setting(configs)}"
    with watching(_total_rounds(configs), printing.silent) as watch:
        board = carry_out(values, configs, out, watch, title, _loggers(log))
    if printing.as_json:
        print_json(board)
    elif not printing.quiet:
        _print_sweep(board, out)
    if any(row["failed"] for row in board["rows"]):
        raise typer.Exit(1)


def _print_sweep(board: Mapping[str, Any], out: Path) -> None:
    from ..experiments.sweep import legend, remark, shown

    table = Table(
        *board["grid"], "validation", "test", "", box=box.SIMPLE_HEAD, title=board["title"]
    )
    for row in board["rows"]:
        values = [str(value) for value in row["values"].values()]
        figures = [shown(board, row, "validation"), shown(board, row, "test")]
        table.add_row(*values, *figures, remark(board, row))
    console.print(table)
    console.print(legend(board), highlight=False)
    print_line(f"table: {(out / 'sweep.md').resolve()}")


def _loggers(names: str | None) -> Any:
    """A function that opens the loggers of a run, or None."""
    from ..loggers import LOGGERS, logging_to

    if not names:
        return None
    wanted = names.split(",")
    for name in wanted:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
    return lambda config, folder: logging_to(wanted, config, folder)

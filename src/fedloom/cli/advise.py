"""`fedloom advise`: from data to a verdict, for somebody who knows no method names."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Column, Table

from ..core.errors import FedloomError
from .groups import Machine, Printing, grouped
from .options import (
    Clients,
    EncoderOption,
    Metric,
    Model,
    Partition,
    Rounds,
    Set,
    console,
    errors,
    given,
    print_json,
    print_line,
    watching,
)

if TYPE_CHECKING:
    from ..experiments.advise.advice import Advice

DataName = Annotated[
    str, typer.Argument(metavar="DATA", help="A data set's name (see `fedloom data`) or a path.")
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="The budget; it decides how many methods, rounds and seeds are tried. Default: 20."
    ),
]
Points = Annotated[
    int | None,
    typer.Option(
        help="The budget in points (about seconds of a laptop) in place of minutes: no clock has a "
        "part in the answer, which is the same on any machine of one kind."
    ),
]
Tried = Annotated[
    str | None,
    typer.Option(
        "--methods",
        help="Comma-separated methods to try instead of a choice that fits the data; local, fedavg "
        "and fedavg-ft are always tried.",
    ),
]
FirstSeed = Annotated[int, typer.Option("--seed", help="The first seed.")]
AdviceFolder = Annotated[Path, typer.Option(help="The folder for runs, verdict and page.")]


@dataclass(frozen=True)
class Setting:
    """What the federation is."""

    partition: Partition = None
    clients: Clients = None
    model: Model = None
    encoder: EncoderOption = None


@grouped
def advise(
    *,
    data: DataName,
    setting: Setting,
    minutes: Minutes = None,
    points: Points = None,
    methods: Tried = None,
    rounds: Rounds = None,
    metric: Metric = None,
    seed: FirstSeed = 0,
    set_: Set = None,
    out: AdviceFolder = Path("runs/advise"),
    machine: Machine,
    printing: Printing,
) -> None:
    """Say whether to federate these data, and with which method.

    Examples:

        fedloom advise photos --minutes 20

        fedloom advise digits4 --partition domains --clients 8 --out runs/digits

    It looks at who has what, tries the methods that are made for such data on training samples
    that it sets aside, and adds seeds while the answer is in doubt. Test data are used once, for
    the figures of the verdict. The same question with the same seed has the same answer, unless
    the machine is so much slower that less fits the minutes; --points leaves no doubt. The command
    continues where it was interrupted.
    """
    from ..engine.config import parse_set
    from ..experiments.advise.advice import advise as answer
    from ..experiments.advise.question import Question
    from ..experiments.advise.world import World

    if minutes is not None and points is not None:
        raise FedloomError("--minutes and --points are two ways to give one budget: say one.")
    for name, value in {"minutes": minutes, "points": points}.items():
        if value is not None and value <= 0:
            raise FedloomError(f"--{name} must be above 0, got {value:g}.")
    settings = {"executor": "auto", **parse_set(set_ or [])}
    start = given(data=data, **vars(setting))
    asked: tuple[str, ...] = ()
    if methods:
        asked = tuple(methods.split(","))
    question = Question(
        World(start, machine.changes(settings, metric=metric)),
        out,
        minutes or 20.0,
        seed,
        rounds,
        asked,
        _command(data, setting, machine, metric, set_ or []),
        points,
    )
    with watching(1, printing.silent, on=errors) as watch:
        advice = answer(question, watch)
    if printing.as_json:
        print_json(advice.values)
    elif not printing.quiet:
        _print(advice)


def _command(
    data: str, setting: Setting, machine: Machine, metric: str | None, changes: Sequence[str]
) -> str:
    """The options that name these data and settings to other commands."""
    words = ["--data", data]
    named: dict[str, Any] = given(**vars(setting), **vars(machine), metric=metric)
    for name, value in named.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    for change in changes:
        words += ["--set", change]
    return f" {shlex.join(words)}"


def _print(advice: Advice) -> None:
    """Print the verdict, then what it rests on."""
    from ..metrics.registry import headline
    from ..report.advice_table import cells, heads

    metric = headline(advice.values["metric"])
    console.print(f"[bold]{advice.verdict}[/]", highlight=False)
    for note in advice.notes:
        console.print(f"  {note}", highlight=False, markup=False)
    print_line(f"\nnext: {advice.next}\n")
    for finding in advice.diagnosis["findings"]:
        console.print(f"{finding['title']}: {finding['sentence']}", highlight=False, markup=False)
    titles = heads(metric)
    columns: list[Any] = [Column(titles[0], overflow="fold")]
    for head in titles[1:-1]:
        columns.append(Column(head, justify="right"))
    table = Table(*columns, titles[-1], box=box.SIMPLE_HEAD, pad_edge=False)
    for row in advice.table:
        table.add_row(*cells(row, metric))
    console.print(table)
    print_line(f"page: {(advice.folder / 'advice.html').resolve()}")
    errors.print(_duration(advice), highlight=False, soft_wrap=True)


def _duration(advice: Advice) -> str:
    """How long it took, beside what was asked; not part of the answer, which repeats."""
    text = f"took {advice.seconds / 60:.1f} minutes here"
    points = f"--points {advice.values['budget']}"
    asked = advice.values["question"].get("minutes")
    if asked is not None:
        text += f" of {asked:g}"
        points += " with another --out"
    if not advice.values["complete"]:
        return f"{text}; {points} carries out all that was planned"
    return f"{text}; {points} repeats it exactly"

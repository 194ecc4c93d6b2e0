"""The commands for people who write methods or doubt them: `new`, `check` and `verify`."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, console, print_json, print_line

MARKS = {"fail": "[red]FAIL[/]", "pass": "[green]pass[/]", "n/a": "[dim]n/a [/]"}


def new(
    name: Annotated[str, typer.Argument(help="Name of the new method, such as `fedmine`.")],
    folder: Annotated[
        Path, typer.Option(help="Where to write, outside a checkout of fedloom.")
    ] = Path("."),
) -> None:
    """Write a method file, its page and its golden test to start from."""
    from ..testing.scaffold import write

    written = write(name, folder)
    for path in written:
        print_line(f"wrote {path}")
    method, _, test = written
    in_checkout = method.parent.name == "methods"
    spec = str(method)
    if in_checkout:
        spec = name
    print_line(
        f"next: `fedloom check {spec}`, `python -m pytest {test}`, "
        f"`fedloom run {spec} --clients 8 --rounds 5`; then make the method yours (CONTRIBUTING.md)"
    )
    if find_spec("pytest") is None:
        remedy = "pip install pytest"
        if in_checkout:
            remedy = "make venv"
        print_line(f"pytest is not installed here: `{remedy}` adds it.")


def check(
    method: Annotated[str, typer.Argument(help="A method's name, or your own `file.py`.")],
    as_json: AsJson = False,
) -> None:
    """Test a method against the contract that all methods keep.

    The contract covers determinism, resuming, difficult clients, counted bytes and more.
    """
    from ..testing.checks import run_checks

    results = []
    for result in run_checks(method):
        outcome = "pass"
        if result.error:
            outcome = "fail"
        elif not result.applies:
            outcome = "n/a"
        why = result.error or result.about
        results.append({"check": result.name, "outcome": outcome, "why": why})
        if not as_json:
            print_line(f"{MARKS[outcome]}  {result.name}: {why}")
    outcomes = [result["outcome"] for result in results]
    if as_json:
        print_json(results)
    else:
        counts = Counter(outcomes)
        console.print(
            f"{counts['pass']} passed, {counts['fail']} failed, {counts['n/a']} not for this "
            "method."
        )
    if "fail" in outcomes:
        raise typer.Exit(1)


def verify(
    method: Annotated[str, typer.Argument(help="A method that PFLlib has too, such as `fedper`.")],
    against: Annotated[
        Path, typer.Option(help="A checkout of PFLlib, with data that it has dealt out.")
    ],
    data: Annotated[str, typer.Option(help="The name of the data in the checkout.")] = "MNIST",
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 3,
    lr: Annotated[float, typer.Option(help="Step size of local training.")] = 0.005,
    batch: Annotated[int, typer.Option(min=1, help="Number of samples in a step.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of our side.")] = 0,
    python: Annotated[
        str | None, typer.Option(help="An interpreter with PFLlib's packages; default: this one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a method beside PFLlib's version of it, and print both accuracies after each round.

    The checkout's code is executed as it is, on the data in its folder `dataset`.
    """
    from ..experiments.verify import Work, verify

    work = Work(method, against.resolve(), data, rounds, lr, batch, seed)
    rows = verify(work, python or sys.executable)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_line("round  PFLlib  fedloom  difference")
    for row in rows:
        apart = 100 * (row.ours - row.theirs)
        print_line(
            f"{row.round:>5}  {100 * row.theirs:6.1f}  {100 * row.ours:7.1f}  {apart:+10.1f}"
        )

"""The commands for people who write a method: `new` and `check`."""

from __future__ import annotations

from collections import Counter
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

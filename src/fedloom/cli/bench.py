"""`fedloom bench`: the measurements in `benchmarks/`, from a checkout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import FedloomError
from .options import AsJson, benchmark, console, print_json, separated

ALL_JOBS = "a,b,c,d"  # of `bench speed --peers`

app = typer.Typer(help="Measure speed, memory and start-up time.", no_args_is_help=True)

Quick = Annotated[
    bool,
    typer.Option("--quick", help="Do less work, to see whether it runs; the goals do not apply."),
]
Peers = Annotated[
    bool,
    typer.Option(
        "--peers", help="Race other libraries, installed from the package index, on four jobs."
    ),
]
Jobs = Annotated[str, typer.Option(help="With --peers: which of the jobs a, b, c and d.")]
Only = Annotated[
    str,
    typer.Option(help="With --peers: beginnings of contenders' names, separated by semicolons."),
]
Pfllib = Annotated[
    Path | None, typer.Option(help="With --peers: a checkout of PFLlib, to race it too.")
]
Out = Annotated[Path, typer.Option(help="With --peers: the folder for results and picture.")]


@app.command()
def speed(
    quick: Quick = False,
    peers: Peers = False,
    jobs: Jobs = ALL_JOBS,
    only: Only = "",
    pfllib: Pfllib = None,
    out: Out = Path("runs/speed"),
    as_json: AsJson = False,
) -> None:
    """Measure the engine against a bare PyTorch loop, or with --peers against other libraries.

    Without --peers it also measures the pool against one process, and memory against the number
    of clients. Ratios come from one run on this machine; seconds mean little on another.
    """
    if not peers and (jobs != ALL_JOBS or only or pfllib):
        raise FedloomError("--jobs, --only and --pfllib are for --peers.")
    _warn(quick, as_json)
    if peers:
        names = separated(only, ";")
        benchmark("peers.cli").race(jobs.split(","), names, pfllib, quick, out, as_json)
        return
    figures = benchmark("speed").measure(quick=quick, say=_speaker(as_json))
    if as_json:
        print_json(figures)


@app.command()
def growth(as_json: AsJson = False) -> None:
    """Measure how a round's time and memory grow with the number of clients.

    There are 10 to 10 000 clients with small images, or 100 000 with small vectors; 50 of them
    take part in each round.
    """
    rows = benchmark("growth").measure(say=_speaker(as_json))
    if as_json:
        print_json(rows)


@app.command()
def scale(as_json: AsJson = False) -> None:
    """Measure whole runs with a thousand to a million clients, 50 of them in each round.

    Every second round scores a sample of 1000 clients, the last one all of them.
    """
    rows = benchmark("scale").measure(say=_speaker(as_json))
    if as_json:
        print_json(rows)


@app.command()
def devices(as_json: AsJson = False) -> None:
    """Measure simulated time to a target with phones: wait for them, or take them as they come."""
    rows = benchmark("devices").measure(say=_speaker(as_json))
    if as_json:
        print_json(rows)


@app.command()
def launches(quick: Quick = False, as_json: AsJson = False) -> None:
    """Count what a training step asks of an accelerator: kernels, transfers and waits.

    The counts come from a pretend accelerator, so they are the same on every machine.
    """
    _warn(quick, as_json)
    figures = benchmark("launches").measure(quick=quick, say=_speaker(as_json))
    if as_json:
        print_json(figures)


@app.command()
def start(as_json: AsJson = False) -> None:
    """Measure start-up: `import fedloom` against `import torch`, and `fedloom --help`."""
    figures = benchmark("start").measure(say=_speaker(as_json))
    if as_json:
        print_json(figures)


def _warn(quick: bool, as_json: bool) -> None:
    """Say what the figures of less work are not."""
    if quick and not as_json:
        console.print("--quick: the goals are for the full work and mean nothing here.")


def _speaker(as_json: bool) -> Callable[[str], object] | None:
    """What prints a benchmark's lines as they come, unless the result is wanted as JSON."""
    if as_json:
        return None
    return lambda text: console.print(text, highlight=False)

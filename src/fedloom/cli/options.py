"""What the commands of the command line share: their options, and where they print."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..core.errors import FedloomError

console = Console()
errors = Console(stderr=True)

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any setting, `key=value`, as often as needed: `--set mu=0.1 --set lr=0.01`.",
        metavar="KEY=VALUE",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(help="Data set by name (see `fedloom data`) or path. Default: digits4."),
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="How data are dealt out (see `fedloom data list`). Default: by domain, or as the data come."
    ),
]
EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder", help="Frozen encoders (see `fedloom encoders`), commas between them."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="cnn, resnet10, resnet18, mlp, linear, projection, fasttext, unet, vpt. Default: what fits."
    ),
]
Clients = Annotated[
    int | None, typer.Option(help="Number of clients. Default: the partition's own.")
]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds. Default: 10.")]
Executor = Annotated[
    str | None,
    typer.Option(
        help="inplace (one process), pool (worker processes), auto (the quicker of the two), vmap or debug."
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="fp32, or bf16: networks compute with 16 bits, quicker where the processor can (docs/speed.md)."
    ),
]
Workers = Annotated[
    int | None, typer.Option(help="Processes of the pool, which it implies. Default: 2.")
]
Root = Annotated[
    str | None,
    typer.Option("--data-root", help="Where known data sets lie. Default: FEDLOOM_DATA."),
]
BadFile = Annotated[
    str | None,
    typer.Option(
        help="What to do with an unreadable image: refuse (default; names it) or skip (names it)."
    ),
]
Log = Annotated[
    str | None,
    typer.Option(help="Log to tensorboard, mlflow or wandb (extras), separated by commas."),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print nothing but errors and, with --json, the result."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def given(**values: Any) -> dict[str, Any]:
    """The options that were given."""
    return {k: v for k, v in values.items() if v is not None}


def execution(executor: str | None, workers: int | None) -> dict[str, Any]:
    """The options on how clients are executed; workers alone mean the pool."""
    if workers and executor not in (None, "pool", "auto"):
        raise FedloomError(f"--workers is for --executor pool and auto; {executor} is one process.")
    return given(executor=executor or ("pool" if workers else None), workers=workers)


def benchmark(name: str) -> Any:
    """A module of `benchmarks/`, which lies beside the package in a checkout and is no part of an installation."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "benchmarks" / "speed.py").is_file():
        raise FedloomError(
            "the benchmarks are not installed with the package: run this from a checkout of fedloom."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return import_module(f"benchmarks.{name}")

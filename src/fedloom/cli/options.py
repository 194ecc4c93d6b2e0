"""What the commands share: their options, and where they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..core.errors import FedloomError
from ..core.registry import Registry

if TYPE_CHECKING:
    from .progress import Watch

console = Console()
errors = Console(stderr=True)


def listed(group: str, package: str, decorator: str = "") -> str:
    """The names of a registry for a help text, from its files.

    The registry's module may import torch, which takes longer than reading the files.
    """
    names = Registry[Any]("", f"fedloom.{group}", package, decorator=decorator).listed()
    return ", ".join(names)


EXECUTORS = listed("executors", "fedloom.executors")
MODELS = listed("models", "fedloom.models", "register")
ADAPTERS = listed("adapters", "fedloom.adapters", "register")
PARTITIONS = listed("partitions", "fedloom.data.partitions", "register")
READERS = listed("readers", "fedloom.data.readers")
METRICS = listed("metrics", "fedloom.metrics", "metric")
SECTIONS = listed("sections", "fedloom.report.sections", "section")


def key_values(name: str, help: str) -> Any:
    """An option that takes `key=value` and may be repeated."""
    return typer.Option(name, help=help, metavar="KEY=VALUE")


Set = Annotated[
    list[str] | None,
    key_values(
        "--set", "Any setting as `key=value`; repeat it for more: `--set mu=0.1 --set lr=0.01`."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="A data set's name (see `fedloom data`), or a path that one of these reads: "
        f"{READERS}. Default: digits4."
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        help=f"How the data are dealt to clients: {PARTITIONS} (see `fedloom data list`). "
        "Default: by domain, or as the data come."
    ),
]
EncoderOption = Annotated[
    str | None,
    typer.Option("--encoder", help="Frozen encoders (see `fedloom encoders`), comma-separated."),
]
Model = Annotated[
    str | None,
    typer.Option(
        help=f"The network: {MODELS} (see `fedloom models`). Default: what fits the data."
    ),
]
AdapterOption = Annotated[
    str | None,
    typer.Option(
        "--adapter",
        help=f"What is trained of a network that stays as it is otherwise: {ADAPTERS} "
        "(docs/adapters.md). Default: all of it.",
    ),
]
Clients = Annotated[
    int | None, typer.Option(help="Number of clients. Default: the partition decides.")
]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds. Default: 10.")]
Seed = Annotated[
    int | None, typer.Option(help="The seed of everything that is random. Default: 0.")
]
Executor = Annotated[
    str | None,
    typer.Option(
        help=f"How clients are executed: {EXECUTORS}. `inplace` is one process, `pool` several, "
        "`auto` the quicker of the two."
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        help="The metric that comes first, chooses the round on validation data and stops early: "
        f"{METRICS}. Default: accuracy."
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="fp32, or bf16 for networks that compute with 16 bits, which is quicker on "
        "processors that support it (docs/speed.md); tf32 is for CUDA, and fp16 pays on "
        "accelerators only (docs/devices.md)."
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Where networks compute: cpu, cuda, cuda:1, cuda:0,1 (for a pool), mps, xpu or auto "
        "(docs/devices.md). Default: cpu.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(help="Number of worker processes; implies the pool. Default: 2.")
]
Root = Annotated[
    str | None,
    typer.Option(
        "--data-root", help="The folder that holds the known data sets. Default: FEDLOOM_DATA."
    ),
]
BadFile = Annotated[
    str | None,
    typer.Option(
        help="What to do about an unreadable image: `refuse` the data (default) or `skip` the "
        "file. Both name it."
    ),
]
Log = Annotated[
    str | None,
    typer.Option(help="Log to tensorboard, mlflow or wandb (extras), comma-separated."),
]
NoReport = Annotated[
    bool, typer.Option("--no-report", help="Write no report.html and no partition.png for a run.")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Execute the method file that the folder or run file names: do so only if you know "
        "who wrote it.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print only errors and, with --json, the result."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def given(**values: Any) -> dict[str, Any]:
    """The options that the user has set."""
    return {name: value for name, value in values.items() if value is not None}


def separated(text: str | None, separator: str = ",") -> list[str]:
    """The names in a list such as `fedavg,fedprox`; none in an option that is not set."""
    names = []
    for name in (text or "").split(separator):
        if name:
            names.append(name)
    return names


def execution(
    executor: str | None, workers: int | None, device: str | None = None
) -> dict[str, Any]:
    """The options that say how clients are executed; workers alone mean the pool."""
    if workers and executor is None:
        executor = "pool"
    if workers and executor not in ("pool", "auto"):
        raise FedloomError(f"--workers is for --executor pool and auto; {executor} is one process.")
    return given(executor=executor, workers=workers, device=device)


def print_line(text: str) -> None:
    """Print a line as it is: no colours, no breaks that would cut a path or a command in two."""
    console.print(text, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a result for other programs."""
    print(json.dumps(value, indent=1))


@contextmanager
def watching(rounds: int, quiet: bool, again: str = "", on: Console = console) -> Iterator[Watch]:
    """A progress display; Ctrl-C names the command that continues the work."""
    from .progress import Watch

    with Watch(on, rounds, quiet) as watch:
        try:
            yield watch
        except KeyboardInterrupt:
            command = "the same command"
            if again:
                command = f"`{again}`"
            errors.print(
                f"stopped; {command} continues from the last checkpoint.",
                highlight=False,
                soft_wrap=True,
            )
            raise typer.Exit(130) from None


def benchmark(name: str) -> Any:
    """A module of `benchmarks/`, which a checkout has and an installed package does not."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "benchmarks" / "speed.py").is_file():
        raise FedloomError(
            "the benchmarks are not installed with the package: "
            "run this from a checkout of fedloom."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return import_module(f"benchmarks.{name}")

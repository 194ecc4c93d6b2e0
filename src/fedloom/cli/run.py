"""The commands for one run: `run`, `resume`, `personalise`, `export`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import FedloomError
from .groups import Machine, Printing, World, grouped
from .options import (
    BadFile,
    DeviceOption,
    Executor,
    Log,
    Metric,
    NoReport,
    Seed,
    Set,
    Trust,
    Workers,
    console,
    execution,
    print_json,
    print_line,
    watching,
)
from .predict import Client

if TYPE_CHECKING:
    from ..deploy import Personal
    from ..engine.config import Config
    from ..engine.engine import Callback
    from ..engine.folder import Run

What = Annotated[
    str,
    typer.Argument(
        metavar="METHOD|FILE",
        help="A method (see `fedloom methods`), your own `file.py`, or a run file `recipe.toml`.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="The run folder. Default: runs/METHOD-DATA-PARTITION-sSEED-HASH."),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start from scratch even if the folder holds a run.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Onnx = Annotated[
    bool,
    typer.Option("--onnx", help="Write ONNX too, checked with onnxruntime (extra `onnx`)."),
]


@grouped
def run(
    *,
    what: What,
    world: World,
    metric: Metric = None,
    seed: Seed = None,
    set_: Set = None,
    out: Out = None,
    machine: Machine,
    on_bad_file: BadFile = None,
    log: Log = None,
    fresh: Fresh = False,
    no_report: NoReport = False,
    trust: Trust = False,
    printing: Printing,
) -> None:
    """Run one method on one federation; its folder holds config, metrics, summary and report.

    Examples:

        fedloom run fedavg --data digits4 --partition domains --clients 8 --rounds 10

        fedloom run fedprox --partition dirichlet --clients 20 --set beta=0.5 --set mu=0.1

        fedloom run fedbn --model resnet10 --set width=16 --executor pool --workers 2

        fedloom run recipes/digits4-fedper.toml --seed 1

    A setting belongs to the method (`mu`), the partition (`beta`), the model (`width`), training
    (`lr`, `batch`, `epochs`, `optimizer`, `momentum` ...) or the schedule (`ratio`, `dropouts`,
    `eval_every`, `patience` ...); `fedloom settings` explains them. Where two of them have the
    same key, name the one you mean, as in `training.lr`. You can stop the run at any moment and
    continue it with `fedloom resume DIR`; the numbers stay the same.
    """
    from ..engine.config import parse_set

    changes = machine.changes(
        parse_set(set_ or []), rounds=world.rounds, metric=metric, on_bad_file=on_bad_file
    )
    config = configured(what, world.start(seed=seed), changes, trust)
    folder = out or Path("runs") / _folder_name(config)
    finished = _execute(config, folder, log, fresh, not no_report, printing.silent)
    _print_run(finished, printing)


def configured(
    what: str, start: dict[str, Any], changes: dict[str, Any], trust: bool = False
) -> Config:
    """The config of a method or a run file, with the options on top.

    Files of code that a run file names are executed only with `trust`.
    """
    from ..core.user_files import refuse_untrusted
    from ..engine.config import build, read

    if what.endswith(".toml"):
        body = read(Path(what)) | start
        if not trust:
            refuse_untrusted(body, what)
        return build(body, changes)
    return build({"method": what} | start, changes)


def _folder_name(config: Config) -> str:
    method = Path(config.method).stem
    data = Path(config.data).stem
    # The hash keeps runs apart that differ in other settings only.
    return f"{method}-{data}-{config.partition}-s{config.seed}-{config.hash()[:6]}"


def _execute(
    config: Config, folder: Path, log: str | None, fresh: bool, report: bool, quiet: bool
) -> Run:
    from ..engine.run import execute

    with (
        watching(config.schedule.rounds, quiet, f"fedloom resume {folder}") as watch,
        _logging(log, config, folder) as loggers,
    ):
        watch.begin(config.method)
        callbacks = [watch, *loggers, *_reports(report)]
        return execute(config, out=folder, callbacks=callbacks, fresh=fresh)


def _logging(
    log: str | None, config: Config, folder: Path
) -> AbstractContextManager[Sequence[Callback]]:
    """The loggers that the user names, closed at the end of the run."""
    if not log:
        return nullcontext([])
    from ..loggers import logging_to

    return logging_to(log.split(","), config, folder)


def _reports(wanted: bool) -> list[Callback]:
    if not wanted:
        return []
    from ..report.callback import Report

    return [Report()]


@grouped
def resume(
    *,
    folder: Annotated[Path, typer.Argument(help="The folder of an interrupted run.")],
    rounds: Annotated[
        int | None, typer.Option(help="Extend the run to this many rounds in all.")
    ] = None,
    from_round: Annotated[
        int | None,
        typer.Option(help="Do the rounds after this one again; it must have a checkpoint."),
    ] = None,
    executor: Executor = None,
    workers: Workers = None,
    device: DeviceOption = None,
    no_report: NoReport = False,
    trust: Trust = False,
    printing: Printing,
) -> None:
    """Continue an interrupted run; the result is the same as if nothing had interrupted it."""
    from ..core.lookup import refuse_untrusted
    from ..engine.folder import Run
    from ..engine.run import resume as resume_run
    from ..engine.run import roll_back

    if from_round is not None:
        roll_back(folder, from_round)
        if (folder / "federation-log.json").exists():
            print_line(
                f"{folder} is back at round {from_round}; `flwr run` of its app continues it"
            )
            return
    earlier = Run.load(folder, trust)
    method = earlier.config.method
    refuse_untrusted(method, folder)
    options = execution(executor, workers, device)
    total = rounds or earlier.config.schedule.rounds
    longer = total > earlier.config.schedule.rounds
    if earlier.timing and (longer or not earlier.finished) and not printing.silent:
        _print_where_it_continues(earlier, device or earlier.config.execution.device)
    with watching(total, printing.silent, f"fedloom resume {folder}") as watch:
        watch.begin(method)
        callbacks = [watch, *_reports(not no_report)]
        finished = resume_run(folder, rounds=rounds, callbacks=callbacks, **options)
    _print_run(finished, printing)


def _print_where_it_continues(run: Run, device: str) -> None:
    """After which round and, if that is another one, on which device."""
    from ..core.device import find as find_devices

    method, last = run.config.method, run.timing[-1]
    print_line(f"{method}: continuing after round {last['round']}")
    before = last.get("device", "cpu")
    now = ",".join(map(str, find_devices(device)))
    if before != now:
        print_line(f"{method}: computed on {before} so far, from now on {now}")


def _print_run(run: Run, printing: Printing) -> None:
    if printing.as_json:
        print_json(run.summary)
        return
    if printing.quiet:
        return
    from .progress import accuracy_line

    accuracy = "nothing evaluated"
    if run.metrics:
        accuracy = accuracy_line(run.metrics[-1], run.config.schedule.metric)
    line = f"{run.config.method}: {accuracy} after round {run.summary['rounds']}"
    print_line(line)
    for text in (_best_by_validation(run), *_outside(run), _figures(run), _cost(run)):
        if text:
            print_line(text)
    for remark in run.summary.get("remarks", []):
        print_line(f"{run.config.method} {remark}.")
    print_line(f"run: {run.folder}")
    if run.folder and (run.folder / "report.html").exists():
        print_line(f"report: {(run.folder / 'report.html').resolve()}")
    if run.reused:
        console.print(
            "The folder holds this run already, finished, so nothing was computed "
            "(`fedloom run --fresh` computes it again)."
        )


def _best_by_validation(run: Run) -> str:
    """The headline in the round that validation data choose; empty without such data."""
    from .progress import accuracy_line

    best = run.summary["chosen_rounds"].get("best_by_validation")
    for record in run.metrics:
        if record["round"] == best:
            accuracy = accuracy_line(record, run.config.schedule.metric)
            return f"best by validation: {accuracy} in round {best}"
    return ""


def _outside(run: Run) -> list[str]:
    """A line for each name under which clients that never train are scored."""
    lines = []
    for group, stages in run.summary.get("outside", {}).items():
        figures = [
            f"{stage} {figure['last']:.1%}"
            for stage, figure in stages.items()
            if figure is not None
        ]
        lines.append(f"never trained, {group}: {'  '.join(figures) or 'no model'}")
    return lines


def _figures(run: Run) -> str:
    """What the method itself measures, in a line; empty if it does not."""
    figures = run.summary.get("figures", {})
    told = [f"{name.replace('_', ' ')} {found['last']:.3g}" for name, found in figures.items()]
    return f"measured: {', '.join(told)}" if told else ""


def _cost(run: Run) -> str:
    """What the run took, in a line."""
    summary = run.summary
    up = summary["bytes"]["up"]["total"] / 1e6
    down = summary["bytes"]["down"]["total"] / 1e6
    return (
        f"cost: {summary['seconds']:.1f} s, {up:.1f} MB up and {down:.1f} MB down in all, "
        f"{summary['peak_rss_mb']:.0f} MB of memory"
    )


@grouped
def personalise(
    *,
    folder: RunFolder,
    data: Annotated[
        str, typer.Option(help="The newcomer's samples: a folder, or any other data set.")
    ],
    out: Annotated[Path | None, typer.Option(help="Write the model to this folder.")] = None,
    onnx: Onnx = False,
    device: DeviceOption = None,
    trust: Trust = False,
    printing: Printing,
) -> None:
    """Make a personal model for a client that joins after training, from a few of its samples.

    Examples:

        fedloom personalise runs/pets --data my_pets --out my_model

    Class folders are matched with the run's classes by name. Samples in a folder `test` are only
    tested on; without such a folder, some samples are held out, as in any data set. The first
    line of the output says how many. The model that is written is the one after the newcomer's own
    work, even where that is worse than the model as it comes.
    """
    from ..deploy import export as write
    from ..deploy import personalise as make

    if onnx and out is None:
        raise FedloomError("--onnx needs a folder to write to: add --out.")
    with watching(1, printing.silent) as watch:
        watch.begin("newcomer")
        newcomer = make(folder, data, progress=watch.encoding, trust=trust, device=device or "cpu")
    if out is not None:
        write(newcomer, out, onnx=onnx)
    if printing.as_json:
        written = None
        if out is not None:
            written = str(out)
        print_json(newcomer.described() | {"out": written})
    elif not printing.quiet:
        _print_newcomer(newcomer, out)


def _print_newcomer(newcomer: Personal, out: Path | None) -> None:
    if newcomer.before is None or newcomer.after is None:
        accuracy = "no test samples"
    else:
        accuracy = (
            f"test accuracy {100 * newcomer.before:.1f} % as it comes, "
            f"{100 * newcomer.after:.1f} % after its own work"
        )
    samples = f"{newcomer.train} training and {newcomer.test} test samples"
    print_line(f"{samples}, {newcomer.seconds:.1f} s; {accuracy}")
    if out is not None:
        print_line(f"model, after its own work: {out}")


def export(
    folder: RunFolder,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    client: Client = None,
    onnx: Onnx = False,
    device: DeviceOption = None,
    trust: Trust = False,
) -> None:
    """Write a trained model to a folder, with all that lies between a sample and its scores."""
    from ..deploy import export as write
    from ..deploy import trained

    served = trained(folder, client, trust=trust, device=device or "cpu")
    print_line(f"model: {write(served, out, onnx=onnx)}")

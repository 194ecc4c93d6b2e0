"""The command line. Heavy modules are imported inside commands, so that `--help` answers at once."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Column, Table

from ..core.errors import FedloomError
from . import report as report_cli
from .data import app as data_app
from .features import register as register_encoders
from .flower import app as flower_app
from .options import (
    AsJson,
    BadFile,
    Clients,
    Data,
    EncoderOption,
    Executor,
    Log,
    Model,
    Partition,
    Precision,
    Quiet,
    Root,
    Rounds,
    Set,
    Workers,
    benchmark,
    console,
    errors,
    execution,
)
from .options import given as _given

if TYPE_CHECKING:
    from ..engine.run import Run
    from .progress import Watch

ALL_JOBS = "a,b,c,d"  # of `bench speed --peers`

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests them too
    help="Federated learning when clients do not look alike: run, compare and check methods on one engine.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from ..core.version import __version__

        print(f"fedloom {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version)
    ] = False,
) -> None:
    pass


bench_app = typer.Typer(help="Standing measurements.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
app.add_typer(flower_app, name="flower")
app.command()(report_cli.report)
app.command()(report_cli.dash)
register_encoders(app, bench_app)


@app.command("run")
def run_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="METHOD|FILE",
            help="A method (see `fedloom methods`), your own `file.py`, or a run file `recipe.toml`.",
        ),
    ],
    data: Data = None,
    partition: Partition = None,
    model: Model = None,
    encoder: EncoderOption = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seed: Annotated[
        int | None, typer.Option(help="Everything random comes from it. Default: 0.")
    ] = None,
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder. Default: runs/METHOD-DATA-PARTITION-sSEED-HASH."),
    ] = None,
    precision: Precision = None,
    executor: Executor = None,
    workers: Workers = None,
    data_root: Root = None,
    on_bad_file: BadFile = None,
    log: Log = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew even if the folder holds a run.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run one method on one federation; the folder then holds config, metrics, summary, checkpoint and report.

    Examples:

        fedloom run fedavg --data digits4 --partition domains --clients 8 --rounds 10

        fedloom run fedprox --partition dirichlet --clients 20 --set beta=0.5 --set mu=0.1

        fedloom run fedbn --model resnet10 --set width=16 --executor pool --workers 2

        fedloom run recipes/digits4-fedper.toml --seed 1

    A setting belongs to the method (`mu`), the partition (`beta`), the model (`width`), training (`lr`, `batch`,
    `epochs`, `optimizer`, `momentum` ...) or the schedule (`ratio`, `dropouts`, `eval_every`, `patience` ...);
    `fedloom settings` explains them. Where two know the same key, say which, as in `training.lr`. The run can be
    stopped at any moment and continued with `fedloom resume DIR`; the numbers are the same.
    """
    from ..engine.config import build, parse_set, read
    from ..engine.run import execute
    from ..loggers import logging_to

    given: dict[str, Any] = read(Path(what)) if what.endswith(".toml") else {"method": what}
    given |= _given(
        data=data, partition=partition, model=model, encoder=encoder, clients=clients, seed=seed
    )
    changes = parse_set(set_ or [])
    changes |= execution(executor or changes.get("executor"), workers)
    changes |= _given(
        rounds=rounds, precision=precision, data_root=data_root, on_bad_file=on_bad_file
    )
    config = build(given, changes)
    # The hash keeps runs apart that differ in other settings only.
    name = f"{Path(config.method).stem}-{Path(config.data).stem}-{config.partition}-s{config.seed}-{config.hash()[:6]}"
    folder = out or Path("runs") / name
    names = log.split(",") if log else []
    again = f"fedloom resume {folder}"
    with (
        _watch(config.schedule.rounds, quiet or as_json, again) as watch,
        logging_to(names, config, folder) as loggers,
    ):
        watch.begin(config.method)
        done = execute(config, out=folder, callbacks=[watch, *loggers], fresh=fresh)
    _show(done, quiet, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an interrupted run.")],
    rounds: Annotated[
        int | None, typer.Option(help="Make the run longer: this many rounds in all.")
    ] = None,
    executor: Executor = None,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was interrupted; the result is the same as if it had not been."""
    from ..engine.run import Run
    from ..engine.run import resume as go_on

    there = Run.load(folder)
    config = there.config
    how = execution(executor, workers)
    if there.timing and not there.finished and not quiet and not as_json:
        console.print(
            f"{config.method}: rounds up to {there.timing[-1]['round']} were recorded",
            highlight=False,
        )
    with _watch(
        rounds or config.schedule.rounds, quiet or as_json, f"fedloom resume {folder}"
    ) as watch:
        watch.begin(config.method)
        done = go_on(folder, rounds=rounds, callbacks=[watch], **how)
    _show(done, quiet, as_json)


Onnx = Annotated[
    bool, typer.Option("--onnx", help="Also as ONNX, checked with onnxruntime (extra `onnx`).")
]


@app.command()
def personalise(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    data: Annotated[
        str, typer.Option(help="The newcomer's samples: a folder, or any other data set.")
    ],
    out: Annotated[Path | None, typer.Option(help="Write its model to this folder.")] = None,
    onnx: Onnx = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """A personal model for a client that comes after training: what the server knows, and a handful of its own samples.

    Examples:

        fedloom personalise runs/pets --data my_pets --out my_model

    Class folders are matched with the run's classes by name; samples in a folder `test` are only tested on. Where there
    is no such folder, some samples are held out for it, as in any data set: the first line says how many.
    """
    from ..deploy import export as write
    from ..deploy import personalise as make

    if onnx and out is None:
        raise FedloomError("--onnx needs a folder to write to: say --out.")
    with _watch(1, quiet or as_json) as watch:
        watch.begin("newcomer")
        found = make(folder, data, progress=watch.encoding)
    if out is not None:
        write(found.predict, found.worker, found.run.config, out, onnx=onnx)
    if as_json:
        print(json.dumps(found.described() | {"out": str(out) if out else None}, indent=1))
    elif not quiet:
        tested = (
            f"test accuracy {100 * found.before:.1f} % as it comes, {100 * found.after:.1f} % after its own work"
            if found.before is not None and found.after is not None
            else "no test samples"
        )
        console.print(
            f"{found.train} training and {found.test} test samples, {found.seconds:.1f} s; {tested}",
            highlight=False,
            soft_wrap=True,
        )
        if out is not None:
            console.print(f"model: {out}", highlight=False, soft_wrap=True)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    client: Annotated[
        int | None, typer.Option(help="A client's own model, by its number; else the common one.")
    ] = None,
    onnx: Onnx = False,
) -> None:
    """Write a trained model to a folder: model.safetensors and config.json, which `fedloom.deploy.load` reads."""
    from ..deploy import export as write
    from ..deploy import trained

    predict, worker, run = trained(folder, client)
    written = write(predict, worker, run.config, out, onnx=onnx)
    console.print(f"model: {written}", highlight=False, soft_wrap=True)


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method: its page, with its settings.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The methods at hand, with their settings and defaults; with a name, all about one."""
    from ..core.lookup import PLUGINS, find, make, names, plugins
    from ..core.method import Method
    from ..engine.settings import method_rows, plugin_rows, shown

    def about(cls: type[Method]) -> str:
        said = sys.modules[cls.__module__].__doc__ or ""
        return (
            f"{about(cls.plugged[0]).strip()}\n\n+{cls.plugged[1]}: {said}" if cls.plugged else said
        )

    if name is not None and not as_json:
        # Lines that were full go on with the next one, so that the text fits a terminal of any width.
        said = re.sub(
            r"(?m)^(\S.{94,})\n(?=\S)(?![A-Z][a-z ]+:)", r"\1 ", about(find(name)).strip()
        )
        console.print(said, highlight=False, markup=False)
        if found := method_rows(name):
            console.print(_settings_table(found))
        if own := find(name).traits.training:
            said = ", ".join(f"{key} = {value}" for key, value in own.items())
            console.print(
                f"Local training as in its paper, unless told otherwise: {said}.", highlight=False
            )
        return
    rows: list[dict[str, Any]] = [
        {
            "name": m.name,
            "about": about(type(m)).split("\n")[0],
            "model": "personal" if m.traits.personalised else "common",
            "settings": m.params(),
        }
        for m in map(make, names() if name is None else [name])
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(
        "method", "what it is", "gives", Column("settings", overflow="fold"), box=box.SIMPLE_HEAD
    )
    for row in rows:
        settings = ", ".join(f"{k}={shown(v)}" for k, v in row["settings"].items())
        table.add_row(row["name"], row["about"], f"{row['model']} model", settings)
    for plugin in plugins() if name is None else ():
        settings = ", ".join(f"{k}={v}" for k, v, _ in plugin_rows(plugin))
        table.add_row(
            f"...+{plugin}", about(PLUGINS.find(plugin)).split("\n")[0], "as the method", settings
        )
    console.print(table)


@app.command()
def models() -> None:
    """The networks at hand, with their options and defaults."""
    from .. import models as known
    from ..engine.settings import shown

    table = Table("model", "options", "what it is", box=box.SIMPLE_HEAD)
    for name in known.names():
        table.add_row(
            name,
            ", ".join(f"{k}={shown(v)}" for k, v in known.options(name).items()),
            known.doc(name),
        )
    console.print(table)


@app.command()
def settings(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The whole page, as in docs/settings.md.")
    ] = False,
) -> None:
    """Every setting of a run that is not the method's, partition's or model's own: key, default, meaning."""
    from ..engine import settings as known

    if markdown:
        print(known.markdown(), end="")
        return
    for section, (_, what) in known.SECTIONS.items():
        console.print(f"\n[bold]{section or 'run'}[/]: {what}", highlight=False)
        console.print(_settings_table(known.rows(section)))
    console.print(
        "Settings of a method: `fedloom methods NAME`; of partitions: `fedloom data list`; of models:"
    )
    console.print("`fedloom models`. Each is given with `--set key=value`.")


def _settings_table(rows: Iterable[tuple[str, str, str]]) -> Table:
    table = Table("key", "default", "meaning", box=box.SIMPLE_HEAD)
    for key, default, meaning in rows:
        table.add_row(escape(key), escape(default), escape(meaning))
    return table


@app.command()
def check(
    method: Annotated[str, typer.Argument(help="A method's name, or your own `file.py`.")],
    as_json: AsJson = False,
) -> None:
    """Put a method through the contract that every method must pass (determinism, resume, hard clients, bytes ...)."""
    from ..testing.checks import run_checks

    results = []
    for result in run_checks(method):
        outcome = "fail" if result.error else "pass" if result.applies else "n/a"
        results.append(
            {"check": result.name, "outcome": outcome, "why": result.error or result.about}
        )
        if not as_json:
            mark = {"fail": "[red]FAIL[/]", "pass": "[green]pass[/]", "n/a": "[dim]n/a [/]"}[
                outcome
            ]
            console.print(
                f"{mark}  {result.name}: {result.error or result.about}",
                highlight=False,
                soft_wrap=True,
            )
    failed = sum(r["outcome"] == "fail" for r in results)
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        passed = sum(r["outcome"] == "pass" for r in results)
        console.print(
            f"{passed} passed, {failed} failed, {len(results) - passed - failed} not for this method."
        )
    if failed:
        raise typer.Exit(1)


@app.command()
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
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    method, _, test = written
    spec = name if method.parent.name == "methods" else str(method)
    console.print(
        f"next: `fedloom check {spec}`, `pytest {test}`, `fedloom run {spec} --clients 8 --rounds 5`; "
        "then make the method yours (CONTRIBUTING.md)",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


@bench_app.command()
def speed(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Fewer samples and rounds, to see whether it runs: goals are for the full work.",
        ),
    ] = False,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers", help="Race other libraries, installed from the package index, on four jobs."
        ),
    ] = False,
    jobs: Annotated[
        str, typer.Option(help="With --peers: which of the jobs a, b, c and d.")
    ] = ALL_JOBS,
    only: Annotated[
        str,
        typer.Option(
            help="With --peers: only contenders whose names begin so, separated by semicolons."
        ),
    ] = "",
    pfllib: Annotated[
        Path | None, typer.Option(help="With --peers: a checkout of PFLlib, to race it too.")
    ] = None,
    out: Annotated[Path, typer.Option(help="With --peers: folder for results and picture.")] = Path(
        "runs/speed"
    ),
    as_json: AsJson = False,
) -> None:
    """Measure the engine against a bare PyTorch loop, the pool against one process, and memory against the number of
    clients; with --peers, the engine against other libraries on the same work. Ratios are of one run on this machine;
    seconds mean little elsewhere."""
    if not peers and (jobs != ALL_JOBS or only or pfllib):
        raise FedloomError("--jobs, --only and --pfllib are for --peers.")
    if quick and not as_json:
        console.print(
            "--quick: goals are for the full work, here they mean nothing.", highlight=False
        )
    if peers:
        benchmark("peers.cli").race(
            jobs.split(","), [name for name in only.split(";") if name], pfllib, quick, out, as_json
        )
        return
    figures = benchmark("speed").measure(
        quick=quick, say=None if as_json else lambda text: console.print(text, highlight=False)
    )
    if as_json:
        print(json.dumps(figures, indent=1))


@bench_app.command()
def growth(as_json: AsJson = False) -> None:
    """Measure how a round's time and memory grow with the number of clients: 10 to 10 000 with small images, 100 000
    with small vectors, 50 of them in each round."""
    rows = benchmark("growth").measure(
        say=None if as_json else lambda text: console.print(text, highlight=False)
    )
    if as_json:
        print(json.dumps(rows, indent=1))


@bench_app.command()
def start(as_json: AsJson = False) -> None:
    """Measure how long the library takes to be there: `import fedloom` against `import torch`, and `fedloom --help`."""
    figures = benchmark("start").measure(
        say=None if as_json else lambda text: console.print(text, highlight=False)
    )
    if as_json:
        print(json.dumps(figures, indent=1))


@contextmanager
def _watch(rounds: int, quiet: bool, again: str = "") -> Iterator[Watch]:
    """A progress display; Ctrl-C says which command goes on."""
    from .progress import Watch

    with Watch(console, rounds, quiet) as watch:
        try:
            yield watch
        except KeyboardInterrupt:
            said = f"`{again}`" if again else "the same command"
            errors.print(
                f"stopped; {said} goes on from the last checkpoint.",
                highlight=False,
                soft_wrap=True,
            )
            raise typer.Exit(130) from None


def _show(run: Run, quiet: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps(run.summary, indent=1))
    elif not quiet:
        from .progress import accuracy_line

        rounds = run.summary["chosen_rounds"]
        held = (
            f", best by validation in round {rounds['best_by_validation']}"
            if rounds.get("best_by_validation")
            else ""
        )
        said = accuracy_line(run.metrics[-1]) if run.metrics else "nothing evaluated"
        console.print(
            f"{run.config.method}: {said} after round {run.summary['rounds']}{held}",
            highlight=False,
            soft_wrap=True,
        )
        console.print(f"run: {run.folder}", highlight=False, soft_wrap=True)
        if run.reused:
            console.print(
                "The folder held this run, finished; nothing was computed (`fedloom run` with --fresh does it anew)."
            )


def main() -> None:
    """Entry point: errors that the user can mend are one sentence and a non-zero exit."""
    warnings.showwarning = lambda message, *_, **__: errors.print(
        f"note: {message}", highlight=False, soft_wrap=True
    )
    try:
        app()
    except FedloomError as error:
        errors.print(f"error: {error}", highlight=False, soft_wrap=True, markup=False)
        sys.exit(2)


from . import experiments as _bench  # noqa: E402, F401  (registers compare, sweep and reproduce)

"""fedloom: personalised and domain-skewed federated learning on one engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.version import __version__

if TYPE_CHECKING:
    from torch import nn

    from . import report
    from .cli.progress import Watch
    from .core.errors import FedloomError
    from .core.local import Batch, Fit, Local, Worker
    from .core.lookup import method
    from .core.method import Method, Traits, Update
    from .core.payload import Payload
    from .core.roles import Roles
    from .core.tree import Mean, Tree
    from .data.federation import Dataset, Federation, federate
    from .deploy import Prediction
    from .engine.config import Config
    from .engine.engine import Callback
    from .engine.folder import Run
    from .experiments.advise.advice import Advice
    from .experiments.outcome import Comparison, Sweep
    from .experiments.plan import Dealer

# Loaded when first used, so that `fedloom --help` does not wait for torch.
_HOME = {
    **dict.fromkeys(("Dataset", "Federation", "federate"), "data.federation"),
    **dict.fromkeys(("Batch", "Fit", "Local", "Worker"), "core.local"),
    **dict.fromkeys(("Method", "Traits", "Update"), "core.method"),
    **dict.fromkeys(("Mean", "Tree"), "core.tree"),
    **dict.fromkeys(("Comparison", "Sweep"), "experiments.outcome"),
    "Prediction": "deploy",
    "Callback": "engine.engine",
    "FedloomError": "core.errors",
    "Payload": "core.payload",
    "Roles": "core.roles",
    "Run": "engine.folder",
    "method": "core.lookup",
}

__all__ = [
    "Batch",
    "Callback",
    "Comparison",
    "Dataset",
    "Federation",
    "FedloomError",
    "Fit",
    "Local",
    "Mean",
    "Method",
    "Payload",
    "Prediction",
    "Roles",
    "Run",
    "Sweep",
    "Traits",
    "Tree",
    "Update",
    "Worker",
    "__version__",
    "advise",
    "compare",
    "export",
    "federate",
    "method",
    "predict",
    "report",
    "resume",
    "run",
    "sweep",
]


def run(
    method: str | Method = "fedavg",
    federation: str | Federation | Dataset = "digits4",
    *,
    partition: str = "auto",
    clients: int | None = None,
    model: str | nn.Module | Callable[[], nn.Module] = "auto",
    seed: int = 0,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    fresh: bool = False,
    report: bool = True,
    progress: bool | None = None,
    **settings: Any,
) -> Run:
    """Run a method on a federation and return the `Run`: `fedloom run` without the shell.

    `federation` is the name of a data set or a `Dataset`, which `partition` and `clients` deal out,
    or a `Federation`. `model` is a name, a function that builds your own network (its first weights
    then depend on the seed) or a network as it is. With `report`, the folder gets a page about the
    run. `progress` shows a bar, by default in notebooks only. All other keywords are settings, as
    with `--set`: `run("fedprox", mu=0.1, rounds=20, lr=0.01)`.
    """
    from rich.console import Console

    from .cli.progress import Watch
    from .engine.run import run
    from .engine.schedule import Schedule

    console = Console()
    if progress is None:
        progress = console.is_jupyter
    rounds = settings.get("rounds", Schedule().rounds)
    with Watch(console, rounds, quiet=not progress) as watch:
        return run(
            method,
            federation,
            partition=partition,
            clients=clients,
            model=model,
            seed=seed,
            out=out,
            callbacks=[watch, *_with_report(callbacks, report and out is not None)],
            fresh=fresh,
            **settings,
        )


def advise(
    federation: str | Federation = "digits4",
    *,
    minutes: float = 20.0,
    points: int | None = None,
    methods: Sequence[str] = (),
    rounds: int | None = None,
    partition: str = "auto",
    clients: int | None = None,
    model: str = "auto",
    encoder: str | None = None,
    seed: int = 0,
    out: str | Path = "runs/advise",
    quiet: bool = False,
    **settings: Any,
) -> Advice:
    """Say whether to federate, and with which method: `fedloom advise` without the shell.

    The answer has a `verdict` in one line, `notes` on it, the `diagnosis`, a `table` of the methods
    tried, and the `next` command. `minutes` is the budget, and `points` one that no clock has a
    part in; `methods` are tried in place of a choice that fits the data. All other keywords are
    settings, as with `--set`.
    """
    from rich.console import Console

    from .cli.progress import Watch
    from .experiments.advise.advice import advise
    from .experiments.advise.question import Question
    from .experiments.advise.world import World

    given = {"partition": partition, "clients": clients, "model": model, "encoder": encoder}
    changes = {"executor": "auto", **settings}
    if isinstance(federation, str):
        world = World({"data": federation, **given}, changes)
    else:
        world = World.of(federation, given, changes)
    question = Question(world, Path(out), minutes, seed, rounds, tuple(methods), points=points)
    with Watch(Console(), 1, quiet) as watch:
        return advise(question, watch)


def compare(
    methods: Sequence[str],
    federation: str | Federation | Dataset = "digits4",
    *,
    seeds: Sequence[int] = (0,),
    metric: str | None = None,
    target: float | None = None,
    against: str = "local",
    tune: Mapping[str, Sequence[Any]] | None = None,
    search: str = "grid",
    trials: int | None = None,
    partition: str = "auto",
    clients: int | None = None,
    model: str = "auto",
    encoder: str | None = None,
    out: str | Path = "runs/compare",
    report: bool = True,
    quiet: bool = False,
    **settings: Any,
) -> Comparison:
    """Put methods side by side, `local` and `fedavg` always among them: `fedloom compare`.

    The `Comparison` has a `verdict` in one line and `notes` on it, a `table` of the methods (also
    `to_pandas`), their `runs`, and the `page` of the report. `target` is an accuracy, as a share.
    Finished runs in the folder `out` are used again. All other keywords are settings, as with
    `--set`; those of one method have its name in front: `**{"fedprox.mu": 0.1}`.

    With `tune`, values for settings as in `{"lr": [0.01, 0.1], "mu": [0.1, 1]}`, every method first
    gets the same number of runs (`trials`) to find its own on validation data; `search` is `grid`,
    `random` or `tpe`, and `chosen` of the comparison has what each method got.
    """
    from .experiments.compare import compare, plan, with_references
    from .experiments.outcome import Comparison
    from .experiments.tune import Tuner, Tuning

    given, dealer, settings = _world(
        federation, settings, seeds, partition, clients, model=model, encoder=encoder
    )
    names = with_references(methods)
    if metric:
        settings["metric"] = metric
    configs = plan(names, seeds, given, settings)
    tuner = None
    if tune is not None:
        tuner = Tuner(Tuning(tune, search, trials), names, seeds, given, settings)
    title = f"{', '.join(names)} on {configs[0].data}, {configs[0].partition}"
    folder = Path(out)
    with _watching(configs, quiet) as watch:
        board = compare(
            configs,
            folder,
            watch,
            title,
            target,
            report=report,
            against=against,
            dealer=dealer,
            tuner=tuner,
        )
    return Comparison(board, folder)


def sweep(
    method: str,
    grid: Mapping[str, Sequence[Any]],
    federation: str | Federation | Dataset = "digits4",
    *,
    seeds: Sequence[int] = (0,),
    metric: str | None = None,
    partition: str = "auto",
    clients: int | None = None,
    model: str = "auto",
    encoder: str | None = None,
    out: str | Path = "runs/sweep",
    report: bool = True,
    quiet: bool = False,
    **settings: Any,
) -> Sweep:
    """Try every combination of some settings; choose one on validation data: `fedloom sweep`.

    `grid` has the values of each setting: `{"mu": [0.01, 0.1], "lr": [0.01, 0.1]}`. The `Sweep` has
    the `chosen` values and a `table` of all points (also `to_pandas`). With `report`, each run gets
    a picture of who has what.
    """
    from .experiments.outcome import Sweep
    from .experiments.sweep import plan, sweep

    given, dealer, settings = _world(
        federation, settings, seeds, partition, clients, model=model, encoder=encoder
    )
    values = {key: list(dict.fromkeys(each)) for key, each in grid.items()}
    if metric:
        settings["metric"] = metric
    configs = plan(method, values, seeds, given, settings)
    title = f"{', '.join(values)} of {method} on {configs[0].data}, {configs[0].partition}"
    folder = Path(out)
    with _watching(configs, quiet) as watch:
        board = sweep(values, configs, folder, watch, title, dealer=dealer, report=report)
    return Sweep(board, folder)


def _world(
    federation: str | Federation | Dataset,
    settings: dict[str, Any],
    seeds: Sequence[int],
    partition: str,
    clients: int | None,
    **given: Any,
) -> tuple[dict[str, Any], Dealer | None, dict[str, Any]]:
    """What configs start from, who deals the data out, and the settings that are left."""
    from .data.federation import Dataset, federate
    from .engine.run import DEALING
    from .experiments.plan import Given, described

    changes = {"executor": "auto", **settings}
    if isinstance(federation, str):
        start = {"data": federation, "partition": partition, "clients": clients, **given}
        return start, None, changes
    if not isinstance(federation, Dataset):
        return described(federation, given), Given(lambda seed: federation), changes
    data = federation
    dealing = {key: settings[key] for key in DEALING if key in settings}

    def deal(seed: int) -> Federation:
        return federate(data, partition, clients=clients, seed=seed, **dealing)

    return described(deal(seeds[0]), given), Given(deal), changes


def _watching(configs: Sequence[Config], quiet: bool) -> Watch:
    """Shows how far many runs have got."""
    from rich.console import Console

    from .cli.progress import Watch

    rounds = sum(config.schedule.rounds for config in configs)
    return Watch(Console(), rounds, quiet)


def export(
    run: str | PathLike[str],
    out: str | Path,
    *,
    client: int | str | None = None,
    onnx: bool = False,
    trust: bool = False,
) -> Path:
    """Write a trained model to a folder, with all that lies between a sample and its scores.

    `run` is a `Run` or its folder. The common model is meant, or that of a `client`, by its number
    or name. `trust` allows a method file that the folder names to be executed.
    """
    from .deploy import export, trained

    return export(trained(Path(run), client, trust=trust), out, onnx=onnx)


def predict(
    model: str | PathLike[str],
    samples: str | Path | Sequence[str | Path],
    *,
    client: int | str | None = None,
    trust: bool = False,
) -> list[Prediction]:
    """Classes with probabilities for images, or for the rows of a CSV file: `fedloom predict`.

    `model` is an exported folder, a `.onnx` file, or a `Run` or its folder; a run has a model for
    each `client`, and perhaps a common one.
    """
    from .deploy import predict

    return predict(Path(model), samples, client=client, trust=trust)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    callbacks: Sequence[Callback] = (),
    report: bool = True,
    **execution: Any,
) -> Run:
    """Continue an interrupted run; a finished one is returned as it is.

    `rounds` makes a run longer. `execution` may change where and how fast it runs (`executor`,
    `workers`).
    """
    from .engine.run import resume

    return resume(folder, rounds=rounds, callbacks=_with_report(callbacks, report), **execution)


def _with_report(callbacks: Sequence[Callback], report: bool) -> Sequence[Callback]:
    if not report:
        return callbacks
    from .report.callback import Report

    return [*callbacks, Report()]


def __getattr__(name: str) -> Any:
    if name == "report":  # a package that can be called, see there
        return import_module(".report", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'fedloom' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""fedloom: personalised and domain-skewed federated learning on one engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from .core.errors import FedloomError
    from .core.local import Batch, Fit, Local, Worker
    from .core.lookup import method
    from .core.method import Method, Traits, Update
    from .core.payload import Payload
    from .core.roles import Roles
    from .core.tree import Mean, Tree
    from .data.federation import Dataset, Federation, federate
    from .engine.engine import Callback
    from .engine.folder import Run

# Loaded when first used, so that `fedloom --help` does not wait for torch.
_HOME = {
    **dict.fromkeys(("Dataset", "Federation", "federate"), "data.federation"),
    **dict.fromkeys(("Batch", "Fit", "Local", "Worker"), "core.local"),
    **dict.fromkeys(("Method", "Traits", "Update"), "core.method"),
    **dict.fromkeys(("Mean", "Tree"), "core.tree"),
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
    "Dataset",
    "Federation",
    "FedloomError",
    "Fit",
    "Local",
    "Mean",
    "Method",
    "Payload",
    "Roles",
    "Run",
    "Traits",
    "Tree",
    "Update",
    "Worker",
    "__version__",
    "federate",
    "method",
    "resume",
    "run",
]


def run(
    method: str | Method = "fedavg",
    federation: str | Federation = "digits4",
    *,
    partition: str = "auto",
    clients: int | None = None,
    model: str | nn.Module | Callable[[], nn.Module] = "auto",
    seed: int = 0,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    fresh: bool = False,
    report: bool = True,
    **settings: Any,
) -> Run:
    """Run a method on a federation and return the `Run`: `fedloom run` without the shell.

    `federation` is the name of a data set, which `partition` and `clients` deal out, or a
    `Federation`. `model` is a name, a function that builds your own network (its first weights then
    depend on the seed) or a network as it is. With `report`, the folder gets a page about the run.
    All other keywords are settings, as with `--set`: `run("fedprox", mu=0.1, rounds=20, lr=0.01)`.
    """
    from .engine.run import run

    return run(
        method,
        federation,
        partition=partition,
        clients=clients,
        model=model,
        seed=seed,
        out=out,
        callbacks=_with_report(callbacks, report and out is not None),
        fresh=fresh,
        **settings,
    )


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
    if name not in _HOME:
        raise AttributeError(f"module 'fedloom' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)

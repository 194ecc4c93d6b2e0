"""Carry out a run: `run` starts one, `resume` continues one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..client.worker import ClientWorker
from ..core.device import find as find_devices
from ..core.errors import FedloomError
from ..core.files import write_atomic
from ..core.method import Method, PromisesPrivacy
from ..core.rng import key
from ..data.catalogue import MODEL_FOR
from ..data.dataset import Dataset
from ..data.described import FILE as CLIENTS
from ..data.described import arrays, many
from ..data.federation import Federation, federate
from ..data.fingerprint import fingerprint
from ..data.views import WithPixels
from ..executors import EXECUTORS
from ..executors.base import Executor
from ..metrics.privacy import accountant
from . import config as configs
from . import made_with
from .asynchronous import Asynchronous
from .checkpoint import Checkpoint, Store
from .config import Config
from .engine import Callback, Engine, first
from .everybody import everybody
from .folder import Run, begun, locked, refuse_changes, same_run
from .networks import GIVEN
from .record import Recorder
from .setup import Setup
from .summary import summary
from .swings import warn_of_swings
from .timekeeper import Timekeeper

# A network that was made in Python, or those of several; None: it is named.
Own = nn.Module | Sequence[nn.Module | None] | None
# Settings that say how samples are cut.
DEALING = ("validation", "split", "merged_share", "hold_out", "new_clients")


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
    **settings: Any,
) -> Run:
    """Run a method on a federation and return the `Run`; see `fedloom.run`."""
    given: dict[str, Any] = {"seed": seed, "clients": clients, "partition": partition}
    given |= {"method": method, "model": model, "data": federation}
    own_method, own_federation = None, None
    own: Own = _own_network(model, seed)
    if settings.get("networks"):
        settings["networks"], own = _told_apart(settings["networks"], seed)
    encoded = False
    if isinstance(federation, Dataset):
        dealing = {key: settings[key] for key in DEALING if key in settings}
        federation = federate(federation, partition, clients=clients, seed=seed, **dealing)
    if isinstance(method, Method):
        given |= {"method": type(method).origin or method.name, "hyper": method.params()}
    if not isinstance(model, str):
        given["model"] = "given"
    if isinstance(federation, Federation):
        own_federation = federation
        given |= {"data": federation.data.name, "partition": "given", "clients": len(federation)}
        if model == "auto" and not settings.get("networks"):
            given["model"] = MODEL_FOR[federation.data.kind]
        data = federation.data
        encoded = data.encoder is not None and not isinstance(data.x, WithPixels)
    config = configs.build(given, settings, encoded=encoded)
    if isinstance(method, Method):
        own_method = type(method)(**config.hyper)
    return execute(
        config,
        out=out,
        callbacks=callbacks,
        fresh=fresh,
        method=own_method,
        federation=own_federation,
        model=own,
    )


def execute(
    config: Config,
    *,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    fresh: bool = False,
    method: Method | None = None,
    federation: Federation | None = None,
    model: Own = None,
) -> Run:
    """Carry out a config. If the folder holds the same run already, continue it."""
    EXECUTORS.find(config.execution.executor)  # refuse a wrong name before any work
    find_devices(config.execution.device)
    run = Run(config, Path(out) if out else None)
    if run.folder and not fresh and begun(run.folder):
        run = same_run(run.folder, config)
        if run.finished:
            run.reused = True
            return run
        if run.federation.get("at_sites"):
            raise FedloomError(
                f"{run.folder} is a federation's run: `flwr run` of its app continues it."
            )
    setup = Setup.from_config(
        config, images=federation, method=method, model=model, progress=_encoding(callbacks)
    )
    run.federation = setup.described()
    if isinstance(setup.method, PromisesPrivacy) and setup.method.promise():
        accountant()  # refuse a run whose promise cannot be accounted for before it is computed
        if config.clock.runs or config.schedule.select != "uniform":
            raise FedloomError(
                f"{config.method} promises privacy, which is accounted for by who takes part by "
                "chance alone: leave out [clock] and select."
            )
    return carry_out(
        run, setup.worker, setup.executor, images=setup.images, callbacks=callbacks, fresh=fresh
    )


def carry_out(
    run: Run,
    worker: ClientWorker,
    executor: Callable[[], Executor],
    *,
    images: Federation | None = None,
    callbacks: Sequence[Callback] = (),
    fresh: bool = False,
) -> Run:
    """Go through the rounds of a run from its last checkpoint, and sum it up.

    `images` are the samples as they were dealt out: callbacks show them, and a run that is resumed
    must find them again. A server whose clients are elsewhere has none.
    """
    config = run.config
    data = fingerprint(images) if run.folder and images is not None else None
    start = Checkpoint(server=first(worker))
    # Nothing is written before this line, so a run that is refused leaves no folder behind.
    with locked(run.folder):
        origin = made_with.new(data)
        if run.folder and not fresh and begun(run.folder):
            origin = made_with.read(run.folder, data)
            origin.refuse_other_data(run.folder, data)
        store = run.open(fresh)
        if run.folder and many(worker.federation.clients):
            write_atomic(run.folder / CLIENTS, arrays(worker.federation).encode())
        saved = store.load()
        store.tidy()
        if run.folder:
            computing = made_with.computed_with(worker.devices)
            origin.going_on(saved.round, computing).write(run.folder)
        if run.folder and saved.server is not None:
            start = saved
            refuse_changes(run.folder, start, config)
        run.rewind(saved)
        for callback in callbacks:
            if hasattr(callback, "before_run"):
                callback.before_run(run, images)
        at_end = _rounds(run, worker, executor, callbacks, store, start)
        run.summary = summary(run, worker) | at_end
        if run.folder:
            content = json.dumps(run.summary, indent=1).encode()
            write_atomic(run.folder / "summary.json", content)
        for callback in callbacks:
            if hasattr(callback, "after_run"):
                callback.after_run(run)
    return run


def _rounds(
    run: Run,
    worker: ClientWorker,
    executor: Callable[[], Executor],
    callbacks: Sequence[Callback],
    store: Store,
    start: Checkpoint,
) -> dict[str, Any]:
    """Go through the rounds that are left; give what the summary says of all clients at the end.

    That is nothing unless evaluations score a sample of the clients.
    """
    schedule = run.config.schedule
    over = schedule.exhausted(run.metrics)
    sampled = schedule.eval_all and schedule.scored(worker) is not None
    if over and not sampled:
        return {}
    runner = executor()
    try:
        engine = _engine(run.config, worker, runner, [Recorder(run), *callbacks], store)
        server, round = start.server, start.round
        if not over:
            engine.run(start)
            warn_of_swings(run.metrics, sum(worker.sizes("test")), run.config.training.lr)
            server, round = engine.server, engine.round
        if not sampled or server is None:
            return {}
        figures = everybody(worker, runner, store, server, round, schedule.metric)
        return {"everybody": figures}
    finally:
        runner.close()


def _engine(
    config: Config,
    worker: ClientWorker,
    runner: Executor,
    callbacks: Sequence[Callback],
    store: Store,
) -> Engine:
    """The round loop that the config asks for."""
    config.schedule.refuse_idle(worker, config.clock.extra)
    if not config.clock.runs:
        return Engine(worker, runner, config.schedule, callbacks, store)
    time = Timekeeper(config.clock, worker)
    kind = Asynchronous if config.clock.mode == "async" else Engine
    return kind(worker, runner, config.schedule, callbacks, store, time)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    from_round: int | None = None,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
    **execution: Any,
) -> Run:
    """Continue an interrupted run; a finished one is returned as it is.

    `rounds` makes a run longer; the metrics of its old last round stay. `from_round` does the
    rounds after that one again. `execution` may change where and how fast it runs. `trust` allows a
    method file that the folder names to be executed.
    """
    if from_round is not None:
        roll_back(folder, from_round)
    run = Run.load(folder, trust)
    config = run.config
    if execution:
        changed = config.execution.model_copy(update=execution)
        config = config.model_copy(update={"execution": changed})
    if rounds is not None and rounds != config.schedule.rounds:
        with locked(run.folder):
            config = run.lengthen(config, rounds)
    return execute(config, out=folder, callbacks=callbacks)


def roll_back(folder: str | Path, round: int) -> None:
    """Take a run back to the end of a round of which there is still a checkpoint."""
    run = Run.load(folder)
    assert run.folder is not None
    with locked(run.folder):
        Store(run.folder / "checkpoint").roll_back(round)
        (run.folder / "summary.json").unlink(missing_ok=True)


def _encoding(callbacks: Sequence[Callback]) -> Callable[[int, int], None] | None:
    """The first callback's `encoding`, which shows how far a frozen encoder has got."""
    for callback in callbacks:
        if hasattr(callback, "encoding"):
            shown: Callable[[int, int], None] = callback.encoding
            return shown
    return None


def _told_apart(networks: Any, seed: int) -> tuple[Any, list[nn.Module | None]]:
    """Several networks as a config names them, and those of them that were made in Python."""
    if not isinstance(networks, list | tuple | Mapping):
        return networks, []
    table = networks if isinstance(networks, Mapping) else dict(enumerate(networks))
    told, made = {}, []
    for place, one in table.items():
        by_name = isinstance(one, str | Mapping)
        told[place] = one if by_name else GIVEN
        made.append(None if by_name else _own_network(one, seed))
    return (told if isinstance(networks, Mapping) else list(told.values())), made


def _own_network(model: str | nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module | None:
    """A user's own network; the first weights of one built here depend on the seed only."""
    if isinstance(model, str):
        return None
    if isinstance(model, nn.Module):
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "init"))
        return model()

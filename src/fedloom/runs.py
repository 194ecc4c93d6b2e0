"""A `Run` is a folder: config, metrics, summary, checkpoint, report. `run` makes one, `resume` goes on with one."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import config as configs
from . import executors
from .config import Config
from .data.federation import Federation, federate
from .data.pictures import picture
from .data.sources import MODEL_FOR, Progress
from .data.sources import load as load_data
from .engine import Callback, Engine
from .errors import CheckpointError, FedloomError, unknown
from .local import Site
from .method import Method, make
from .metrics.cost import peak_memory_mb
from .metrics.summary import summarise_run
from .models import Task, build
from .report import RunData, render
from .rng import key
from .state import Checkpoint, Store, sha256, write_atomic


@dataclass
class Run:
    """What a run left behind, in memory and (if it has a folder) on disk."""

    config: Config
    folder: Path | None = None
    federation: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)  # the same on every machine and executor
    timing: list[dict[str, Any]] = field(default_factory=list)  # not the same
    summary: dict[str, Any] = field(default_factory=dict)
    reused: bool = False  # the folder held this run, finished: nothing was computed

    @staticmethod
    def load(folder: str | Path) -> Run:
        """The run in a folder, finished or not."""
        folder = Path(folder)
        if not (folder / "config.toml").is_file():
            raise CheckpointError(f"{folder} is no run: it has no config.toml.")
        return Run(
            config=configs.build(configs.read(folder / "config.toml")),
            folder=folder,
            federation=_json(folder / "federation.json"),
            metrics=_lines(folder / "metrics.jsonl"),
            timing=_lines(folder / "timing.jsonl"),
            summary=_json(folder / "summary.json"),
        )

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return bool(self.summary.get("finished"))

    @property
    def clients(self) -> list[float | None]:
        """Each client's last headline accuracy."""
        return self.metrics[-1]["clients"][self.summary.get("stage", "before")] if self.metrics else []

    def data(self, name: str | None = None) -> RunData:
        """The run as the report wants it."""
        config = {**self.config.model_dump(mode="json"), "toml": self.config.toml()}
        shown = self.folder / "partition.png" if self.folder else None
        picture = shown.read_bytes() if shown and shown.exists() else None
        return RunData(name or self.config.method, config, self.metrics, self.summary, self.federation, picture)


class Recorder:
    """Writes metrics and timing as they come, a checkpoint after them, and stops when validation tells."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._clock = time.monotonic()

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> bool:
        """Record a round; True if the run should stop here."""
        now = time.monotonic()
        memory = round(peak_memory_mb(engine.executor.processes), 1)
        entry = {"round": engine.round, "seconds": round(now - self._clock, 4), "peak_rss_mb": memory}
        self._clock = now
        self._append("timing", entry)
        if record is not None:
            self._append("metrics", record)
        schedule = engine.schedule
        stop = record is not None and schedule.exhausted(self.run.metrics)
        if engine.round % schedule.checkpoint_every == 0 or engine.round == schedule.rounds or stop:
            engine.store.save(Checkpoint(engine.round, engine.server, self._extra(engine)))
        return stop

    def _append(self, name: str, entry: dict[str, Any]) -> None:
        getattr(self.run, name).append(entry)
        if self.run.folder is None:
            return
        try:
            with open(self.run.folder / f"{name}.jsonl", "ab") as file:
                file.write(json.dumps(entry).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(
                f"could not write {name}.jsonl: {error.strerror or error}; the last checkpoint is intact."
            ) from error

    def _extra(self, engine: Engine) -> dict[str, Any]:
        written = "".join(json.dumps(m) + "\n" for m in self.run.metrics).encode()
        return {"bytes": engine.bytes, "metrics": {"length": len(written), "sha256": sha256(written)}}


def run(
    method: str | Method = "fedavg",
    federation: str | Federation = "digits4",
    *,
    partition: str = "domains",
    clients: int | None = None,
    model: str | nn.Module = "auto",
    seed: int = 0,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    fresh: bool = False,
    **settings: Any,
) -> Run:
    """Run a method on a federation and return the `Run`. The same as `fedloom run`, without the shell.

    `federation` is a data set's name (then `partition` and `clients` deal it out) or a `Federation`; `model` a name or
    your own network. All other keywords are settings, as with `--set`: `run("fedprox", mu=0.1, rounds=20, lr=0.01)`.
    """
    given: dict[str, Any] = {"seed": seed, "clients": clients, "partition": partition}
    if isinstance(method, Method):
        given |= {"method": type(method).origin or method.name, "hyper": method.params()}
    else:
        given["method"] = method
    if isinstance(federation, Federation):
        given |= {"data": federation.data.name, "partition": "given", "clients": len(federation)}
    else:
        given["data"] = federation
    given["model"] = model if isinstance(model, str) else "given"
    if model == "auto" and isinstance(federation, Federation):
        given["model"] = MODEL_FOR[federation.data.kind]
    config = configs.build(given, settings)
    return execute(
        config,
        out=out,
        callbacks=callbacks,
        fresh=fresh,
        method=type(method)(**config.hyper) if isinstance(method, Method) else None,
        federation=federation if isinstance(federation, Federation) else None,
        model=None if isinstance(model, str) else model,
    )


def execute(
    config: Config,
    *,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    fresh: bool = False,
    method: Method | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
) -> Run:
    """Carry out a config; in a folder that holds the same run already, go on with it."""
    if config.execution.executor not in executors.EXECUTORS:
        raise unknown("executor", config.execution.executor, executors.EXECUTORS)
    made = Run(config, Path(out) if out else None)
    if made.folder and (made.folder / "config.toml").exists() and not fresh:
        made = _same(made.folder, config)
        if made.finished:
            made.reused = True
            return made
    elif made.folder and fresh and (made.folder / "config.toml").exists():
        shutil.rmtree(made.folder / "checkpoint", ignore_errors=True)
        for name in (
            "metrics.jsonl",
            "timing.jsonl",
            "summary.json",
            "federation.json",
            "partition.png",
            "report.html",
        ):
            (made.folder / name).unlink(missing_ok=True)
    if config.partition == "given" and federation is None:
        raise FedloomError("this run was made with its own federation: resume it from Python, with fedloom.run(...).")
    if config.model == "given" and model is None:
        raise FedloomError("this run was made with its own model: resume it from Python, with fedloom.run(...).")
    images = federation or deal(config)
    federation = encoded(config, images, next((c.encoding for c in callbacks if hasattr(c, "encoding")), None))
    method = method or make(config.method, config.hyper)
    site = Site(method, federation, model or network(config, federation), config.training, config.seed)
    made.federation = federation.describe()
    store, start = Store(), Checkpoint()
    if made.folder:
        write_atomic(made.folder / "config.toml", config.toml().encode())
        write_atomic(made.folder / "federation.json", json.dumps(made.federation).encode())
        write_atomic(made.folder / "partition.png", drawn(images))
        store = Store(made.folder / "checkpoint")
        (made.folder / "checkpoint").mkdir(exist_ok=True)
        start = store.load()
        _rewind(made, start)
    if not config.schedule.exhausted(made.metrics):
        executor = executors.make(config.execution.executor, site, config.execution.workers)
        try:
            watchers = [Recorder(made), *callbacks]
            Engine(site, executor, config.schedule, watchers, store).run(start)
        finally:
            executor.close()
    made.summary = summary(made, method)
    if made.folder:
        write_atomic(made.folder / "summary.json", json.dumps(made.summary, indent=1).encode())
        write_atomic(made.folder / "report.html", render([made.data()], f"{config.method} on {config.data}").encode())
    return made


def resume(folder: str | Path, *, callbacks: Sequence[Callback] = (), **execution: Any) -> Run:
    """Go on with an interrupted run; a finished one is returned as it is. `execution` may change where it runs."""
    config = Run.load(folder).config
    if execution:
        config = config.model_copy(update={"execution": config.execution.model_copy(update=execution)})
    return execute(config, out=folder, callbacks=callbacks)


def deal(config: Config, progress: Progress | None = None) -> Federation:
    """The federation that a config describes."""
    return federate(
        load_data(config.data, config.source, root=config.execution.data_root, seed=config.seed, progress=progress),
        config.partition,
        clients=config.clients,
        seed=config.seed,
        validation=config.validation,
        split=config.split,
        merged_share=config.merged_share,
        **config.partitioning,
    )


def encoded(config: Config, federation: Federation, progress: Progress | None = None) -> Federation:
    """The federation with features in place of images, if the config names an encoder."""
    if not config.encoder:
        if config.views > 1 or config.pixels:
            raise FedloomError("views and pixels are for runs with a frozen encoder: say which (--encoder).")
        return federation
    return federation.encode(
        config.encoder, views=config.views, augment=config.training.augment, pixels=config.pixels, progress=progress
    )


def network(config: Config, federation: Federation) -> nn.Module:
    """The model that a config describes, with first weights that depend on the seed only."""
    data = federation.data
    task = Task(tuple(data.x.shape[1:]), len(data.classes), data.vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(config.seed, "init"))
        return build(config.model, task, **config.network)


def drawn(federation: Federation) -> bytes:
    """A PNG of the samples and of who has what."""
    file = io.BytesIO()
    picture(federation).save(file, format="PNG")
    return file.getvalue()


def summary(made: Run, method: Method) -> dict[str, Any]:
    """What `summary.json` holds."""
    config = made.config
    return {
        "method": config.method,
        "data": config.data,
        "partition": config.partition,
        "seed": config.seed,
        "rounds": made.metrics[-1]["round"] if made.metrics else 0,
        "clients": len(made.federation["clients"]),
        "stage": method.stage,
        **summarise_run(made.metrics, made.timing),
        "better_than_local": None,
        "hash": config.hash(),
        "finished": True,
    }


def _same(folder: Path, config: Config) -> Run:
    """The run in a folder, if it is the one that `config` describes."""
    there = Run.load(folder)
    if there.config.hash() != config.hash():
        old, new = (c.model_dump(mode="json", exclude={"execution"}) for c in (there.config, config))
        differ = ", ".join(k for k in new if old[k] != new[k])
        raise FedloomError(f"{folder} holds another run (it differs in: {differ}); choose another folder, or --fresh.")
    there.config = config
    return there


def _rewind(made: Run, start: Checkpoint) -> None:
    """Cut metrics and timing back to a checkpoint: a kill may have come between a line and its checkpoint."""
    assert made.folder is not None
    path = made.folder / "metrics.jsonl"
    written = path.read_bytes() if path.exists() else b""
    wanted = start.extra.get("metrics", {"length": 0, "sha256": sha256(b"")})
    kept = written[: wanted["length"]]
    if sha256(kept) != wanted["sha256"]:
        raise CheckpointError(f"{path} is damaged: it does not fit the checkpoint of round {start.round}.")
    if kept != written:
        write_atomic(path, kept)
    made.metrics = [json.loads(line) for line in kept.splitlines()]
    made.timing = [t for t in made.timing if t["round"] <= start.round]
    text = "".join(json.dumps(t) + "\n" for t in made.timing)
    write_atomic(made.folder / "timing.jsonl", text.encode())


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError:
        raise CheckpointError(f"{path} is damaged: it is not valid JSON.") from None


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a kill may have cut the last one."""
    lines: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


def better_than_local(run: Run, alone: Run) -> Mapping[str, float] | None:
    """How many clients are better off than alone, by their last headline accuracy."""
    from .metrics.accuracy import compared

    return compared(run.clients, alone.clients)

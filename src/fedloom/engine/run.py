"""A `Run` is a folder: config, metrics, summary, checkpoint, report. `run` makes one, `resume` goes on with one."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import executors
from ..client.worker import ClientWorker
from ..core.errors import CheckpointError, FedloomError
from ..core.files import sha256, write_atomic
from ..core.lookup import make
from ..core.method import Method
from ..core.rng import key
from ..data.catalogue import MODEL_FOR, Progress
from ..data.catalogue import load as load_data
from ..data.federation import Federation, federate
from ..metrics.cost import peak_memory_mb
from ..metrics.summary import summarise_run
from ..models import Task, build
from ..parts.privacy import account, accountant
from ..report import RunData, render
from ..report.pictures import picture
from . import config as configs
from .checkpoint import Checkpoint, Store
from .config import Config
from .engine import Callback, Engine, first
from .schedule import Schedule

try:
    import fcntl
except ImportError:  # not a POSIX system: run folders are not guarded there
    fcntl = None  # type: ignore[assignment]

# What a run leaves in its folder, beside config.toml and checkpoint/.
FILES = (
    "metrics.jsonl",
    "timing.jsonl",
    "summary.json",
    "federation.json",
    "partition.png",
    "report.html",
)
SLOW = 0.2  # seconds from which on writing a checkpoint is worth sparing ...
ROOM = 512 << 20  # ... unless client states of so many bytes wait in memory


@dataclass
class Run:
    """What a run left behind, in memory and (if it has a folder) on disk."""

    config: Config
    folder: Path | None = None
    federation: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(
        default_factory=list
    )  # the same on every machine and executor
    timing: list[dict[str, Any]] = field(default_factory=list)  # not the same
    summary: dict[str, Any] = field(default_factory=dict)
    reused: bool = False  # the folder held this run, finished: nothing was computed

    @staticmethod
    def load(folder: str | Path) -> Run:
        """The run in a folder, finished or not."""
        folder = Path(folder)
        if not (folder / "config.toml").is_file():
            raise CheckpointError(f"{folder} is no run: it has no config.toml.")
        given = configs.read(folder / "config.toml")
        if (found := given.get("format", 0)) != configs.FORMAT:
            older = isinstance(found, int) and found < configs.FORMAT
            raise CheckpointError(
                f"{folder} was written by {'an older' if older else 'another'} version of fedloom (format {found}, "
                f"this one has format {configs.FORMAT}): run it anew in another folder, or with --fresh."
            )
        return Run(
            config=configs.build(given),
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
        return (
            self.metrics[-1]["clients"][self.summary.get("stage", "before")] if self.metrics else []
        )

    def data(self, name: str | None = None) -> RunData:
        """The run as the report wants it."""
        config = {**self.config.model_dump(mode="json"), "toml": self.config.toml()}
        shown = self.folder / "partition.png" if self.folder else None
        picture = shown.read_bytes() if shown and shown.exists() else None
        return RunData(
            name or self.config.method,
            config,
            self.metrics,
            self.summary,
            self.federation,
            picture,
            self.timing,
        )


class Recorder:
    """Writes metrics and timing as they come, a checkpoint after them, and stops when validation tells."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._clock = time.monotonic()
        self._saved, self._took = (
            -math.inf,
            0.0,
        )  # when the last checkpoint was written, and how long that took

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> bool:
        """Record a round; True if the run should stop here."""
        now = time.monotonic()
        memory = round(peak_memory_mb(engine.executor.processes), 1)
        entry: dict[str, Any] = {
            "round": engine.round,
            "seconds": round(now - self._clock, 4),
            "peak_rss_mb": memory,
        }
        entry["spent"] = {who: round(seconds, 4) for who, seconds in engine.spent.items()}
        self._clock = now
        self._append("timing", entry)
        if record is not None:
            self._append("metrics", record)
        schedule = engine.schedule
        stop = record is not None and schedule.exhausted(self.run.metrics)
        if stop or engine.round == schedule.rounds:
            self._save(engine, last=True)
        elif engine.round % schedule.checkpoint_every == 0:
            # Where states are large, writing them in every round would take longer than the rounds: then a tenth of
            # the time goes into it. The one before the last is always written, so that all such runs end alike, and
            # remote sites are told what the server has saved.
            before_last = engine.round + schedule.checkpoint_every >= schedule.rounds
            due = self._took < SLOW or time.monotonic() - self._saved >= 9 * self._took
            if due or before_last or engine.store.waiting > ROOM or engine.executor.remote:
                self._save(engine)
        return stop

    def _save(self, engine: Engine, last: bool = False) -> None:
        start = time.monotonic()
        engine.store.save(Checkpoint(engine.round, engine.server, self._extra(engine)), last)
        self._saved = time.monotonic()
        self._took = self._saved - start

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
        return {
            "bytes": engine.bytes,
            "metrics": {"length": len(written), "sha256": sha256(written)},
            "config": self.run.config.what(),
        }


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
    **settings: Any,
) -> Run:
    """Run a method on a federation and return the `Run`. The same as `fedloom run`, without the shell.

    `federation` is a data set's name (then `partition` and `clients` deal it out) or a `Federation`; `model` is a name,
    a function that builds your own network (its first weights then depend on the seed) or a network as it is. All other
    keywords are settings, as with `--set`: `run("fedprox", mu=0.1, rounds=20, lr=0.01)`.
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
        model=_own(model, seed),
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
    executors.EXECUTORS.find(config.execution.executor)  # refuse a wrong name before any work
    made = Run(config, Path(out) if out else None)
    if made.folder and not fresh and _begun(made.folder):
        made = _same(made.folder, config)
        if made.finished:
            made.reused = True
            return made
    if config.partition == "given" and federation is None:
        raise FedloomError(
            "this run was made from Python with its own federation: the same script goes on with it."
        )
    if config.model == "given" and model is None:
        raise FedloomError(
            "this run was made from Python with its own model: the same script goes on with it."
        )
    images = federation or deal(config)
    federation = encoded(
        config, images, next((c.encoding for c in callbacks if hasattr(c, "encoding")), None)
    )
    method = method or make(config.method, config.hyper)
    worker = ClientWorker(
        method, federation, model or network(config, federation), config.training, config.seed
    )
    made.federation = federation.describe()
    if method.promise():
        accountant()  # refused now rather than when the run is over
    workers = config.execution.workers
    return carry_out(
        made,
        worker,
        lambda: executors.make(config.execution.executor, worker, workers),
        picture=lambda: drawn(images),
        callbacks=callbacks,
        fresh=fresh,
    )


def carry_out(
    made: Run,
    worker: ClientWorker,
    executor: Callable[[], executors.Executor],
    *,
    picture: Callable[[], bytes] | None = None,
    callbacks: Sequence[Callback] = (),
    fresh: bool = False,
) -> Run:
    """Go through a run's rounds from its last checkpoint, and sum it up; `picture` shows its samples."""
    config, start = made.config, Checkpoint(server=first(worker))
    # Nothing is written before this line: what is refused leaves no folder behind.
    with _alone(made.folder):
        store = _open(made, picture, fresh)
        saved = store.load()
        if made.folder and saved.server is not None:
            start = saved
            _unchanged(made.folder, start, config)
        _rewind(made, saved)
        if not config.schedule.exhausted(made.metrics):
            runner = executor()
            try:
                watchers = [Recorder(made), *callbacks]
                Engine(worker, runner, config.schedule, watchers, store).run(start)
            finally:
                runner.close()
        made.summary = summary(made, worker.method) | {
            "privacy": privacy(worker, config.schedule, made.metrics)
        }
        if made.folder:
            title = f"{config.method} on {config.data}"
            write_atomic(made.folder / "summary.json", json.dumps(made.summary, indent=1).encode())
            write_atomic(made.folder / "report.html", render([made.data()], title).encode())
    return made


def _begun(folder: Path) -> bool:
    """Whether a folder holds a run that got as far as its first checkpoint; one that did not is no obstacle."""
    return (folder / "config.toml").exists() and any((folder / "checkpoint").glob("*.json"))


def _open(made: Run, picture: Callable[[], bytes] | None, fresh: bool) -> Store:
    """The run's folder, with what does not change during the run written to it, and its checkpoints."""
    if made.folder is None:
        return Store()
    if fresh:
        shutil.rmtree(made.folder / "checkpoint", ignore_errors=True)
        for name in FILES:
            (made.folder / name).unlink(missing_ok=True)
    elif _begun(made.folder):
        _same(made.folder, made.config)  # another process may have been here in the meantime
    write_atomic(made.folder / "config.toml", made.config.toml().encode())
    write_atomic(made.folder / "federation.json", json.dumps(made.federation).encode())
    if picture:
        write_atomic(made.folder / "partition.png", picture())
    (made.folder / "checkpoint").mkdir(exist_ok=True)
    return Store(made.folder / "checkpoint")


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    callbacks: Sequence[Callback] = (),
    **execution: Any,
) -> Run:
    """Go on with an interrupted run; a finished one is returned as it is. `execution` may change where it runs.

    `rounds` makes a run longer. It is evaluated after its old last round too, as it was.
    """
    there = Run.load(folder)
    config = there.config
    if execution:
        config = config.model_copy(
            update={"execution": config.execution.model_copy(update=execution)}
        )
    if rounds is not None and rounds != config.schedule.rounds:
        with _alone(there.folder):
            config = _longer(there, config, rounds)
    return execute(config, out=folder, callbacks=callbacks)


def _longer(there: Run, config: Config, rounds: int) -> Config:
    assert there.folder is not None
    done = there.metrics[-1]["round"] if there.metrics else 0
    if rounds < done:
        raise FedloomError(
            f"{there.folder} has {done} rounds already; it can be made longer, not shorter."
        )
    longer = config.model_copy(
        update={"schedule": config.schedule.model_copy(update={"rounds": rounds})}
    )
    write_atomic(there.folder / "config.toml", longer.toml().encode())
    (there.folder / "summary.json").unlink(missing_ok=True)
    return longer


@contextlib.contextmanager
def saved(run: Run) -> Iterator[tuple[Checkpoint, Store]]:
    """What a run's last checkpoint holds: the server, and the clients' states. Nothing in the folder is touched."""
    source = run.folder / "checkpoint" if run.folder else None
    with tempfile.TemporaryDirectory() as temporary:
        # A store tidies up its folder; this one holds links only, so the run's own files stay as they are.
        folder = Path(temporary) / "checkpoint"
        if source is None or not source.is_dir():
            raise FedloomError(f"{run.folder} has no checkpoint.")
        shutil.copytree(
            source, folder, copy_function=lambda a, b: os.symlink(os.path.abspath(a), b)
        )
        store = Store(folder)
        start = store.load()
        if start.server is None:
            raise FedloomError(f"{run.folder} has no checkpoint.")
        yield start, store


def deal(config: Config, progress: Progress | None = None) -> Federation:
    """The federation that a config describes."""
    return federate(
        load_data(
            config.data,
            config.source,
            root=config.execution.data_root,
            seed=config.seed,
            progress=progress,
        ),
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
            raise FedloomError(
                "views and pixels are for runs with a frozen encoder: say which (--encoder)."
            )
        return federation
    return federation.encode(
        config.encoder,
        views=config.views,
        augment=config.training.augment,
        pixels=config.pixels,
        progress=progress,
    )


def network(config: Config, federation: Federation) -> nn.Module:
    """The model that a config describes, with first weights that depend on the seed only."""
    data = federation.data
    task = Task(
        tuple(data.x.shape[1:]),
        len(data.classes),
        data.vocabulary,
        data.encoder,
        data.mean,
        data.std,
    )
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
        "stage": method.traits.stage,
        **summarise_run(made.metrics, made.timing),
        "better_than_local": None,
        "versions": versions(),
        "hash": config.hash(),
        "finished": True,
    }


def privacy(
    worker: ClientWorker, schedule: Schedule, metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """What the method's promise of privacy comes to for each client, by the prototypes it sent; None without one."""
    promise = worker.method.promise()
    if promise is None:
        return None
    sent = [0] * worker.clients
    for round in range(1, 1 + (metrics[-1]["round"] if metrics else 0)):
        cohort, lost, _ = schedule.cohort(round, worker)
        for k in set(cohort) - lost:
            sent[k] += int((worker.federation.counts(k) > 0).sum())
    return account(promise, sent)


def versions() -> dict[str, str]:
    """What a run was computed with."""
    from ..core.version import __version__

    found = {
        "fedloom": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return found | {
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _same(folder: Path, config: Config) -> Run:
    """The run in a folder, if it is the one that `config` describes."""
    there = Run.load(folder)
    if differ := _differences(there.config.what(), config.what()):
        raise FedloomError(
            f"{folder} holds another run ({differ}); choose another folder with --out, or start anew with --fresh."
        )
    there.config = config
    return there


def _unchanged(folder: Path, start: Checkpoint, config: Config) -> None:
    """Refuse to go on with settings that the checkpoint was not made with, but for the number of rounds."""
    if not start.round:
        return
    before, now = (
        {**c, "schedule": {**c["schedule"], "rounds": 0}}
        for c in (start.extra["config"], config.what())
    )
    if differ := _differences(before, now):
        raise FedloomError(
            f"{folder / 'config.toml'} is not what this run was started with ({differ}); put it back, or start anew "
            "with --fresh."
        )


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Which settings differ, and how."""
    said = []
    for name in sorted({*there, *here}):
        old, new = there.get(name), here.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            said += [_differences(old, new)] if old != new else []
        elif old != new:
            said.append(f"{name} is {json.dumps(old)} there, {json.dumps(new)} here")
    return ", ".join(said)


def _own(model: str | nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module | None:
    """A user's own network; one that is built here has first weights that depend on the seed only."""
    if isinstance(model, str | nn.Module):
        return None if isinstance(model, str) else model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "init"))
        return model()


@contextlib.contextmanager
def _alone(folder: Path | None) -> Iterator[None]:
    """Keep other processes out of a run folder. The system lets go of it when this process ends, however it ends."""
    if folder is None or fcntl is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FedloomError(
                f"another process is working in {folder}; wait for it, or choose another folder."
            ) from None
        yield
    finally:
        os.close(held)


def _rewind(made: Run, start: Checkpoint) -> None:
    """Cut metrics and timing back to a checkpoint: a kill may have come between a line and its checkpoint."""
    if made.folder is None:
        return
    path = made.folder / "metrics.jsonl"
    written = path.read_bytes() if path.exists() else b""
    wanted = start.extra.get("metrics", {"length": 0, "sha256": sha256(b"")})
    kept = written[: wanted["length"]]
    if sha256(kept) != wanted["sha256"]:
        raise CheckpointError(
            f"{path} is damaged: it does not fit the checkpoint of round {start.round}."
        )
    if kept != written:
        write_atomic(path, kept)
    made.metrics = [json.loads(line) for line in kept.splitlines()]
    made.timing = [t for t in _lines(made.folder / "timing.jsonl") if t["round"] <= start.round]
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
    from ..metrics.accuracy import compared

    return compared(run.clients, alone.clients)

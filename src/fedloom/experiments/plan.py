"""Many runs in one folder: what is there already is used, what is missing is run, what fails does not stop the rest."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..cli.progress import Watch
from ..core.errors import FedloomError, unknown
from ..core.files import write_atomic
from ..core.lookup import find, parsed
from ..core.lookup import names as method_names
from ..data.federation import Federation
from ..engine import config as settings
from ..engine.config import SECTIONS, Config, build
from ..engine.engine import Callback
from ..engine.run import Run, deal, execute
from ..executors import EXECUTORS
from ..metrics.cost import forget_peak

# What a config says beside the federation; all the rest decides who has which samples.
NOT_DATA = {"method", "hyper", "training", "schedule", "execution", "model", "network", "format"}
Logs = Callable[[Config, Path], AbstractContextManager[Sequence[Callback]]]


@dataclass
class Cell:
    """One run of a grid: what was wanted, where it lives, and what came of it."""

    config: Config
    folder: Path
    run: Run | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        """The method's name; for a user's own file, the file's."""
        return name_of(self.config.method)

    @property
    def status(self) -> str:
        """`finished` or `failed`."""
        return "failed" if self.run is None else "finished"


def name_of(method: str) -> str:
    """How a method is called in tables and folders."""
    file, plugged = parsed(method)
    return "+".join([Path(file).stem, *plugged]) if file.endswith(".py") else method


def plan(
    methods: Sequence[str],
    seeds: Sequence[int],
    given: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> list[Config]:
    """One config per seed and method, each named once. A change `fedprox.mu` concerns that method only.

    All methods of a seed come before the next seed, so that an interrupted comparison has whole seeds.
    """
    methods, seeds = list(dict.fromkeys(methods)), list(dict.fromkeys(seeds))
    names = [name_of(m) for m in methods]
    if twice := [n for i, n in enumerate(names) if n in names[:i]]:
        raise FedloomError(f"two of the methods are called {twice[0]!r}: rename one of the files.")
    own = {m: _concerning(m, methods, changes) for m in methods}
    return [build({**given, "method": m, "seed": seed}, own[m]) for seed in seeds for m in methods]


def _concerning(method: str, methods: Sequence[str], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes for one method, without its name in front. What fits no method is refused here, with advice."""
    general: dict[str, Any] = {}
    special: dict[str, Any] = {}
    names = [name_of(m) for m in methods]
    for key, value in changes.items():
        front, dot, rest = key.partition(".")
        if dot and front in names:
            if front == name_of(method):
                # Said of the method, so its own setting is meant where a partition or model has one of that name too.
                own = rest in {f.name for f in fields(find(method))}  # type: ignore[arg-type]
                special[f"hyper.{rest}" if own else rest] = value
        elif dot and front not in SECTIONS:
            if front in method_names():
                raise FedloomError(
                    f"{key}: {front} is not among the methods compared ({', '.join(names)})."
                )
            raise unknown("method or section", front, {*names, *SECTIONS})
        else:
            _refuse_private(key, value, methods)
            general[key] = value
    return general | special


def _refuse_private(key: str, value: Any, methods: Sequence[str]) -> None:
    """A setting that only some of the methods have must say whose it is."""
    section, _, bare = key.rpartition(".")
    owners = [name_of(m) for m in methods if bare in {f.name for f in fields(find(m))}]  # type: ignore[arg-type]
    shared = section != "hyper" and any(
        bare in part.model_fields
        for part in (
            Config,
            settings.Schedule,
            settings.Training,
            settings.Source,
            settings.Execution,
        )
    )
    if owners and len(owners) < len(methods) and not shared:
        said = " or ".join(f"{owner}.{bare}={value}" for owner in owners)
        whose = f"{owners[0]} only" if len(owners) == 1 else "some methods only"
        raise FedloomError(f"{bare!r} is a setting of {whose}: say --set {said}.")


def folder_of(out: Path, config: Config) -> Path:
    """Where a run lives. The name changes with every setting that matters, and with the code of a user's own method."""
    digest = config.hash()
    if (file := parsed(config.method)[0]).endswith(".py"):
        digest = hashlib.sha256(digest.encode() + Path(file).read_bytes()).hexdigest()
    return out / f"{name_of(config.method)}-s{config.seed}-{digest[:8]}"


class Dealer:
    """Federations from configs; the last one is kept, for runs that differ in the method alone."""

    def __init__(self) -> None:
        self._key, self._made = "", None  # type: tuple[str, Federation | None]

    @staticmethod
    def key(config: Config) -> str:
        """Configs with the same key get the same federation."""
        return json.dumps(config.model_dump(mode="json", exclude=NOT_DATA), sort_keys=True)

    def __call__(self, config: Config) -> Federation:
        key = self.key(config)
        if self._made is None or key != self._key:
            self._key, self._made = key, deal(config)
        return self._made


def carry_out(
    configs: Sequence[Config],
    out: Path,
    watch: Watch,
    dealer: Dealer | None = None,
    logs: Logs | None = None,
    labels: Sequence[str] = (),
) -> list[Cell]:
    """Run what is missing. A run that fails is noted with its error (and `error.txt` in its folder); the rest goes on.

    `labels` are what runs are called while they go on; by default, their methods. Trouble with the data or with
    folders that are there already is raised: it is no fault of a method.
    """
    dealer = dealer or Dealer()
    cells = [Cell(config, folder_of(out, config)) for config in configs]
    for cell in cells:
        EXECUTORS.find(cell.config.execution.executor)
        if (cell.folder / "config.toml").exists():
            Run.load(
                cell.folder
            )  # a folder of another format is refused before anything is computed
    if before := sum((cell.folder / "summary.json").exists() for cell in cells):
        watch.note(f"{before} of {len(cells)} runs are there already")
    done = 0
    for i, cell in enumerate(cells, start=1):
        called = labels[i - 1] if labels else cell.name
        watch.begin(f"[{i}/{len(cells)}] {called} seed {cell.config.seed}", before=done)
        done += cell.config.schedule.rounds
        finished = (cell.folder / "summary.json").exists()
        federation = None if finished else dealer(cell.config)
        forget_peak()
        try:
            with (
                logs(cell.config, cell.folder)
                if logs and not finished
                else nullcontext(()) as loggers
            ):
                cell.run = execute(
                    cell.config, out=cell.folder, callbacks=[watch, *loggers], federation=federation
                )
            (cell.folder / "error.txt").unlink(missing_ok=True)
        except Exception as error:  # whatever a method may raise
            cell.error = (
                str(error)
                if isinstance(error, FedloomError)
                else f"{type(error).__name__}: {error}"
            )
            cell.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(cell.folder / "error.txt", traceback.format_exc().encode())
    return cells

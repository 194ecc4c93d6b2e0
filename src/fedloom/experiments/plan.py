"""Many runs in one folder: reuse finished runs, run what is missing, note what fails and go on."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from ..adapters import ADAPTERS
from ..adapters import options as adapter_options
from ..client.training import Training
from ..core.device import find as find_devices
from ..core.errors import FedloomError, unknown
from ..core.files import write_atomic
from ..core.lookup import find, parsed
from ..core.lookup import names as method_names
from ..data import partitions
from ..data.catalogue import MODEL_FOR, Source
from ..data.federation import Federation
from ..data.fingerprint import fingerprint
from ..engine import made_with
from ..engine.config import SECTIONS, Config, build
from ..engine.engine import Callback
from ..engine.execution import Execution
from ..engine.folder import Run
from ..engine.run import execute
from ..engine.schedule import Schedule
from ..engine.setup import deal
from ..executors import EXECUTORS
from ..metrics.cost import forget_peak
from ..models import MODELS
from ..models import options as model_options
from ..report.callback import Picture
from .apart import compute_apart

COMMON_SETTINGS = (
    Config,
    Schedule,
    Training,
    Source,
    Execution,
)

Logs = Callable[[Config, Path], AbstractContextManager[Sequence[Callback]]]


class Display(Callback, Protocol):
    """What shows how far many runs have got."""

    def total(self, rounds: int) -> None:
        """Set the number of rounds of all runs."""

    def begin(self, label: str, before: int = 0) -> None:
        """Start on a run; the runs before it have `before` rounds."""

    def note(self, text: str) -> None:
        """Show a line of text."""


@dataclass(frozen=True)
class Place:
    """Where some runs stand among all that a display counts."""

    runs_before: int = 0
    runs: int | None = None  # all of them; without it, these are all
    rounds_before: int = 0


@dataclass
class Cell:
    """One of many runs: its config, its folder, and its result or its error."""

    config: Config
    folder: Path
    run: Run | None = None
    error: str | None = None
    refused: bool = False  # whether it never began, because its data cannot be had

    @property
    def name(self) -> str:
        """The method's name; for a user's own file, the file's."""
        return name_of(self.config.method)

    @property
    def status(self) -> str:
        """`finished` or `failed`."""
        if self.run is None:
            return "failed"
        return "finished"


def finished_runs(cells: Iterable[Cell]) -> list[Run]:
    """The runs of the cells that did not fail."""
    return [cell.run for cell in cells if cell.run]


def name_of(method: str) -> str:
    """The name of a method in tables and folders."""
    file, plugged = parsed(method)
    if file.endswith(".py"):
        return "+".join([Path(file).stem, *plugged])
    return method


def plan(
    methods: Sequence[str],
    seeds: Sequence[int],
    given: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> list[Config]:
    """One config per seed and method. A change `fedprox.mu` applies to that method only.

    All methods of a seed come before the next seed, so an interrupted comparison has whole seeds.
    """
    methods = list(dict.fromkeys(methods))
    names = list(map(name_of, methods))
    for name in names:
        if names.count(name) > 1:
            raise FedloomError(f"two of the methods are called {name!r}: rename one of the files.")
    for key, value in changes.items():
        refuse_private(key, value, methods, {**given, **changes})
    changes_of = {}
    for method in methods:
        changes_of[method] = changes_for(method, methods, changes)
    configs = []
    for seed in dict.fromkeys(seeds):
        for method in methods:
            configs.append(build({**given, "method": method, "seed": seed}, changes_of[method]))
    return configs


def changes_for(method: str, methods: Sequence[str], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes for one method, without its name in front; those for no method are refused."""
    general: dict[str, Any] = {}
    special: dict[str, Any] = {}
    names = list(map(name_of, methods))
    for key, value in changes.items():
        owner, rest = owner_of(key, names)
        if owner is None:
            general[key] = value
        elif owner == name_of(method):
            if rest in _hyper(method):
                # The method's setting is meant, even if a partition or model has one of that name.
                rest = f"hyper.{rest}"
            special[rest] = value
    return general | special


def owner_of(key: str, names: Sequence[str]) -> tuple[str | None, str]:
    """The method that a key has in front, if any, and the key without it."""
    front, dot, rest = key.partition(".")
    if not dot or front in SECTIONS:
        return None, key
    if front in names:
        return front, rest
    if front in method_names():
        listed = ", ".join(names)
        raise FedloomError(f"{key}: {front} is not among the methods compared ({listed}).")
    raise unknown("method or section", front, {*names, *SECTIONS})


def _hyper(method: str) -> set[str]:
    """The names of a method's hyper-parameters."""
    return {field.name for field in fields(find(method))}  # type: ignore[arg-type]


def refuse_private(
    key: str, value: Any, methods: Sequence[str], choices: Mapping[str, Any]
) -> None:
    """A setting that only some of the methods have must name the method it is for.

    A section that the user names himself is never a method's. `choices` names the partition and
    the model, which may have a setting of that name too.
    """
    section, _, bare = key.rpartition(".")
    if section not in ("", "hyper"):
        return
    owners = []
    for method in methods:
        if bare in _hyper(method):
            owners.append(name_of(method))
    if not owners or len(owners) == len(methods):
        return
    for part in COMMON_SETTINGS:
        if section != "hyper" and bare in part.model_fields:
            return
    ways = [f"{owner}.{bare}={value}" for owner in owners]
    whose = "some methods"
    if len(owners) == 1:
        whose = owners[0]
    if section != "hyper":
        for other, what in _sections_with(bare, choices).items():
            whose += f" and of the {what}"
            ways.append(f"{other}.{bare}={value}")
    if len(ways) == len(owners):
        whose += " only"
    raise FedloomError(f"{bare!r} is a setting of {whose}: say --set {' or '.join(ways)}.")


def _sections_with(bare: str, choices: Mapping[str, Any]) -> dict[str, str]:
    """The sections of the partition, model and adapter that the user chose with the setting."""
    sections = {}
    partition, model = str(choices.get("partition")), str(choices.get("model"))
    if partition in partitions.PARTITIONS and bare in partitions.options(partition):
        sections["partitioning"] = "partition"
    if model in MODELS and bare in model_options(model):
        sections["network"] = "model"
    adapter = str(choices.get("adapter"))
    if adapter in ADAPTERS and bare in adapter_options(adapter):
        sections["adapting"] = "adapter"
    return sections


def folder_of(out: Path, config: Config) -> Path:
    """The folder of a run.

    Its name changes with every setting that matters, and with the code of a user's own method.
    """
    digest = config.hash()
    file, _ = parsed(config.method)
    if file.endswith(".py"):
        digest = hashlib.sha256(digest.encode() + Path(file).read_bytes()).hexdigest()
    return out / f"{name_of(config.method)}-s{config.seed}-{digest[:8]}"


class Dealer:
    """Makes federations from configs; keeps the last for runs that differ in the method only."""

    def __init__(self) -> None:
        self._key = ""
        self._federation: Federation | None = None
        self._error: FedloomError | None = None

    @staticmethod
    def key(config: Config) -> str:
        """Configs with the same key get the same federation."""
        return config.data_key()

    def __call__(self, config: Config) -> Federation:
        key = self.key(config)
        if key != self._key:
            self._key, self._federation, self._error = key, None, None
            try:
                self._federation = deal(config)
            except FedloomError as error:
                self._error = error
        if self._error is not None or self._federation is None:
            raise self._error or FedloomError(f"{config.data} was not dealt out.")
        return self._federation


class Given(Dealer):
    """Gives every config the federation that the user has made for its seed.

    No config describes such a federation, so the runs in a folder are asked what they were made
    with: those of other samples would be taken for finished ones.
    """

    def __init__(self, make: Callable[[int], Federation]) -> None:
        super().__init__()
        self._make = cache(make)

    def __call__(self, config: Config) -> Federation:
        return self._make(config.seed)

    def refuse_other_data(self, config: Config, folder: Path) -> None:
        """Refuse a run folder that was made with other samples."""
        ours = fingerprint(self(config))
        made_with.read(folder, ours).refuse_other_data(folder, ours)


def described(federation: Federation, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says about a federation that the user has made."""
    start = dict(given)
    start |= {"data": federation.data.name, "partition": "given", "clients": len(federation)}
    if start.get("model", "auto") == "auto" and not start.get("networks"):
        start["model"] = MODEL_FOR[federation.data.kind]
    return start


def carry_out(
    configs: Sequence[Config],
    out: Path,
    watch: Display,
    dealer: Dealer | None = None,
    logs: Logs | None = None,
    labels: Sequence[str] = (),
    report: bool = True,
    place: Place | None = None,
    go_on: bool = False,
    apart: bool = False,
) -> list[Cell]:
    """Run what is missing.

    A run that fails is noted with its error (and `error.txt` in its folder), and the others go on.
    Trouble with the data or with an existing folder is raised: it is not a method's fault. With
    `go_on`, runs whose data cannot be had are noted too. `labels` name the runs on the display; by
    default they are called by their methods. With `report`, each run gets a picture of who has
    what; a page of its own costs seconds, and `fedloom report` makes it. `place` is for runs that
    are a part of more. With `apart`, each run has a process of its own.
    """
    dealer = dealer or Dealer()
    place = place or Place()
    callbacks: list[Callback] = [watch]
    if report:
        callbacks.append(Picture())
    cells = [Cell(config, folder_of(out, config)) for config in configs]
    finished = _check(cells, dealer)
    if finished and not place.runs_before:
        watch.note(f"{finished} of {len(cells)} runs are there already")
    rounds_before = place.rounds_before
    for i, cell in enumerate(cells):
        label = cell.name
        if labels:
            label = labels[i]
        number = place.runs_before + i + 1
        label = f"[{number}/{place.runs or len(cells)}] {label} seed {cell.config.seed}"
        watch.begin(label, before=rounds_before)
        rounds_before += cell.config.schedule.rounds
        try:
            _carry_out(cell, callbacks, dealer, logs, apart)
        except FedloomError as error:  # about the data: a method's own errors are noted
            if not go_on:
                raise
            cell.error = str(error)
            cell.refused = True
    return cells


def _check(cells: Sequence[Cell], dealer: Dealer) -> int:
    """Refuse what cannot work before anything is computed; return how many runs are finished."""
    finished = 0
    for cell in cells:
        EXECUTORS.find(cell.config.execution.executor)
        find_devices(cell.config.execution.device)
        if (cell.folder / "config.toml").exists():
            Run.load(cell.folder)  # refuses a folder of another format
        if (cell.folder / "summary.json").exists():
            finished += 1
            if isinstance(dealer, Given):
                dealer.refuse_other_data(cell.config, cell.folder)
    return finished


def _carry_out(
    cell: Cell,
    callbacks: Sequence[Callback],
    dealer: Dealer,
    logs: Logs | None,
    apart: bool,
) -> None:
    federation: Federation | None = None
    logging: AbstractContextManager[Sequence[Callback]] = nullcontext(())
    apart = apart and not (cell.folder / "summary.json").exists()
    if not apart and not (cell.folder / "summary.json").exists():
        federation = dealer(cell.config)
        if logs:
            logging = logs(cell.config, cell.folder)
    forget_peak()
    try:
        if apart:
            compute_apart(cell.config, cell.folder)
        with logging as loggers:
            cell.run = execute(
                cell.config,
                out=cell.folder,
                callbacks=[*callbacks, *loggers],
                federation=federation,
            )
        (cell.folder / "error.txt").unlink(missing_ok=True)
    except Exception as error:  # whatever a method may raise
        cell.error = str(error)
        if not isinstance(error, FedloomError):
            cell.error = f"{type(error).__name__}: {error}"
        cell.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(cell.folder / "error.txt", traceback.format_exc().encode())

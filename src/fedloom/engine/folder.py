"""A `Run` is a folder: config, metrics, timing, summary, federation and checkpoint."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ..core import files
from ..core.errors import CheckpointError, FedloomError
from ..core.files import parse_object, read_regular, sha256, write_atomic
from ..core.tables import to_html, to_pandas
from ..data.described import FILE as CLIENTS
from ..metrics.distribution import Distribution
from ..metrics.registry import headline
from ..metrics.summary import client_spread, client_values, headline_line
from . import config as configs
from .checkpoint import Checkpoint, Store
from .config import Config

LOCK = ".lock"  # held while a process works in the folder
# What a run and its report leave in the folder, beside config.toml and checkpoint/.
FILES = (
    "metrics.jsonl",
    "timing.jsonl",
    "summary.json",
    "federation.json",
    CLIENTS,
    "made_with.json",
    "partition.png",
    "report.html",
)


@dataclass
class Run:
    """What a run has computed, in memory and (if it has a folder) on disk."""

    config: Config
    folder: Path | None = None
    federation: dict[str, Any] = field(default_factory=dict)
    # One entry per evaluated round, the same on every machine and with every executor.
    metrics: list[dict[str, Any]] = field(default_factory=list)
    # One entry per round: seconds and memory, which are never the same.
    timing: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    reused: bool = False  # the folder held the finished run: nothing was computed

    @staticmethod
    def load(folder: str | Path, trust: bool = False) -> Run:
        """Read the run in a folder, finished or not.

        If it was made with a method file, that is executed only with `trust`. The run can be looked
        at without, but not continued or opened.
        """
        folder = Path(folder)
        if not (folder / "config.toml").is_file():
            raise CheckpointError(f"{folder} is no run: it has no config.toml.")
        given = configs.read(folder / "config.toml")
        _refuse_other_format(folder, given.get("format", 0))
        return Run(
            config=configs.stored(given, trust),
            folder=folder,
            federation=_read_json(folder / "federation.json"),
            metrics=_read_lines(folder / "metrics.jsonl"),
            timing=_read_timing(folder / "timing.jsonl"),
            summary=_read_json(folder / "summary.json"),
        )

    @property
    def finished(self) -> bool:
        """Whether the run has reached its end."""
        return bool(self.summary.get("finished"))

    @property
    def headline(self) -> dict[str, Any]:
        """The line of metrics that stands for the run: that of the round chosen on validation data.

        Without such data, and before the run's end, it is the last line.
        """
        return headline_line(self.metrics, self.summary)

    @property
    def clients(self) -> list[float | None]:
        """Each client's value of the headline metric in that round; empty of very many clients."""
        stage = self.summary.get("stage", "before")
        return client_values(self.headline, stage, self.config.schedule.metric)

    @property
    def spread(self) -> Distribution | None:
        """How these values are distributed, where they are too many to be listed."""
        stage = self.summary.get("stage", "before")
        return client_spread(self.headline, stage, self.config.schedule.metric)

    def __fspath__(self) -> str:
        if self.folder is None:
            raise FedloomError("this run has no folder: give `out` to keep it.")
        return str(self.folder)

    def table(self) -> list[dict[str, Any]]:
        """A row for each evaluated round: metrics of personal models, the common one, losses."""
        rows = []
        for line in self.metrics:
            row: dict[str, Any] = {"round": line["round"]}
            for name, value in (line["personal"] or {}).items():
                if isinstance(value, int | float):
                    row[name] = value
            row["common_accuracy"] = (line["common"] or {}).get("accuracy_mean")
            row["validation"] = line["validation"]["personal"]
            row |= {f"loss_{part}": value for part, value in line["loss"].items()}
            row |= {f"bytes_{way}": number for way, number in line["bytes_total"].items()}
            rows.append(row)
        return rows

    def to_pandas(self) -> Any:
        """The table as a data frame; `pip install pandas` if it is not there."""
        return to_pandas(self.table())

    def _repr_html_(self) -> str:
        """What a notebook shows: the run in a line, and the headline by round."""
        config = self.config
        metric = headline(config.schedule.metric)
        state = f"{len(self.metrics)} evaluated rounds so far"
        if self.finished:
            state = f"{self.summary['rounds']} rounds"
        about = f"{config.method} on {config.data}, seed {config.seed}, {state}"
        rows = []
        for line in self.metrics:
            personal = (line["personal"] or {}).get(metric.key)
            common = (line["common"] or {}).get(metric.key)
            name = f"{metric.in_a_sentence}{metric.sign and ', %'}"
            row = {"round": line["round"], f"personal {name}": metric.shown(personal)}
            rows.append({**row, f"common {name}": metric.shown(common)})
        where = ""
        if self.folder:
            where = f"Folder: {self.folder}"
        return to_html(rows, about, where)

    def open(self, fresh: bool) -> Store:
        """Write what stays the same during the run, and return the store for checkpoints.

        `fresh` removes an earlier run first.
        """
        if self.folder is None:
            return Store()
        if fresh:
            shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
            for name in FILES:
                (self.folder / name).unlink(missing_ok=True)
        elif begun(self.folder):
            same_run(self.folder, self.config)  # another process may have been here since we looked
        write_atomic(self.folder / "config.toml", self.config.toml().encode())
        write_atomic(self.folder / "federation.json", json.dumps(self.federation).encode())
        (self.folder / "checkpoint").mkdir(exist_ok=True)
        return Store(self.folder / "checkpoint")

    def rewind(self, checkpoint: Checkpoint) -> None:
        """Cut metrics and timing back to a checkpoint.

        A kill may have come between writing a line and writing its checkpoint.
        """
        if self.folder is None:
            return
        path = self.folder / "metrics.jsonl"
        written = path.read_bytes() if path.exists() else b""
        length, checksum = _written(checkpoint)
        kept = written[:length]
        if sha256(kept) != checksum:
            raise CheckpointError(
                f"{path} is damaged: it does not fit the checkpoint of round {checkpoint.round}."
            )
        if kept != written or path.is_symlink():  # lines are added here, and nowhere else
            write_atomic(path, kept)
        self.metrics = [json.loads(line) for line in kept.splitlines()]
        timing = _read_timing(self.folder / "timing.jsonl")
        self.timing = [entry for entry in timing if entry["round"] <= checkpoint.round]
        text = "".join(json.dumps(entry) + "\n" for entry in self.timing)
        write_atomic(self.folder / "timing.jsonl", text.encode())

    def lengthen(self, config: Config, rounds: int) -> Config:
        """Write and return the config with more rounds, which makes a finished run unfinished."""
        assert self.folder is not None
        done = self.metrics[-1]["round"] if self.metrics else 0
        if rounds < done:
            raise FedloomError(
                f"{self.folder} has {done} rounds already; it can be made longer, not shorter."
            )
        schedule = config.schedule.model_copy(update={"rounds": rounds})
        longer = config.model_copy(update={"schedule": schedule})
        write_atomic(self.folder / "config.toml", longer.toml().encode())
        (self.folder / "summary.json").unlink(missing_ok=True)
        return longer


def _written(checkpoint: Checkpoint) -> tuple[int, object]:
    """The length and the checksum of the metrics at the time of a checkpoint."""
    if not checkpoint.round:
        return 0, sha256(b"")
    metrics = checkpoint.extra.get("metrics")
    if not isinstance(metrics, dict) or type(metrics.get("length")) is not int:
        return 0, None
    return max(0, metrics["length"]), metrics.get("sha256")


def begun(folder: Path) -> bool:
    """Whether a folder holds a run with at least one checkpoint; one without is no obstacle."""
    return (folder / "config.toml").exists() and any((folder / "checkpoint").glob("*.json"))


def same_run(folder: Path, config: Config) -> Run:
    """Read the run in a folder and refuse it if it is not the one that `config` describes."""
    run = Run.load(folder)
    difference = _differences(run.config.what(), config.what())
    if difference:
        raise FedloomError(
            f"{folder} holds another run ({difference}); choose another folder with --out, "
            "or start anew with --fresh."
        )
    run.config = config
    return run


def refuse_changes(folder: Path, checkpoint: Checkpoint, config: Config) -> None:
    """Refuse settings that the checkpoint was not made with; only `rounds` may change."""
    if not checkpoint.round:
        return
    made_with, sent = checkpoint.extra.get("config"), checkpoint.extra.get("bytes")
    if not isinstance(made_with, dict) or not isinstance(sent, dict):
        raise CheckpointError(f"the checkpoint in {folder} does not say what it was made with.")
    # Read as a config, so that settings which fedloom did not have then get their defaults.
    before = configs.stored(made_with).what()
    now = config.what()
    for settings in (before, now):
        settings["schedule"] = {**settings["schedule"], "rounds": 0}
    difference = _differences(before, now)
    if difference:
        raise FedloomError(
            f"{folder / 'config.toml'} is not what this run was started with ({difference}); "
            "put it back, or start anew with --fresh."
        )


@contextlib.contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Keep other processes out of a run folder. The lock ends with this process at the latest."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(files.locked(folder / LOCK, wait=False))
        except BlockingIOError:
            raise FedloomError(
                f"another process is working in {folder}; wait for it, or choose another folder."
            ) from None
        yield


def _refuse_other_format(folder: Path, number: object) -> None:
    if number == configs.FORMAT:
        return
    version = "another"
    if isinstance(number, int) and number < configs.FORMAT:
        version = "an older"
    raise CheckpointError(
        f"{folder} was written by {version} version of fedloom (format {number}, this one has "
        f"format {configs.FORMAT}): run it anew in another folder, or with --fresh."
    )


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Which settings differ, and how, in words; empty if none do."""
    parts = []
    for name in sorted({*there, *here}):
        old, new = there.get(name), here.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            parts.append(_differences(old, new))
        else:
            parts.append(f"{name} is {json.dumps(old)} there, {json.dumps(new)} here")
    return ", ".join(parts)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return parse_object(read_regular(path), path)
    except FedloomError as error:
        raise CheckpointError(str(error)) from None


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, each about a round; a kill may have cut the last one.

    Nothing after a damaged line is read.
    """
    if not path.exists():
        return []
    lines: list[dict[str, Any]] = []
    for line in read_regular(path).splitlines():
        try:
            entry = parse_object(line, path)
        except FedloomError:
            break
        if type(entry.get("round")) is not int:
            break
        lines.append(entry)
    return lines


class _Timing(BaseModel):
    """What is read of a line of timing."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    round: int
    seconds: float
    peak_rss_mb: float
    peak_device_mb: float | None = None
    device: str = "cpu"
    spent: dict[str, float] = {}


def _read_timing(path: Path) -> list[dict[str, Any]]:
    """The lines of timing before the first damaged one; no run depends on them."""
    lines = []
    for entry in _read_lines(path):
        try:
            _Timing.model_validate(entry)
        except ValidationError:
            break
        lines.append(entry)
    return lines

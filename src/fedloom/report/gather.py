"""Runs put together: one `Entry` per method with its seeds, and the columns of the leaderboard."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from ..engine.folder import Run
from .figures import ABSENT, Value

MINUS, SIGMA = "\u2212", "\u03c3"
TUNED = "fedavg-tuned"  # a row that comparisons derive from the runs of fedavg
# Where or how a run was computed does not make it another method.
ASIDE = {"seed", "execution", "toml", "schedule.checkpoint_every"}


def number(data: Any, *path: str | int) -> Value:
    """Follow the keys; anything absent, null, not a number or not finite is None."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    if isinstance(data, bool) or not isinstance(data, int | float) or not math.isfinite(data):
        return None
    return float(data)


@dataclass(frozen=True)
class RunData:
    """What the page needs to know of one run."""

    name: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    federation: dict[str, Any]
    picture: bytes | None = None  # a PNG of the samples and of who has what
    timing: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def of(run: Run, name: str | None = None) -> RunData:
        """The run as the page wants it."""
        config = {**run.config.model_dump(mode="json"), "toml": run.config.toml()}
        file = run.folder / "partition.png" if run.folder else None
        picture = file.read_bytes() if file and file.exists() else None
        name = name or run.config.method
        return RunData(name, config, run.metrics, run.summary, run.federation, picture, run.timing)

    @cached_property
    def method(self) -> str:
        """The method's name, or the stem of its file."""
        return Path(str(self.config.get("method") or self.summary.get("method") or self.name)).stem

    @property
    def seed(self) -> Any:
        """The seed, None if it is not told."""
        return self.config.get("seed", self.summary.get("seed"))

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return bool(self.summary.get("finished"))

    @property
    def planned(self) -> int | None:
        """How many rounds the run is to have."""
        rounds = number(self.config, "schedule", "rounds")
        return None if rounds is None else int(rounds)

    @property
    def round(self) -> int:
        """The last round that is known of."""
        lines = [number(line, "round") or 0 for line in (*self.metrics, *self.timing)]
        return int(max(lines, default=0))

    @cached_property
    def evaluated(self) -> list[dict[str, Any]]:
        """The lines with a personal accuracy."""
        return [m for m in self.metrics if number(m, "personal", "accuracy_mean") is not None]

    @cached_property
    def last(self) -> dict[str, Any]:
        """The last evaluated line, or an empty one."""
        return (self.evaluated or [{}])[-1]

    @cached_property
    def stage(self) -> str:
        """Which model is the headline one; a run still without a summary is judged by which of the two it equals."""
        guess = (
            "after"
            if self.last.get("personal") == self.last.get("after") != self.last.get("before")
            else "before"
        )
        return str(self.summary.get("stage") or guess)

    @cached_property
    def clients(self) -> list[Value]:
        """Each client's accuracy with the headline model in the last evaluated round."""
        return [
            number({"a": a}, "a") for a in (self.last.get("clients") or {}).get(self.stage) or []
        ]

    def figure(self, name: str, choice: str = "last") -> Value:
        """A figure of the summary or, while there is none, of the last line."""
        now = number(self.last, "personal", name) if choice == "last" else None
        path = ("personal", name) if name.startswith("accuracy") else (name,)
        return first(number(self.summary, *path, choice), now)

    def domain(self, name: str) -> Value:
        """Last personal accuracy on a domain."""
        return first(
            number(self.summary, "domains", name, "last"),
            number(self.last, "personal", "domains", name),
        )

    def sent(self, way: str) -> Value:
        """Bytes per round, up or down, of all clients together."""
        said, total = (
            number(self.summary, "bytes", way, "per_round"),
            number(self.last, "bytes_total", way),
        )
        return said if said is not None or total is None or not self.round else total / self.round


def first(*values: Value) -> Value:
    """The first value that is known."""
    return next((v for v in values if v is not None), None)


@dataclass(frozen=True)
class Entry:
    """One method with one set of settings: its runs, one per seed, and what a comparison says of it."""

    number: int
    name: str
    method: str
    runs: Sequence[RunData]
    row: Mapping[str, Any] = field(default_factory=dict)
    failed: Sequence[str] = ()

    @cached_property
    def shown(self) -> list[RunData]:
        """The runs that its figures are taken from: the finished ones or, while there is none, those under way."""
        known = [r for r in self.runs if r.evaluated]
        return [r for r in known if r.finished] or known

    @cached_property
    def seeds(self) -> list[Any]:
        """The seeds of the runs shown."""
        return list(dict.fromkeys(r.seed for r in self.shown))

    def over(self, get: Callable[[RunData], Value]) -> tuple[Value, Value]:
        """Mean and std (ddof 1) of a figure over the seeds; no std of a single one."""
        return over(get(r) for r in self.shown)


def over(values: Any) -> tuple[Value, Value]:
    """Mean and std (ddof 1) of the values that are known."""
    known = [v for v in values if v is not None]
    if not known:
        return None, None
    middle = fmean(known)
    if len(known) < 2:
        return middle, None
    return middle, math.sqrt(math.fsum((v - middle) ** 2 for v in known) / (len(known) - 1))


def gather(runs: Sequence[RunData], board: Mapping[str, Any] | None = None) -> list[Entry]:
    """One entry per method and set of settings, in the order in which they come; a board's rows join theirs."""
    board = board or {}
    groups: dict[str, list[RunData]] = {}
    rows = {
        _method(r): r for r in board.get("rows") or [] if isinstance(r, Mapping) and r.get("method")
    }
    if TUNED in rows and TUNED not in {r.method for r in runs}:
        runs = [*runs, *(tuned(r) for r in runs if r.method == "fedavg" and r.evaluated)]
    for run in runs:
        groups.setdefault(json.dumps(_flat(run), sort_keys=True, default=str), []).append(run)
    entries: list[Entry] = []
    for group in groups.values():
        method = group[0].method
        twins = [_flat(g[0]) for g in groups.values() if g[0].method == method]
        row = rows.get(method, {}) if len(twins) == 1 else {}
        name = f"{method} ({said})" if (said := _apart(_flat(group[0]), twins)) else method
        made = Entry(len(entries), name, method, group, failed=_failures(row))
        # A leaderboard written before the latest runs is not about them.
        stale = set(map(str, row.get("seeds") or made.seeds)) != set(map(str, made.seeds))
        entries.append(made if stale else Entry(made.number, name, method, group, row, made.failed))
    seen = {e.method for e in entries}
    for method, row in rows.items():
        if method not in seen:
            entries.append(Entry(len(entries), method, method, [], row, _failures(row)))
    return entries


def tuned(run: RunData) -> RunData:
    """A run of FedAvg seen as FedAvg with local fine-tuning: its models are those after local training."""
    metrics = [
        {**m, "personal": m.get("after"), "common": None, "validation": None} for m in run.metrics
    ]
    kept: dict[str, Any] = {
        k: run.summary[k]
        for k in ("bytes", "seconds", "peak_rss_mb", "finished")
        if k in run.summary
    }
    config = {**run.config, "method": TUNED}
    return replace(
        run,
        name=TUNED,
        config=config,
        metrics=metrics,
        summary={**kept, "method": TUNED, "stage": "after"},
    )


def _method(row: Mapping[str, Any]) -> str:
    return Path(str(row.get("method", ""))).stem


def _failures(row: Mapping[str, Any]) -> list[str]:
    """What failed, as sentences, from a text, a list of texts or of {seed, error}, or a mapping of seeds to errors."""
    found = row.get("failed") or row.get("error") or []
    if isinstance(found, Mapping):
        found = [found] if "error" in found else [{"seed": k, "error": v} for k, v in found.items()]
    said = []
    for item in found if isinstance(found, list | tuple) else [found]:
        if isinstance(item, Mapping):
            seed = f"seed {item['seed']}: " if item.get("seed") is not None else ""
            item = f"{seed}{item.get('error', 'failed')}"
        said.append(str(item))
    return said


def _flat(run: RunData) -> dict[str, Any]:
    """A run's settings by dotted name, without those that do not make it another method."""
    flat: dict[str, Any] = {}

    def walk(data: Mapping[str, Any], path: str) -> None:
        for key, value in data.items():
            if f"{path}{key}" in ASIDE:
                continue
            if isinstance(value, Mapping):
                walk(value, f"{path}{key}.")
            else:
                flat[f"{path}{key}"] = value

    walk(run.config, "")
    return flat or {"method": run.method}


def _apart(own: Mapping[str, Any], twins: Sequence[Mapping[str, Any]]) -> str:
    """The settings in which runs of the same method differ."""
    keys = [k for k in own if len({json.dumps(t.get(k), default=str) for t in twins}) > 1]
    return ", ".join(f"{k.split('.')[-1]}={own[k]}" for k in keys)


# -- against training alone -------------------------------------------------------------------------------------------
def alone(run: RunData, runs: Sequence[RunData]) -> RunData | None:
    """The run of `local` over the same federation, of the same seed."""
    for other in runs:
        if (
            other.method == "local"
            and other.seed == run.seed
            and other.federation == run.federation
            and other.clients
        ):
            return other
    return None


def gains(run: RunData, runs: Sequence[RunData]) -> list[Value]:
    """By how much each client is better off than alone; nothing if that is not known."""
    base = alone(run, runs)
    if run.method == "local" or base is None:
        return []
    pairs = zip(run.clients, base.clients, strict=False)
    return [None if a is None or b is None else a - b for a, b in pairs]


# -- the leaderboard's columns ----------------------------------------------------------------------------------------
def percent(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.1f}"


def signed(value: float) -> str:
    """A difference in points."""
    return f"{100 * value:+.1f}".replace("-", MINUS)


def amount(value: float) -> str:
    """A cost with about three digits, whatever its size."""
    if value >= 1e5:
        return f"{value:.2g}".replace("e+0", "e").replace("e+", "e")
    return (
        f"{value:,.0f}"
        if value >= 100 or value == 0
        else f"{value:.1f}"
        if value >= 10
        else f"{value:.2g}"
    )


def megabytes(value: float) -> str:
    """Bytes as MB."""
    return amount(value / 1e6)


Get = Callable[[RunData, Sequence[RunData]], Value]


@dataclass(frozen=True)
class Column:
    """A column: its name in `leaderboard.json`, how it is read from a run, and whether it ranks (None: it does not)."""

    key: str
    group: str
    label: str
    unit: str
    get: Get
    show: Callable[[float], str] = percent
    higher: bool | None = True
    minor: bool = False


def _figure(name: str, choice: str = "last") -> Get:
    return lambda r, _: r.figure(name, choice)


def _share(run: RunData, runs: Sequence[RunData]) -> Value:
    known = [g for g in gains(run, runs) if g is not None]
    return sum(g > 0 for g in known) / len(known) if known else None


def _gain(run: RunData, runs: Sequence[RunData]) -> Value:
    known = [g for g in gains(run, runs) if g is not None]
    return fmean(known) if known else None


def _tenth(run: RunData, _: object) -> Value:
    known = sorted(c for c in run.clients if c is not None)
    return fmean(known[: math.ceil(len(known) / 10)]) if known else None


def _common(run: RunData, _: object) -> Value:
    return first(
        number(run.summary, "common", "accuracy", "last"),
        number(run.last, "common", "accuracy_mean"),
    )


def _clustering(run: RunData, _: object) -> Value:
    """Whether a method that finds groups of clients finds their domains."""
    return first(number(run.summary, "clustering", "last"), number(run.last, "clustering"))


def _lost(run: RunData, _: object) -> Value:
    """How many of those who were asked were not heard of again, in the evaluated rounds; None if all were."""
    asked = sum(m.get("participants", 0) for m in run.metrics)
    lost = sum(len(m.get("lost", ())) for m in run.metrics)
    return lost / asked if lost else None


def _seconds(run: RunData, _: object) -> Value:
    spent = [s for t in run.timing if (s := number(t, "seconds")) is not None]
    return first(number(run.summary, "seconds"), sum(spent) if spent else None)


def _only_told(*_: object) -> Value:
    """A figure that only a comparison computes."""
    return None


COLUMNS = (
    Column("personal", "Accuracy", "Personal", "%", _figure("accuracy_mean")),
    Column("personal_best_by_validation", "Accuracy", "by validation", "%",
           _figure("accuracy_mean", "best_by_validation"), minor=True),
    Column("personal_best", "Accuracy", "best\u00a0on test", "%", _figure("accuracy_mean", "best"),
           higher=None, minor=True),
    Column("common", "Accuracy", "Common", "%", _common),
    Column("dice", "Accuracy", "Dice", "%", lambda r, _: number(r.last, "personal", "dice")),
    Column("gain_over_local", "Against alone", "Mean gain", "points", _gain, signed),
    Column("better_than_local", "Against alone", "Better\u00a0off", "%\u00a0of\u00a0clients", _share),
    Column("worst_client", "Fairness", "Worst client", "%", _figure("worst_client")),
    Column("worst_decile", "Fairness", "Worst tenth", "%", _tenth),
    Column("domain_avg", "Fairness", "Domain average", "%", _figure("domain_avg"), minor=True),
    Column("domain_std", "Fairness", "Domain std", "points", _figure("domain_std"), higher=False),
    Column("sigma_type", "Fairness", f"{SIGMA} type", "points", _figure("sigma_type"), higher=False, minor=True),
    Column("sigma_client", "Fairness", f"{SIGMA} client", "points", _figure("sigma_client"), higher=False, minor=True),
    Column("clustering", "Fairness", "Clients by type", "%", _clustering, minor=True),
    Column("bytes_up_per_round", "Cost", "Up", "MB/round", lambda r, _: r.sent("up"), megabytes, False),
    Column("bytes_down_per_round", "Cost", "Down", "MB/round", lambda r, _: r.sent("down"), megabytes, False),
    Column("floats_up", "Cost", "Numbers up", "client, round", lambda r, _: number(r.summary, "floats", "up"),
           lambda v: f"{v:,.0f}", None, True),
    Column("lost", "Cost", "Lost", "%\u00a0of\u00a0uploads", _lost, percent, None, True),
    Column("rounds_to_target", "Cost", "To target", "rounds", _only_told, amount, False),
    Column("bytes_to_target", "Cost", "To target", "MB", _only_told, megabytes, False),
    Column("seconds_to_target", "Cost", "To target", "s", _only_told, amount, None, True),
    Column("flops_per_round", "Cost", "Work", "GFLOP/round", _only_told, lambda v: amount(v / 1e9), False, True),
    Column("seconds", "Cost", "Time", "s", _seconds, amount, None, True),
    Column("peak_rss_mb", "Cost", "Memory", "MB", lambda r, _: number(r.summary, "peak_rss_mb"), amount, None, True),
)  # fmt: skip


def cell(entry: Entry, column: Column, runs: Sequence[RunData]) -> tuple[Value, Value]:
    """Mean and std over seeds of a column for a method: the comparison's own if it has one.

    What a target cost is told only where every seed reached it: the lucky ones alone would look cheap.
    """
    reached = number(entry.row, "target_reached")
    if (
        column.key.endswith("_to_target")
        and reached is not None
        and reached < len(entry.row.get("seeds", ()))
    ):
        return None, None
    if (said := number(entry.row, column.key)) is not None:
        return said, number(entry.row, f"{column.key}_std")
    return entry.over(lambda r: column.get(r, runs))


def text(value: Value, std: Value, show: Callable[[float], str]) -> str:
    """A value with its spread over seeds; a spread of zero, as of bytes, need not be told."""
    if value is None:
        return ABSENT
    return show(value) if not std else f"{show(value)} ± {show(std).lstrip('+')}"

"""What the report knows: `RunData` is one run, an `Entry` one method with the runs of its seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from ..engine.config import affecting
from ..engine.folder import Run
from ..metrics.registry import DEFAULT, Metric, headline
from .figures import Value

# A row that comparisons derive from the runs of fedavg. It is not the method `fedavg-ft`, which
# tunes the newest average and not the one before.
TUNED = "fedavg-tuned"
# Where or how a run was computed does not make it another method.
ASIDE = {"seed", "toml"} | affecting("nothing")
Row = Mapping[str, Any]  # a row of a comparison's leaderboard.json


def number(data: Any, *path: str | int) -> Value:
    """Follow the keys to a number; whatever is absent, not a number or not finite is None."""
    for key in path:
        if not isinstance(data, Mapping):
            return None
        data = data.get(key)
    if isinstance(data, bool) or not isinstance(data, int | float) or not math.isfinite(data):
        return None
    return float(data)


def first(*values: Value) -> Value:
    """The first value that is not None."""
    for value in values:
        if value is not None:
            return value
    return None


def present(values: Iterable[Value]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def mean_std(values: Iterable[Value]) -> tuple[Value, Value]:
    """Mean and std (ddof 1) of the values that are not None; a single value has no std."""
    numbers = present(values)
    if not numbers:
        return None, None
    middle = fmean(numbers)
    if len(numbers) < 2:
        return middle, None
    squares = math.fsum((value - middle) ** 2 for value in numbers)
    return middle, math.sqrt(squares / (len(numbers) - 1))


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

    @classmethod
    def of(cls, run: Run, name: str | None = None) -> RunData:
        """The run as the page wants it."""
        config = {**run.config.model_dump(mode="json"), "toml": run.config.toml()}
        picture = None
        if run.folder and (run.folder / "partition.png").exists():
            picture = (run.folder / "partition.png").read_bytes()
        name = name or run.config.method
        return cls(name, config, run.metrics, run.summary, run.federation, picture, run.timing)

    @cached_property
    def method(self) -> str:
        """The method's name, or the stem of its file."""
        name = self.config.get("method") or self.summary.get("method") or self.name
        return Path(str(name)).stem

    @property
    def seed(self) -> Any:
        """The seed, or None if neither config nor summary has one."""
        return self.config.get("seed", self.summary.get("seed"))

    @property
    def metric(self) -> str:
        """The name of the headline metric."""
        schedule = self.config.get("schedule") or {}
        return str(schedule.get("metric") or self.summary.get("metric") or DEFAULT)

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return bool(self.summary.get("finished"))

    @property
    def planned(self) -> int | None:
        """How many rounds the run is meant to have."""
        rounds = number(self.config, "schedule", "rounds")
        if rounds is None:
            return None
        return int(rounds)

    @property
    def round(self) -> int:
        """The latest round in metrics or timing."""
        latest = 0.0
        for line in (*self.metrics, *self.timing):
            latest = max(latest, number(line, "round") or 0.0)
        return int(latest)

    @cached_property
    def evaluated(self) -> list[dict[str, Any]]:
        """The lines of metrics with a personal accuracy."""
        lines = []
        for line in self.metrics:
            if number(line, "personal", "accuracy_mean") is not None:
                lines.append(line)
        return lines

    @cached_property
    def last(self) -> dict[str, Any]:
        """The last evaluated line, or an empty one."""
        if not self.evaluated:
            return {}
        return self.evaluated[-1]

    @cached_property
    def stage(self) -> str:
        """Whether the headline model is the one `before` or `after` local training.

        A run that has no summary yet is judged by which of the two its figures equal.
        """
        if self.summary.get("stage"):
            return str(self.summary["stage"])
        personal, after = self.last.get("personal"), self.last.get("after")
        if personal == after and after != self.last.get("before"):
            return "after"
        return "before"

    @cached_property
    def clients(self) -> list[Value]:
        """Each client's accuracy with the headline model in the last evaluated round."""
        accuracies = (self.last.get("clients") or {}).get(self.stage) or []
        return list(map(number, accuracies))

    @property
    def remarks(self) -> list[str]:
        """Sentences about the headline model that a reader must not miss."""
        remarks = self.summary.get("remarks") or (self.last.get("personal") or {}).get("remarks")
        if isinstance(remarks, list):
            return list(map(str, remarks))
        return []

    def figure(self, name: str, choice: str = "last") -> Value:
        """A figure of the summary or, while there is none, of the last evaluated line."""
        if name.startswith("accuracy"):
            return self.personal(name, choice)
        return first(number(self.summary, name, choice), self._latest(name, choice))

    def personal(self, key: str, choice: str = "last") -> Value:
        """A metric's mean over the clients' own models, by the metric's key."""
        return first(number(self.summary, "personal", key, choice), self._latest(key, choice))

    def _latest(self, key: str, choice: str) -> Value:
        if choice != "last":
            return None
        return number(self.last, "personal", key)

    def domain(self, name: str) -> Value:
        """The last personal accuracy on a domain."""
        return first(
            number(self.summary, "domains", name, "last"),
            number(self.last, "personal", "domains", name),
        )

    def sent(self, way: str) -> Value:
        """Bytes per round, `up` or `down`, of all clients together."""
        summed_up = number(self.summary, "bytes", way, "per_round")
        total = number(self.last, "bytes_total", way)
        if summed_up is not None or total is None or not self.round:
            return summed_up
        return total / self.round


@dataclass(frozen=True)
class Entry:
    """One method with one set of settings: a run per seed, and its row in a comparison's board."""

    number: int
    name: str
    method: str
    runs: Sequence[RunData]
    row: Row = field(default_factory=dict)
    failed: Sequence[str] = ()

    @cached_property
    def shown(self) -> list[RunData]:
        """The runs behind its figures: the finished ones or, without any, those under way."""
        evaluated = [run for run in self.runs if run.evaluated]
        finished = [run for run in evaluated if run.finished]
        return finished or evaluated

    @cached_property
    def seeds(self) -> list[Any]:
        """The seeds of the runs shown."""
        return seeds_of(self.shown)

    def over(self, get: Callable[[RunData], Value]) -> tuple[Value, Value]:
        """Mean and std (ddof 1) of a figure over the seeds."""
        return mean_std(map(get, self.shown))


# -- from runs to entries ------------------------------------------------------------------------
def gather(runs: Sequence[RunData], board: Mapping[str, Any] | None = None) -> list[Entry]:
    """One entry per method and set of settings, in order, with its row of the board."""
    rows = {}
    for row in (board or {}).get("rows") or []:
        if isinstance(row, Mapping) and row.get("method"):
            rows[Path(str(row["method"])).stem] = row
    groups: dict[str, list[RunData]] = {}
    for run in _with_tuned(runs, rows):
        settings = json.dumps(_settings(run), sort_keys=True, default=str)
        groups.setdefault(settings, []).append(run)
    entries = []
    for place, group in enumerate(groups.values()):
        entries.append(_entry(place, group, list(groups.values()), rows))
    without_runs = dict(rows)
    for entry in entries:
        without_runs.pop(entry.method, None)
    for method, row in without_runs.items():
        entries.append(Entry(len(entries), method, method, [], row, _failures(row)))
    return entries


def common_metric(runs: Sequence[RunData]) -> Metric:
    """The headline metric of runs that have the same one; otherwise accuracy, which all have."""
    names = {run.metric for run in runs}
    if len(names) == 1:
        return headline(names.pop())
    return headline(DEFAULT)


def _with_tuned(runs: Sequence[RunData], rows: Mapping[str, Row]) -> list[RunData]:
    """The runs and, if only the board has a row of fine-tuned FedAvg, what that row is made of."""
    everything = list(runs)
    if TUNED not in rows or any(run.method == TUNED for run in runs):
        return everything
    for run in runs:
        if run.method == "fedavg" and run.evaluated:
            everything.append(tuned(run))
    return everything


def _entry(
    place: int, group: list[RunData], groups: list[list[RunData]], rows: Mapping[str, Row]
) -> Entry:
    method = group[0].method
    twins = []
    for other in groups:
        if other[0].method == method:
            twins.append(_settings(other[0]))
    row: Row = {}
    if len(twins) == 1:
        row = rows.get(method, {})
    name = method
    difference = _difference(_settings(group[0]), twins)
    if difference:
        name = f"{method} ({difference})"
    entry = Entry(place, name, method, group, failed=_failures(row))
    # A leaderboard that was written before the latest runs is not about them.
    listed = row.get("seeds") or entry.seeds
    if set(map(str, listed)) == set(map(str, entry.seeds)):
        entry = replace(entry, row=row)
    return entry


def tuned(run: RunData) -> RunData:
    """A run of FedAvg seen as FedAvg with local fine-tuning: models after training count."""
    metrics = []
    for line in run.metrics:
        metrics.append({**line, "personal": line.get("after"), "common": None, "validation": None})
    summary: dict[str, Any] = {"method": TUNED, "stage": "after"}
    for key in ("bytes", "seconds", "peak_rss_mb", "finished"):
        if key in run.summary:
            summary[key] = run.summary[key]
    config = {**run.config, "method": TUNED}
    return replace(run, name=TUNED, config=config, metrics=metrics, summary=summary)


def _failures(row: Row) -> list[str]:
    """What failed, from a text, {seed, error}, a list of these, or {seed: error}."""
    failures = row.get("failed") or row.get("error") or []
    if isinstance(failures, Mapping) and "error" not in failures:
        return [_failure(seed, error) for seed, error in failures.items()]
    if not isinstance(failures, list | tuple):
        failures = [failures]
    texts = []
    for failure in failures:
        if isinstance(failure, Mapping):
            texts.append(_failure(failure.get("seed"), failure.get("error", "failed")))
        else:
            texts.append(str(failure))
    return texts


def _failure(seed: Any, error: Any) -> str:
    if seed is None:
        return str(error)
    return f"seed {seed}: {error}"


def _settings(run: RunData) -> dict[str, Any]:
    """A run's settings by dotted name, without those that do not make it another method."""
    return _flat(run.config, "") or {"method": run.method}


def _flat(data: Mapping[str, Any], path: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{path}{key}"
        if name in ASIDE:
            continue
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _difference(settings: Mapping[str, Any], twins: Sequence[Mapping[str, Any]]) -> str:
    """The settings in which runs of the same method differ, as `name=value`."""
    parts = []
    for key, value in settings.items():
        variants = {json.dumps(twin.get(key), default=str) for twin in twins}
        if len(variants) > 1:
            parts.append(f"{key.split('.')[-1]}={value}")
    return ", ".join(parts)


# -- against training alone ----------------------------------------------------------------------
def alone(run: RunData, runs: Sequence[RunData]) -> RunData | None:
    """The run of `local` over the same federation with the same seed."""
    for other in runs:
        same = other.seed == run.seed and other.federation == run.federation
        if other.method == "local" and same and other.clients:
            return other
    return None


def gains(run: RunData, runs: Sequence[RunData]) -> list[Value]:
    """How much better off each client is than alone; empty if there is no run of `local`."""
    base = alone(run, runs)
    if run.method == "local" or base is None:
        return []
    gained: list[Value] = []
    for with_others, by_itself in zip(run.clients, base.clients, strict=False):
        if with_others is None or by_itself is None:
            gained.append(None)
        else:
            gained.append(with_others - by_itself)
    return gained


def seeds_of(runs: Iterable[RunData]) -> list[Any]:
    """The seeds of the runs, each once."""
    return list(dict.fromkeys(run.seed for run in runs))


def listed_seeds(runs: Iterable[RunData]) -> str:
    """The seeds of the runs in words, with `seed` or `seeds` in front of them."""
    seeds = list(map(str, seeds_of(runs)))
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"seeds {', '.join(seeds)}"


def shown_runs(entries: Sequence[Entry]) -> list[RunData]:
    """The runs behind the figures of all entries."""
    runs: list[RunData] = []
    for entry in entries:
        runs += entry.shown
    return runs


def domain_names(entries: Sequence[Entry]) -> list[str]:
    """All domains, in the order of the data."""
    names: dict[str, None] = {}
    for entry in entries:
        for run in entry.runs:
            names |= dict.fromkeys(map(str, run.federation.get("domains") or []))
    for entry in entries:
        for run in entry.runs:
            names |= dict.fromkeys(map(str, run.summary.get("domains") or {}))
    return list(names)


def domain_order(
    federation: Mapping[str, Any], size: int
) -> tuple[list[int], list[str], list[str | None]]:
    """The order of the clients, domain by domain, with their labels and domains."""
    clients = federation.get("clients") or []
    domains: list[str | None] = [None] * size
    for j, client in enumerate(clients[:size]):
        if client.get("domain") is not None:
            domains[j] = str(client["domain"])
    listed = dict.fromkeys([*(map(str, federation.get("domains") or [])), *domains])
    rank = {domain: place for place, domain in enumerate(listed)}
    order = sorted(range(size), key=lambda j: rank[domains[j]])
    return order, list(map(str, order)), [domains[j] for j in order]

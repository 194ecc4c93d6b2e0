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

from ..data.described import listed
from ..engine.config import affecting
from ..engine.folder import Run
from ..metrics.distribution import Distribution
from ..metrics.fairness import gains_over
from ..metrics.registry import DEFAULT, Metric, headline
from ..metrics.summary import client_spread, client_values, headline_line
from .figures import Value
from .palette import slots

# A row that comparisons derive from the runs of fedavg. It is not the method `fedavg-ft`, which
# tunes the newest average and not the one before.
AFTER = "fedavg-after"
ALONE = "local"  # training alone, which methods are measured against unless somebody says otherwise
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
    # The headline of a page on which runs with another one are shown; empty for the run's own.
    judged_by: str = ""

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
    def chosen(self) -> dict[str, Any]:
        """The evaluated line that stands for the run, or an empty one.

        It is that of the round chosen on validation data. Without such data, and while the run goes
        on, it is the last.
        """
        return headline_line(self.evaluated, self.summary)

    @property
    def by_validation(self) -> bool:
        """Whether validation data chose that round."""
        return number(self.summary, "chosen_rounds", "best_by_validation") is not None

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
        """Each client's value of the headline metric, with the headline model, in that round."""
        values = client_values(self.chosen, self.stage, self.judged_by or self.metric)
        return list(map(number, values))

    @cached_property
    def spread(self) -> Distribution | None:
        """How that value is distributed, where there are too many clients to list them."""
        return client_spread(self.chosen, self.stage, self.judged_by or self.metric)

    @cached_property
    def ranked(self) -> list[float]:
        """Accuracies from the worst client to the best; percentiles of clients not listed."""
        spread = client_spread(self.chosen, self.stage, DEFAULT)
        return list(spread.quantiles) if spread else sorted(present(self.accuracies))

    @property
    def judged(self) -> list[Value]:
        """What runs are compared by: every client's value or, of too many, their mean."""
        return [self.spread.mean] if self.spread else self.clients

    @cached_property
    def accuracies(self) -> list[Value]:
        """The same of accuracy."""
        return list(map(number, client_values(self.chosen, self.stage, DEFAULT)))

    @property
    def remarks(self) -> list[str]:
        """Sentences about the headline model that a reader must not miss."""
        remarks = (self.chosen.get("personal") or {}).get("remarks")
        if isinstance(remarks, list):
            return list(map(str, remarks))
        return []

    def figure(self, key: str) -> Value:
        """A figure of the clients' own models in the round that stands for the run."""
        return number(self.chosen, "personal", key)

    def common(self, key: str) -> Value:
        """The same of the one model for all."""
        return number(self.chosen, "common", key)

    def last_value(self, key: str) -> Value:
        """A figure of the clients' own models in the last evaluated round."""
        return number(self.last, "personal", key)

    def best_value(self, key: str) -> Value:
        """The same in the round that test data would choose."""
        return number(self.summary, "personal", key, "best")

    def domain(self, name: str) -> Value:
        """The accuracy on a domain in the round that stands for the run."""
        return number(self.chosen, "personal", "domains", name)

    def sent(self, way: str) -> Value:
        """Bytes per round, `up` or `down`, of all clients together."""
        summed_up = number(self.summary, "bytes", way, "per_round")
        total = number(self.last, "bytes_total", way)
        if summed_up is not None or total is None or not self.round:
            return summed_up
        return total / self.round


@dataclass(frozen=True)
class Entry:
    """One method with one set of settings: a run per seed, and its row in a comparison's board.

    Its number decides its colour, dashes and symbol; no other method on the page has that number.
    """

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
    for group in groups.values():
        entries.append(_entry(group, list(groups.values()), rows))
    without_runs = dict(rows)
    for entry in entries:
        without_runs.pop(entry.method, None)
    for method, row in without_runs.items():
        entries.append(Entry(0, method, method, [], row, _failures(row)))
    numbers = slots([entry.name for entry in entries])
    return [replace(entry, number=numbers[entry.name]) for entry in entries]


def common_metric(runs: Sequence[RunData]) -> Metric:
    """The headline metric of runs that have the same one; otherwise accuracy, which all have."""
    names = {run.metric for run in runs}
    if len(names) == 1:
        return headline(names.pop())
    return headline(DEFAULT)


def _with_tuned(runs: Sequence[RunData], rows: Mapping[str, Row]) -> list[RunData]:
    """The runs and, if only the board has a row of fine-tuned FedAvg, what that row is made of."""
    everything = list(runs)
    if AFTER not in rows or any(run.method == AFTER for run in runs):
        return everything
    for run in runs:
        if run.method == "fedavg" and run.evaluated:
            everything.append(tuned(run))
    return everything


def _entry(group: list[RunData], groups: list[list[RunData]], rows: Mapping[str, Row]) -> Entry:
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
    entry = Entry(0, name, method, group, failed=_failures(row))
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
    summary: dict[str, Any] = {"method": AFTER, "stage": "after"}
    for key in ("bytes", "seconds", "peak_rss_mb", "peak_device_mb", "finished"):
        if key in run.summary:
            summary[key] = run.summary[key]
    config = {**run.config, "method": AFTER}
    return replace(run, name=AFTER, config=config, metrics=metrics, summary=summary)


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


# -- against another method ----------------------------------------------------------------------
def partner(run: RunData, runs: Sequence[RunData], method: str = ALONE) -> RunData | None:
    """The run of a method, by default training alone, on the same federation with the same seed."""
    for other in runs:
        same = other.seed == run.seed and other.federation == run.federation
        if other.method == method and same and other.clients:
            return other
    return None


def gains(run: RunData, runs: Sequence[RunData], against: str = ALONE) -> list[Value]:
    """How much better off each client is than with `against`; empty if that has no such run."""
    base = partner(run, runs, against)
    if run.method == against or base is None:
        return []
    higher = headline(run.judged_by or run.metric).higher
    return gains_over(base.clients, run.clients, higher)


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
    clients = listed(federation)
    domains: list[str | None] = [None] * size
    for j, client in enumerate(clients[:size]):
        if client.get("domain") is not None:
            domains[j] = str(client["domain"])
    names = dict.fromkeys([*(map(str, federation.get("domains") or [])), *domains])
    rank = {domain: place for place, domain in enumerate(names)}
    order = sorted(range(size), key=lambda j: rank[domains[j]])
    return order, list(map(str, order)), [domains[j] for j in order]


def likeness(federation: Mapping[str, Any]) -> str:
    """A text that is the same for federations whose client k is the same sort of client.

    It has the same domain or, without domains, the same samples.
    """
    domains = [client.get("domain") for client in listed(federation)]
    if domains and None not in domains:
        return json.dumps(domains)
    return json.dumps(federation, sort_keys=True)

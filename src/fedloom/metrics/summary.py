"""A run's figures at three rounds: the last, the best on validation data, the best on test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .distribution import Distribution
from .registry import DEFAULT, METRICS, Metric, headline

Record = dict[str, Any]
Chosen = dict[str, Any]  # by the name of a chosen round, a figure at it
SPREADS = ("domain_avg", "domain_std", "sigma_type", "sigma_client", "worst_client")
ACCURACIES = ("accuracy_mean", "accuracy_weighted", "accuracy_std")


def summarise_run(
    metrics: list[Record], timing: list[Record], metric: str = DEFAULT
) -> dict[str, Any]:
    """The part of `summary.json` that is computed from the lines of metrics.

    `metric` chooses the rounds. `best` is picked with test data and therefore optimistic;
    `best_by_validation` is null without validation data.
    """
    cost = _cost(metrics, timing)
    if not metrics or not metrics[-1]["personal"]:
        return {"chosen_rounds": {}, "personal": {}, "common": None, "domains": {}, **cost}
    chosen = _chosen(metrics, headline(metric))
    last = metrics[-1]
    summary: dict[str, Any] = {
        "metric": metric,
        "chosen_rounds": _pick(chosen, "round"),
        "personal": _all_metrics(chosen, "personal", ACCURACIES),
        "before": {"accuracy_mean": _pick(chosen, "before", "accuracy_mean")},
        "after": {"accuracy_mean": _pick(chosen, "after", "accuracy_mean")},
        "common": None,
        "figures": _figures_of_method(metrics),
        "remarks": last["personal"].get("remarks", []),
        **_by_domain(chosen, "personal"),
    }
    if last["common"]:
        common = {"accuracy": _pick(chosen, "common", "accuracy_mean")}
        summary["common"] = common | _all_metrics(chosen, "common") | _by_domain(chosen, "common")
    if "outside" in last:
        summary["outside"] = _outside(chosen, last["outside"])
    if any("clustering" in record for record in metrics):
        summary["clustering"] = _pick(chosen, "clustering")
    return summary | cost


def _outside(chosen: dict[str, Record | None], last: Record) -> dict[str, Any]:
    """By name and stage, the accuracy of clients that never train."""
    figures: dict[str, Any] = {}
    for group, stages in last.items():
        figures[group] = {}
        for stage, value in stages.items():
            figures[group][stage] = None
            if value:
                figures[group][stage] = _pick(chosen, "outside", group, stage, "accuracy_mean")
    return figures


def headline_line(metrics: Sequence[Record], summary: Mapping[str, Any]) -> Record:
    """The line of metrics that stands for a run; an empty one if there is none.

    It is that of the round chosen on validation data. Without such data, and as long as the run has
    no summary, it is the last.
    """
    if not metrics:
        return {}
    chosen = (summary.get("chosen_rounds") or {}).get("best_by_validation")
    for line in metrics:
        if chosen is not None and line["round"] == chosen:
            return line
    return metrics[-1]


def client_values(line: Record, stage: str, metric: str) -> list[float | None]:
    """Each client's value of the headline metric, with its model of that stage.

    Lines hold every client's accuracy, and its value of another headline beside it. Lines from
    before they did so say nothing about a client, nor do those of very many clients; see
    `client_spread`.
    """
    accuracies = (line.get("clients") or {}).get(stage) or []
    if isinstance(accuracies, Mapping):
        return []
    if metric == DEFAULT:
        return list(accuracies)
    values: list[float | None] | None = (line.get("headline") or {}).get(stage)
    if values is None:
        return [None] * len(accuracies)
    return values


def client_spread(line: Record, stage: str, metric: str) -> Distribution | None:
    """How the clients' values are distributed, in a line that does not list them."""
    key = "clients" if metric == DEFAULT else "headline"
    return Distribution.read((line.get(key) or {}).get(stage))


def _chosen(metrics: list[Record], metric: Metric) -> dict[str, Record | None]:
    """The rounds to look at; of rounds that are equally good, the first."""
    return {
        "last": metrics[-1],
        "best": _best(metrics, metric, "personal", metric.key),
        "best_by_validation": best_by_validation(metrics, metric),
    }


def best_by_validation(metrics: list[Record], metric: Metric) -> Record | None:
    """The line of the round that validation data choose; None without validation data."""
    return _best(metrics, metric, "validation", "personal")


def _best(metrics: list[Record], metric: Metric, who: str, key: str) -> Record | None:
    """The first of the records with the best value; None if no record has one."""
    best: Record | None = None
    for record in metrics:
        value = record[who].get(key)
        if value is not None and (best is None or metric.better(value, best[who][key])):
            best = record
    return best


def _pick(chosen: dict[str, Record | None], *path: str) -> Chosen:
    """What each of the chosen records has at the end of a path of keys; None if it has nothing."""
    values: Chosen = {}
    for name, record in chosen.items():
        value: Any = record
        for key in path:
            if value is not None:
                value = value.get(key)
        values[name] = value
    return values


def _all_metrics(
    chosen: dict[str, Record | None], who: str, first: Sequence[str] = ()
) -> dict[str, Chosen]:
    """Every metric that the last line has: the mean over clients, all samples, each class."""
    last = chosen["last"] or {}
    keys = list(first)
    for name, metric in METRICS.items():
        if name != DEFAULT:
            keys += [metric.key, f"{name}_pooled", f"{name}_classes"]
    return {key: _pick(chosen, who, key) for key in keys if key in last[who]}


def _by_domain(chosen: dict[str, Record | None], who: str) -> dict[str, Any]:
    last = chosen["last"] or {}
    domains = {}
    for name in last[who]["domains"]:
        domains[name] = _pick(chosen, who, "domains", name)
    figures: dict[str, Any] = {"domains": domains}
    for name in SPREADS:
        figures[name] = _pick(chosen, who, name)
    return figures


def _cost(metrics: list[Record], timing: list[Record]) -> dict[str, Any]:
    """What the run has sent, and how long and how large it was."""
    last: Record = {"round": 0, "bytes_total": {"up": 0, "down": 0}}
    if metrics:
        last = metrics[-1]
    rounds = last["round"]
    sent = {}
    for way, number in last["bytes_total"].items():
        sent[way] = {"total": number, "per_round": 0}
        if rounds:
            sent[way]["per_round"] = number / rounds
    spent = {}
    for who in ("clients", "server", "evaluation"):
        spent[who] = round(sum(line.get("spent", {}).get(who, 0.0) for line in timing), 3)
    seconds = sum(line["seconds"] for line in timing)
    seconds_per_round = None
    if rounds:
        seconds_per_round = round(seconds / rounds, 4)
    on_device = [line["peak_device_mb"] for line in timing if "peak_device_mb" in line]
    clock = {}
    if "simulated_seconds" in last:
        clock["simulated_seconds"] = last["simulated_seconds"]
    return {
        **clock,
        "bytes": sent,
        "floats": last.get("floats"),  # up and down, per client in the last round
        "seconds": round(seconds, 3),
        "spent": spent,
        "seconds_per_round": seconds_per_round,
        "peak_rss_mb": round(max((line["peak_rss_mb"] for line in timing), default=0.0), 1),
        "peak_device_mb": max(on_device, default=None),
    }


def _figures_of_method(metrics: list[Record]) -> dict[str, dict[str, float]]:
    """The method's own figures: after the last round, and the least and the most of all rounds."""
    values: dict[str, list[float]] = {}
    for record in metrics:
        for name, value in record.get("figures", {}).items():
            values.setdefault(name, []).append(value)
    summary = {}
    for name, series in values.items():
        summary[name] = {"last": series[-1], "least": min(series), "most": max(series)}
    return summary

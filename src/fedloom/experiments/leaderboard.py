"""The leaderboard of a comparison: a row per method, a column per metric, the headline first.

Columns of accuracy and cost are always there. All other metrics come from the registry, so a new
one has its column without a change here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..client.training import Training
from ..core.version import __version__
from ..engine.folder import Run
from ..metrics.fairness import compared, worst_share
from ..metrics.registry import DEFAULT, METRICS, Metric, headline
from ..metrics.summary import summarise_run
from .plan import Cell
from .statistics import ALPHA, paired_tests
from .values import mean_and_std, value_at

# Not `fedavg-ft`, a method of its own, which tunes the newest average and not the one before.
TUNED = "fedavg-tuned"
# Figures that another computer, or a resumed run, changes.
MACHINE = ("seconds", "seconds_to_target", "peak_rss_mb")
Runs = dict[str, dict[int, Run]]  # by method and seed

COLUMNS = {
    "personal": "personal.accuracy_mean.last",
    "personal_best_by_validation": "personal.accuracy_mean.best_by_validation",
    "personal_best": "personal.accuracy_mean.best",
    "common": "common.accuracy.last",
    "common_best_by_validation": "common.accuracy.best_by_validation",
    "common_best": "common.accuracy.best",
    "domain_avg": "domain_avg.last",
    "domain_std": "domain_std.last",
    "sigma_type": "sigma_type.last",
    "sigma_client": "sigma_client.last",
    "worst_client": "worst_client.last",
    "better_than_local": "better_than_local.share",
    "gain_over_local": "better_than_local.mean_gain",
    "bytes_up_per_round": "bytes.up.per_round",
    "bytes_down_per_round": "bytes.down.per_round",
    "seconds": "seconds",
    "peak_rss_mb": "peak_rss_mb",
}
EXTRA = (
    "worst_decile",
    "rounds_to_target",
    "bytes_to_target",
    "seconds_to_target",
    "flops_per_round",
)


def metric_columns() -> list[Metric]:
    """The metrics that have a column of their own beside accuracy."""
    return [m for name, m in METRICS.items() if m.headline and name != DEFAULT]


def leaderboard(
    cells: Sequence[Cell],
    title: str,
    target: float | None = None,
    flops: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """The whole comparison as plain values.

    It has a row per method, best first by the headline metric, the tests between methods, and the
    list of runs. `target` is an accuracy; None takes what clients reach alone.
    """
    runs: Runs = {}
    for cell in cells:
        seeds = runs.setdefault(cell.name, {})
        if cell.run:
            seeds[cell.config.seed] = cell.run
    flops = dict(flops or {})
    notes: dict[str, str] = {}
    if runs.get("fedavg") and "fedavg-ft" not in runs:  # the method itself says more
        runs[TUNED] = {seed: finetuned(run) for seed, run in runs["fedavg"].items()}
        flops[TUNED] = flops.get("fedavg")
        notes[TUNED] = _how_tuned(runs["fedavg"])
    notes |= _own_training({cell.name: cell.config.training for cell in cells})
    _compare_with_alone(runs)
    target, target_is = _target(runs.get("local", {}), target)
    rows = []
    for name, by_seed in runs.items():
        failed = []
        for cell in cells:
            if cell.name == name and cell.error:
                failed.append({"seed": cell.config.seed, "error": cell.error})
        row = {"method": name, "seeds": sorted(by_seed), "failed": failed, "note": notes.get(name)}
        each = []
        for seed in sorted(by_seed):
            operations = {"flops_per_round": flops.get(name)}
            each.append(figures(by_seed[seed], target) | operations)
        rows.append(row | _averaged(each))
    _sort(rows, headline(cells[0].config.schedule.metric))
    clients: dict[str, dict[int, Any]] = {}
    for name, by_seed in runs.items():
        if by_seed:
            clients[name] = {seed: run.clients for seed, run in by_seed.items()}
    return {
        "title": title,
        "settings": _settings(cells, runs) | {"target": target, "target_is": target_is},
        "rows": rows,
        "references": _references(runs),
        "tests": paired_tests(clients),
        "runs": [
            {
                "method": cell.name,
                "seed": cell.config.seed,
                "folder": cell.folder.name,
                "status": cell.status,
                "error": cell.error,
            }
            for cell in cells
        ],
    }


def _compare_with_alone(runs: Runs) -> None:
    """Note in every summary how many clients are better off than with Local."""
    alone = runs.get("local", {})
    for name, by_seed in runs.items():
        for seed, run in by_seed.items():
            if name != "local" and seed in alone and run.federation == alone[seed].federation:
                run.summary["better_than_local"] = compared(run.clients, alone[seed].clients)


def _target(alone: Mapping[int, Run], target: float | None) -> tuple[float | None, str | None]:
    """The accuracy whose cost is counted, and where it comes from."""
    if target is not None:
        return target, "given"
    reached, _ = mean_and_std([value_at(r.summary, COLUMNS["personal"]) for r in alone.values()])
    return reached, None if reached is None else "what local reaches"


def _sort(rows: list[dict[str, Any]], metric: Metric) -> None:
    """Best first; methods without a value last."""
    column = "personal" if metric.name == DEFAULT else metric.name
    sign = -1 if metric.higher else 1

    def place(row: Mapping[str, Any]) -> tuple[bool, float]:
        value = row[column]
        return (True, 0.0) if value is None else (False, sign * value)

    rows.sort(key=place)


def _settings(cells: Sequence[Cell], runs: Runs) -> dict[str, Any]:
    config = cells[0].config
    clients = config.clients
    for by_seed in runs.values():
        for run in by_seed.values():
            clients = len(run.federation["clients"])
    return {
        "data": config.data,
        "partition": config.partition,
        "model": config.model,
        "clients": clients,
        "rounds": config.schedule.rounds,
        "metric": config.schedule.metric,
        "seeds": sorted({cell.config.seed for cell in cells}),
        "methods": list(dict.fromkeys(cell.name for cell in cells)),
        "significance": ALPHA,
        "machine_dependent": list(MACHINE),
        "fedloom": __version__,
        "torch": torch.__version__,
    }


def _references(runs: Runs) -> list[dict[str, Any]]:
    """Figures of the data that a model should beat, as means over the seeds."""
    rows = []
    for name, metric in METRICS.items():
        if not metric.reference:
            continue
        by_seed: dict[int, float | None] = {}
        for own in runs.values():
            for seed, run in own.items():
                by_seed[seed] = value_at(run.summary, f"personal.{metric.key}.last")
        value, std = mean_and_std(list(by_seed.values()))
        if value is not None:
            text = {"name": name, "label": metric.label, "explanation": metric.explanation}
            rows.append({**text, "value": value, "std": std})
    return rows


def finetuned(run: Run) -> Run:
    """FedAvg's run seen as FedAvg with local fine-tuning.

    Its headline models are those after local training. Which round validation data would choose is
    not known: those models were not scored on it.
    """
    metrics = []
    for record in run.metrics:
        changed = {"personal": record["after"], "common": None}
        metrics.append({**record, **changed, "validation": {"personal": None, "common": None}})
    summary = {
        **run.summary,
        **summarise_run(metrics, run.timing, run.config.schedule.metric),
        "stage": "after",
        "better_than_local": None,
    }
    return replace(run, metrics=metrics, summary=summary)


def _how_tuned(runs: Mapping[int, Run]) -> str:
    """What the row of fine-tuned FedAvg is, and for whom it does not hold."""
    text = "FedAvg's models after each client's local training, from the runs of fedavg"
    away = 0
    for run in runs.values():
        if run.metrics:
            last = run.metrics[-1]
            untrained = len(run.federation["clients"]) - last["participants"] + len(last["lost"])
            away = max(away, untrained)
    if away:
        return f"{text}; {away} clients did not train in the last round and count untuned."
    return f"{text}."


def _own_training(given: Mapping[str, Training]) -> dict[str, str]:
    """By method, what it trains with instead of FedAvg's (or the first's) settings."""
    usual = given.get("fedavg", next(iter(given.values()))).model_dump()
    notes = {}
    for name, training in given.items():
        parts = []
        for key, value in training.model_dump().items():
            if value != usual[key]:
                parts.append(f"{key} = {value} (others: {usual[key]})")
        if parts:
            differences = ", ".join(parts)
            notes[name] = f"trained as in its paper, {differences}; --set gives everybody the same."
    return notes


def figures(run: Run, target: float | None) -> dict[str, Any]:
    """One run's columns."""
    values: dict[str, Any] = {name: value_at(run.summary, path) for name, path in COLUMNS.items()}
    for metric in metric_columns():
        values[metric.name] = value_at(run.summary, f"personal.{metric.key}.last")
    values["worst_decile"] = worst_share(run.clients)
    values |= dict.fromkeys(("rounds_to_target", "bytes_to_target", "seconds_to_target"))
    for record in run.metrics if target is not None else ():
        if record["personal"] and record["personal"]["accuracy_mean"] >= target:
            seconds = [t["seconds"] for t in run.timing if t["round"] <= record["round"]]
            values["rounds_to_target"] = record["round"]
            values["bytes_to_target"] = sum(record["bytes_total"].values())
            values["seconds_to_target"] = sum(seconds)
            break
    values["domains"] = {d: v["last"] for d, v in run.summary.get("domains", {}).items()}
    values["remarks"] = run.summary.get("remarks", [])
    return values


def _averaged(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean over seeds, and std (ddof 1) where there are several, of every column and domain."""
    row: dict[str, Any] = {}
    for name in (*COLUMNS, *EXTRA, *(metric.name for metric in metric_columns())):
        row[name], row[f"{name}_std"] = mean_and_std([run[name] for run in runs])
    row["domains"] = {}
    row["domains_std"] = {}
    for domain in dict.fromkeys(name for run in runs for name in run["domains"]):
        value, std = mean_and_std([run["domains"].get(domain) for run in runs])
        row["domains"][domain] = value
        row["domains_std"][domain] = std
    row["target_reached"] = sum(run["rounds_to_target"] is not None for run in runs)
    row["remarks"] = list(dict.fromkeys(text for run in runs for text in run["remarks"]))
    return row

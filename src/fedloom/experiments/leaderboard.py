"""The leaderboard of a comparison: a row per method, a column per metric, the headline first.

Columns of accuracy and cost are always there. All other metrics come from the registry, so a new
one has its column without a change here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..client.training import Training
from ..core.version import __version__
from ..data.described import number_of
from ..engine.folder import Run
from ..engine.summary import better_than_local
from ..metrics.fairness import worst_share
from ..metrics.registry import DEFAULT, METRICS, Metric, headline
from ..metrics.summary import client_spread, client_values, summarise_run
from ..report.entries import AFTER, ALONE
from ..report.side import side_figure
from ..report.statistics import ALPHA, paired_tests
from ..report.twins import SENTENCE
from ..report.twins import figures as clients_figures
from .plan import Cell
from .values import mean_and_std, value_at

# Figures that another computer, or a resumed run, changes.
MACHINE = ("seconds", "seconds_to_target", "peak_rss_mb")
Runs = dict[str, dict[int, Run]]  # by method and seed

# What there is in the summary at three rounds; a column is of the one that stands for the run.
CHOSEN = {
    "personal": "personal.accuracy_mean",
    "common": "common.accuracy",
    "domain_avg": "domain_avg",
    "domain_std": "domain_std",
    "sigma_type": "sigma_type",
    "sigma_client": "sigma_client",
    "worst_client": "worst_client",
}
COLUMNS = {
    "personal_last": "personal.accuracy_mean.last",
    "personal_best": "personal.accuracy_mean.best",
    "common_last": "common.accuracy.last",
    "common_best": "common.accuracy.best",
    "better_than_local": "better_than_local.share",
    "gain_over_local": "better_than_local.mean_gain",
    "bytes_up_per_round": "bytes.up.per_round",
    "bytes_down_per_round": "bytes.down.per_round",
    "seconds": "seconds",
    "peak_rss_mb": "peak_rss_mb",
}
TO_TARGET = ("rounds_to_target", "bytes_to_target", "seconds_to_target", "simulated_to_target")
EXTRA = ("worst_decile", *TO_TARGET, "flops_per_round")


def metric_columns() -> list[Metric]:
    """The metrics that have a column of their own beside accuracy."""
    chosen = []
    for name, metric in METRICS.items():
        if metric.headline and name != DEFAULT:
            chosen.append(metric)
    return chosen


def class_metrics() -> list[Metric]:
    """The metrics with a value for each class."""
    return [metric for _, metric in METRICS.items() if metric.per_class]


def leaderboard(
    cells: Sequence[Cell],
    title: str,
    target: float | None = None,
    flops: Mapping[str, float | None] | None = None,
    against: str = ALONE,
    tuning: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole comparison as plain values.

    It has a row per method, best first by the headline metric, the tests between methods, and the
    list of runs. `target` is an accuracy; None takes what clients reach alone. `against` is the
    method that sentences and the page measure the others against. `tuning` is what a tuner has
    tried and chosen.
    """
    runs: Runs = {}
    for cell in cells:
        seeds = runs.setdefault(cell.name, {})
        if cell.run:
            seeds[cell.config.seed] = cell.run
    flops = dict(flops or {})
    notes: dict[str, str] = {}
    if runs.get("fedavg") and "fedavg-ft" not in runs:  # the method itself says more
        runs[AFTER] = {}
        for seed, run in runs["fedavg"].items():
            runs[AFTER][seed] = finetuned(run)
        flops[AFTER] = flops.get("fedavg")
        notes[AFTER] = _how_made(runs["fedavg"])
    notes |= _special_training(cells, _tuned_settings(tuning))
    for name in _twins_of_local(runs):
        notes[name] = " ".join([SENTENCE, notes.get(name, "")]).strip()
    _compare_with_alone(runs)
    target, target_is = _target(runs.get("local", {}), target)
    rows = []
    for name, by_seed in runs.items():
        each = []
        for seed in sorted(by_seed):
            operations = {"flops_per_round": flops.get(name)}
            each.append(figures(by_seed[seed], target) | operations)
        row: dict[str, Any] = {"method": name, "seeds": sorted(by_seed)}
        row |= {"failed": _failed(cells, name), "round": _round(by_seed)}
        rows.append(row | {"note": notes.get(name)} | _averaged(each))
    metric = cells[0].config.schedule.metric
    _sort(rows, headline(metric))
    return {
        "title": title,
        "settings": {
            **_settings(cells, runs),
            "against": against,
            "target": target,
            "target_is": target_is,
        },
        "rows": rows,
        "tuning": tuning,
        "references": side_figure("the reference rows", lambda: _references(runs), []),
        "tests": side_figure("the tests", lambda: paired_tests(_values(runs), metric), []),
        "runs": list(map(_described_run, cells)),
    }


def _round(runs: Mapping[int, Run]) -> str | None:
    """Which round a method's figures are of: the one by `validation`, or the `last`."""
    if not runs:
        return None
    if any(_choice(run) == "last" for run in runs.values()):
        return "last"
    return "validation"


def _failed(cells: Sequence[Cell], method: str) -> list[dict[str, Any]]:
    """The seeds that failed with a method, and why."""
    failures = []
    for cell in cells:
        if cell.name == method and cell.error:
            failures.append({"seed": cell.config.seed, "error": cell.error})
    return failures


def _values(runs: Runs) -> dict[str, dict[int, list[float | None]]]:
    """Each client's value of the headline metric, by method and seed."""
    values = {}
    for name, by_seed in runs.items():
        if by_seed:
            values[name] = {seed: _judged(run) for seed, run in by_seed.items()}
    return values


def _judged(run: Run) -> list[float | None]:
    """Each client's value of the headline metric or, of too many clients, their mean."""
    return [run.spread.mean] if run.spread else run.clients


def _described_run(cell: Cell) -> dict[str, Any]:
    return {
        "method": cell.name,
        "seed": cell.config.seed,
        "folder": cell.folder.name,
        "status": cell.status,
        "error": cell.error,
    }


def _compare_with_alone(runs: Runs) -> None:
    """Note in every summary how many clients are better off than with Local."""
    alone = runs.get("local", {})
    for name, by_seed in runs.items():
        for seed, run in by_seed.items():
            if name != "local" and seed in alone and run.federation == alone[seed].federation:
                run.summary["better_than_local"] = better_than_local(run, alone[seed])


def _target(alone: Mapping[int, Run], target: float | None) -> tuple[float | None, str | None]:
    """The accuracy whose cost is counted, and where it comes from."""
    if target is not None:
        return target, "given"
    accuracies = [_chosen(run, CHOSEN["personal"]) for run in alone.values()]
    reached, _ = mean_and_std(accuracies)
    if reached is None:
        return None, None
    return reached, "what local reaches"


def _sort(rows: list[dict[str, Any]], metric: Metric) -> None:
    """Best first; methods without a value last."""
    column = metric.name
    if metric.name == DEFAULT:
        column = "personal"

    def place(row: Mapping[str, Any]) -> tuple[bool, float]:
        value = row[column]
        if value is None:
            return True, 0.0
        if metric.higher:
            return False, -value
        return False, value

    rows.sort(key=place)


def _settings(cells: Sequence[Cell], runs: Runs) -> dict[str, Any]:
    config = cells[0].config
    clients = config.clients
    classes: list[str] = []
    for by_seed in runs.values():
        for run in by_seed.values():
            clients = number_of(run.federation)
            classes = run.federation["classes"]
    return {
        "data": config.data,
        "partition": config.partition,
        "model": config.model,
        "clients": clients,
        "classes": classes,
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
        for runs_of_method in runs.values():
            for seed, run in runs_of_method.items():
                by_seed[seed] = _chosen(run, f"personal.{metric.key}")
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


def _how_made(runs: Mapping[int, Run]) -> str:
    """What the row of FedAvg after local training is, and for whom it does not hold."""
    text = (
        "FedAvg's models after each client's local training, from the runs of fedavg; of the last "
        "round, because these models are not scored on validation data"
    )
    away = 0
    for run in runs.values():
        if run.metrics:
            last = run.metrics[-1]
            untrained = number_of(run.federation) - last["participants"] + len(last["lost"])
            away = max(away, untrained)
    if away:
        return f"{text}; {away} clients did not train in the last round and count untrained."
    return f"{text}."


def _twins_of_local(runs: Runs) -> list[str]:
    """The methods that give every client exactly what `local` gives it, with every seed."""
    alone = runs.get("local", {})
    twins = []
    for name, by_seed in runs.items():
        if name == "local" or not by_seed or not set(by_seed) <= set(alone):
            continue
        if all(_equal(run, alone[seed]) for seed, run in by_seed.items()):
            twins.append(name)
    return twins


def _equal(run: Run, alone: Run) -> bool:
    ours = clients_figures(run.metrics, run.summary["stage"])
    return bool(ours) and ours == clients_figures(alone.metrics, alone.summary["stage"])


def _tuned_settings(tuning: Mapping[str, Any] | None) -> set[str]:
    """The names of all settings that were tuned for some method."""
    names: set[str] = set()
    for key in (tuning or {}).get("values", {}):
        names.add(key.rpartition(".")[2])
    return names


def _special_training(cells: Sequence[Cell], tuned: Collection[str]) -> dict[str, str]:
    """By method, what it trains with instead of FedAvg's (or the first's) settings.

    Settings that were tuned are no special ones, and are reported elsewhere.
    """
    settings: dict[str, Training] = {}
    for cell in cells:
        settings[cell.name] = cell.config.training
    usual = settings.get("fedavg", cells[0].config.training).model_dump()
    notes = {}
    for name, training in settings.items():
        parts = []
        for key, value in training.model_dump().items():
            if value != usual[key] and key not in tuned:
                parts.append(f"{key} = {value} (others: {usual[key]})")
        if parts:
            differences = ", ".join(parts)
            notes[name] = f"trained as in its paper, {differences}; --set gives everybody the same."
    return notes


def figures(run: Run, target: float | None) -> dict[str, Any]:
    """One run's columns."""
    values: dict[str, Any] = {}
    for name, path in COLUMNS.items():
        values[name] = value_at(run.summary, path)
    for name, path in CHOSEN.items():
        values[name] = _chosen(run, path)
    for metric in metric_columns():
        values[metric.name] = _chosen(run, f"personal.{metric.key}")
    stage = run.summary.get("stage", "before")
    spread = client_spread(run.headline, stage, DEFAULT)
    if spread:
        values["worst_decile"] = spread.lowest_tenth
    else:
        values["worst_decile"] = worst_share(client_values(run.headline, stage, DEFAULT))
    values |= _cost_of_target(run, target)
    values["domains"] = {}
    for domain, accuracy in run.summary.get("domains", {}).items():
        values["domains"][domain] = accuracy[_choice(run)]
    values["classes"] = {}
    for metric in class_metrics():
        per_class: Any = _chosen(run, f"personal.{metric.name}_classes")
        if per_class is not None:
            values["classes"][metric.name] = per_class
    values["remarks"] = (run.headline.get("personal") or {}).get("remarks", [])
    return values


def _choice(run: Run) -> str:
    """The round that stands for a run, by its name in the summary."""
    if value_at(run.summary, "chosen_rounds.best_by_validation") is None:
        return "last"
    return "best_by_validation"


def _chosen(run: Run, path: str) -> float | None:
    """A figure of the summary at that round."""
    return value_at(run.summary, f"{path}.{_choice(run)}")


def _cost_of_target(run: Run, target: float | None) -> dict[str, Any]:
    """What the run has spent when it first reaches the target; None everywhere if it never does."""
    for record in run.metrics:
        if target is None or not record["personal"]:
            continue
        if record["personal"]["accuracy_mean"] >= target:
            seconds = 0
            for line in run.timing:
                if line["round"] <= record["round"]:
                    seconds += line["seconds"]
            return {
                "rounds_to_target": record["round"],
                "bytes_to_target": sum(record["bytes_total"].values()),
                "seconds_to_target": seconds,
                "simulated_to_target": record.get("simulated_seconds"),
            }
    return dict.fromkeys(TO_TARGET)


def _averaged(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean over seeds, and std (ddof 1) where there are several, of every column and domain."""
    row: dict[str, Any] = {}
    names = [*CHOSEN, *COLUMNS, *EXTRA]
    for metric in metric_columns():
        names.append(metric.name)
    for name in names:
        row[name], row[f"{name}_std"] = mean_and_std([run[name] for run in runs])
    domains: dict[str, None] = {}
    remarks: dict[str, None] = {}
    reached = 0
    for run in runs:
        domains |= dict.fromkeys(run["domains"])
        remarks |= dict.fromkeys(run["remarks"])
        if run["rounds_to_target"] is not None:
            reached += 1
    row["domains"] = {}
    row["domains_std"] = {}
    for domain in domains:
        value, std = mean_and_std([run["domains"].get(domain) for run in runs])
        row["domains"][domain] = value
        row["domains_std"][domain] = std
    row["classes"], row["classes_std"] = _averaged_classes(runs)
    row["target_reached"] = reached
    row["remarks"] = list(remarks)
    return row


PerClass = dict[str, list[float | None]]  # by metric, a value for each class


def _averaged_classes(runs: Sequence[Mapping[str, Any]]) -> tuple[PerClass, PerClass]:
    """Mean and std over seeds of the metrics that have a value for each class."""
    means: PerClass = {}
    stds: PerClass = {}
    for metric in class_metrics():
        by_seed = []
        for run in runs:
            if metric.name in run["classes"]:
                by_seed.append(run["classes"][metric.name])
        for values in zip(*by_seed, strict=True):  # of one class
            mean, std = mean_and_std(values)
            means.setdefault(metric.name, []).append(mean)
            stds.setdefault(metric.name, []).append(std)
    return means, stds

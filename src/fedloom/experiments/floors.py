"""What needs no model: rows of a table for guessing and for naming a most frequent class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..data.described import listed
from ..engine.folder import Run
from .values import mean_and_std

CHANCE = "chance"
MAJORITY = "majority"
OWN_MAJORITY = "own majority"


def floors(columns: Mapping[str, Sequence[str]], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row for each way to do without a model: means and deviations over the runs' seeds.

    The most frequent classes are those of all clients' training samples or of each client's own.
    Columns that are no accuracies have no figures; without runs there are no rows.
    """
    by_seed: dict[int, dict[str, dict[str, float]]] = {}
    for run in runs:
        seed = run.config.seed
        members = listed(run.federation)
        if seed not in by_seed and members and "test_counts" in members[0]:
            by_seed[seed] = without_model(run.federation)
    rows = []
    for name in (CHANCE, MAJORITY, OWN_MAJORITY):
        figures = []
        for paths in columns.values():
            values = [_first(summary[name], paths) for summary in by_seed.values()]
            mean, std = mean_and_std(values)
            figures.append({"mean": mean, "std": std})
        if any(figure["mean"] is not None for figure in figures):
            rows.append({"row": name, "ours": figures})
    return rows


def without_model(federation: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """What each way reaches in a described federation, under the names of a summary."""
    clients = listed(federation)
    train = np.array([client["counts"] for client in clients])
    test = np.array([client["test_counts"] for client in clients])
    sizes = test.sum(1)
    right = {
        CHANCE: sizes / len(federation["classes"]),
        MAJORITY: test[:, train.sum(0).argmax()],
        OWN_MAJORITY: test[np.arange(len(clients)), train.argmax(1)],
    }
    domains = np.array([client["domain"] or "" for client in clients])
    return {name: _summary(hits, sizes, domains) for name, hits in right.items()}


def _summary(right: np.ndarray, sizes: np.ndarray, domains: np.ndarray) -> dict[str, float]:
    """Accuracies over all samples, over clients and by domain."""
    tested = sizes > 0
    if not tested.any():
        return {}
    mean = float((right[tested] / sizes[tested]).mean())
    pooled = float(right.sum() / sizes.sum())
    figures = {
        "accuracy": mean,
        "personal.accuracy_mean": mean,
        "personal.accuracy_weighted": pooled,
    }
    by_domain = {}
    for domain in np.unique(domains[tested]):
        its = domains == domain
        by_domain[f"domains.{domain}"] = float(right[its].sum() / sizes[its].sum())
    figures["domain_avg"] = float(np.mean(list(by_domain.values())))
    return figures | by_domain


def _first(summary: Mapping[str, float], paths: Sequence[str]) -> float | None:
    """The figure of the first path that has one; a path ends with a choice of round."""
    for path in paths:
        name = path.rpartition(".")[0]
        if name in summary:
            return summary[name]
    return None

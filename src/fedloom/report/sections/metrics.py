"""Every registered metric of every method, beside accuracy."""

from __future__ import annotations

from typing import Any

from ...metrics.registry import METRICS, Metric
from ..columns import text
from ..entries import Entry, RunData, mean_std, number
from ..figures import Value
from ..page import Page
from . import section


@section("metrics", "Metrics", order=15)
def metrics(page: Page) -> str | None:
    """A row for each metric that at least one method has, a column for each method."""
    entries = [entry for entry in page.ranking.order() if entry.shown]
    rows = []
    for _, metric in METRICS.items():
        values = {entry.number: _value(entry, metric) for entry in entries}
        if metric.figures is None and any(mean is not None for mean, _ in values.values()):
            rows.append(_row(page, entries, metric, values))
    if not rows:
        return None
    return page.render("metrics.html.j2", entries=entries, rows=rows)


def _value(entry: Entry, metric: Metric) -> tuple[Value, Value]:
    """The mean over clients in the last evaluated round, and its std over seeds."""

    def latest(run: RunData) -> Value:
        return number(run.last, "personal", metric.key)

    return mean_std(latest(run) for run in entry.shown)


def _row(
    page: Page, entries: list[Entry], metric: Metric, values: dict[int, tuple[Value, Value]]
) -> dict[str, Any]:
    means = {series: mean for series, (mean, _) in values.items() if mean is not None}
    pick = max if metric.higher else min
    best = metric.shown(pick(means.values()))
    cells = []
    for entry in entries:
        mean, std = values[entry.number]
        marked = (
            not metric.reference
            and len(page.ranking.seed_sets()) == 1
            and len(entry.seeds) > 1
            and len(means) > 1
            and metric.shown(mean) == best
        )
        cells.append({"shown": text(mean, std, metric.shown), "best": marked})
    return {"metric": metric, "cells": cells}

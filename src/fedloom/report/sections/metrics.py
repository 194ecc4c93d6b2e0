"""Every registered metric of every method, beside accuracy."""

from __future__ import annotations

from typing import Any

from ...metrics.registry import METRICS, Metric
from ..columns import text
from ..entries import Entry, RunData, number, present
from ..figures import Value
from ..page import Page
from . import section


@section("metrics", "Metrics", order=15)
def metrics(page: Page) -> str | None:
    """A row for each metric that at least one method has, a column for each method."""
    entries = [entry for entry in page.ranking.order() if entry.shown]
    rows = []
    for _, metric in METRICS.items():
        if metric.figures is None:
            row = _row(page, entries, metric)
            if row:
                rows.append(row)
    if not rows:
        return None
    return page.render("metrics.html.j2", entries=entries, rows=rows)


def _row(page: Page, entries: list[Entry], metric: Metric) -> dict[str, Any] | None:
    """The mean over clients in the last evaluated round, with its std over seeds, by method."""

    def latest(run: RunData) -> Value:
        return number(run.last, "personal", metric.key)

    values = [entry.over(latest) for entry in entries]
    means = present(mean for mean, _ in values)
    if not means:
        return None
    best = metric.shown(min(means))
    if metric.higher:
        best = metric.shown(max(means))
    cells = []
    for entry, (mean, std) in zip(entries, values, strict=True):
        marked = (
            not metric.reference
            and len(page.ranking.seed_sets()) == 1
            and len(entry.seeds) > 1
            and len(means) > 1
            and metric.shown(mean) == best
        )
        cells.append({"shown": text(mean, std, metric.shown), "best": marked})
    return {"metric": metric, "cells": cells}

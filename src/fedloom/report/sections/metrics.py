"""Every registered metric of every method, beside accuracy."""

from __future__ import annotations

from typing import Any

from ...metrics.registry import METRICS, Metric
from ..columns import text
from ..entries import Entry, RunData, present
from ..figures import Value
from ..page import Page
from . import section


@section("metrics", "Metrics", order=15)
def metrics(page: Page) -> str | None:
    """A row for each method, a column for each metric that at least one of them has."""
    entries = [entry for entry in page.ranking.order() if entry.shown]
    columns = []
    for _, metric in METRICS.items():
        if metric.figures is None:
            cells = _cells(page, entries, metric)
            if cells:
                columns.append({"metric": metric, "cells": cells})
    if not columns:
        return None
    return page.render("metrics.html.j2", entries=entries, columns=columns)


def _cells(page: Page, entries: list[Entry], metric: Metric) -> list[dict[str, Any]]:
    """The mean over clients with its std over seeds, by method; empty if no method has one."""

    def chosen(run: RunData) -> Value:
        return run.figure(metric.key)

    values = [entry.over(chosen) for entry in entries]
    means = present(mean for mean, _ in values)
    if not means:
        return []
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
        spread = ""
        if std:
            spread = metric.shown(std)
        cells.append({"shown": text(mean, None, metric.shown), "spread": spread, "best": marked})
    return cells

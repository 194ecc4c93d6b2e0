"""How far each run is."""

from __future__ import annotations

from typing import Any

from ...metrics.registry import Metric
from ..columns import unit_of
from ..entries import RunData
from ..figures import ABSENT
from ..page import Page
from . import section


@section("runs", "Runs", order=100)
def runs(page: Page) -> str | None:
    """The state of every run; of a finished comparison there is nothing to say."""
    if not page.live and _all_well(page):
        return None
    metric = page.ranking.metric
    rows = []
    for entry in page.entries:
        states = [_state(run, metric) for run in entry.runs]
        rows.append({"entry": entry, "states": states})
    heading = f"{metric.label}, {unit_of(metric)}"
    return page.render("runs.html.j2", rows=rows, headline=heading)


def _all_well(page: Page) -> bool:
    """Whether every run is finished."""
    for entry in page.entries:
        if entry.failed:
            return False
    return all(run.finished for run in page.runs)


def _state(run: RunData, metric: Metric) -> dict[str, Any]:
    """How far a run is, and its headline."""
    planned = run.planned or run.round or 1
    state = {"seed": run.seed, "planned": planned, "done": planned, "state": "finished"}
    if not run.finished:
        state |= {"done": run.round, "state": f"round {run.round} of {planned}"}
    value = run.last_value(metric.key)
    shown = ABSENT
    if value is not None:
        shown = metric.shown(value)
    return {**state, "headline": shown}

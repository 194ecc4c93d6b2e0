"""How far each run is."""

from __future__ import annotations

from typing import Any

from ..columns import percent
from ..figures import ABSENT
from ..page import Page
from . import section


@section("runs", "Runs", order=100)
def runs(page: Page) -> str | None:
    """The state of every run; of a finished comparison there is nothing to say."""
    failed = any(entry.failed for entry in page.entries)
    if not page.live and not failed and all(run.finished for run in page.runs):
        return None
    rows = []
    for entry in page.entries:
        states = []
        for run in entry.runs:
            planned = run.planned or run.round or 1
            accuracy = run.figure("accuracy_mean")
            state: dict[str, Any] = {
                "seed": run.seed,
                "planned": planned,
                "done": planned if run.finished else run.round,
                "state": "finished" if run.finished else f"round {run.round} of {planned}",
                "accuracy": ABSENT if accuracy is None else percent(accuracy),
            }
            states.append(state)
        rows.append({"entry": entry, "states": states})
    return page.render("runs.html.j2", rows=rows)

"""Clients that never trained: a domain that was held out, and those who come later."""

from __future__ import annotations

from collections import Counter

from ..bars import cells_of
from ..columns import percent, text
from ..entries import RunData, number
from ..figures import Value
from ..page import Page
from . import section

STAGES = {
    "common": "common model",
    "before": "own model, as sent",
    "after": "own model, after a round of its own",
}


@section("outside", "Clients that never trained", order=32)
def outside(page: Page) -> str | None:
    """A table with a column for each name under which they are scored, and each of their models."""
    groups: dict[str, None] = {}  # a set that keeps the order
    for entry in page.entries:
        for run in entry.runs:
            groups |= dict.fromkeys(run.last.get("outside") or {})
    keys = [f"{group}\n{stage}" for group in groups for stage in STAGES]
    cells = cells_of(page.entries, keys, _accuracy)
    filled = [
        key for j, key in enumerate(keys) if any(row[j][0] is not None for row in cells.values())
    ]
    if not filled:
        return None
    rows = []
    for entry in page.entries:
        by_key = dict(zip(keys, cells[entry.number], strict=True))
        rows.append((entry, [text(*by_key[key], percent) for key in filled]))
    heads = [(group, STAGES[stage]) for group, stage in (key.split("\n") for key in filled)]
    counts = Counter(group for group, _ in heads)
    return page.render("outside.html.j2", groups=counts, heads=heads, rows=rows)


def _accuracy(run: RunData, key: str) -> Value:
    """The accuracy of a group at a stage, in the round that stands for the run."""
    group, stage = key.split("\n")
    return number(run.chosen, "outside", group, stage, "accuracy_mean")

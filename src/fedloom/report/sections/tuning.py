"""What was tuned before the comparison, with which budget, and what each method got."""

from __future__ import annotations

from .. import tuning as words
from ..page import Page
from . import section


@section("tuning", "Tuning", order=18)
def tuning(page: Page) -> str | None:
    """A sentence, a row for each method, and all trials to unfold."""
    record = page.board.get("tuning")
    if not record:
        return None
    entries = {entry.method: entry for entry in page.entries}
    rows = []
    for method, *cells in words.lines(record):
        rows.append({"entry": entries.get(method), "method": method, "cells": cells})
    return page.render(
        "tuning.html.j2",
        summary=words.summary(record),
        budget=words.BUDGET,
        headings=words.HEADINGS,
        rows=rows,
        trials=words.trials(record),
    )

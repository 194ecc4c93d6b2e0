"""What travels in a round."""

from __future__ import annotations

from ..bars import Scale, bars, filled
from ..columns import megabytes
from ..entries import mean_std
from ..figures import Panel
from ..page import Page
from . import section

WAYS = {"up": "up: from all clients", "down": "down: to all clients"}


@section("costs", "Costs", order=70)
def costs(page: Page) -> str | None:
    """Bars of the traffic per round, unless nothing travels."""
    cells = {}
    for entry in page.entries:
        cells[entry.number] = [mean_std(r.sent(way) for r in entry.shown) for way in WAYS]
    entries = filled(page.entries, cells)
    if not any(value for row in cells.values() for value, _ in row):
        return None
    heading = "Traffic per round"
    scale = Scale("MB per round", 1e-6, megabytes)
    chart = bars(heading, list(WAYS.values()), entries, cells, scale)
    caption = (
        "Bytes as serialised, of all clients together, mean over the rounds; MB are 10⁶ bytes."
    )
    return page.grid([Panel("traffic", heading, caption, chart)])

"""What travels in a round."""

from __future__ import annotations

from ..bars import Scale, bars, cells_of, filled
from ..columns import megabytes
from ..entries import RunData
from ..figures import Panel
from ..page import Page
from . import section

WAYS = {"up": "up: from all clients", "down": "down: to all clients"}


@section("costs", "Costs", order=70)
def costs(page: Page) -> str | None:
    """Bars of the traffic per round, unless nothing travels."""
    cells = cells_of(page.entries, list(WAYS), RunData.sent)
    entries = filled(page.entries, cells)
    sent = 0.0
    for row in cells.values():
        for value, _ in row:
            sent += value or 0.0
    if not sent:
        return None
    heading = "Traffic per round"
    scale = Scale("MB per round", 1e-6, megabytes)
    chart = bars(heading, list(WAYS.values()), entries, cells, scale)
    caption = (
        "Bytes as serialised, of all clients together, mean over the rounds; MB are 10⁶ bytes."
    )
    return page.grid([Panel("traffic", heading, caption, chart)])

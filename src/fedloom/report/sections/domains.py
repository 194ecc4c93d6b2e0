"""Accuracy on every domain."""

from __future__ import annotations

from ..bars import Scale, bars, cells_of, filled
from ..columns import percent
from ..entries import RunData, domain_names, mean_std
from ..figures import PERCENT, Panel
from ..page import Page
from . import section


@section("domains", "Domains", order=30)
def domains(page: Page) -> str | None:
    """Bars for each domain, if there are at least two."""
    names = domain_names(page.entries)
    cells = cells_of(page.entries, names, RunData.domain)
    entries = filled(page.entries, cells)
    if len(names) < 2 or not entries:
        return None
    means = {}
    for j, name in enumerate(names):
        mean, _ = mean_std(cells[entry.number][j][0] for entry in entries)
        if mean is not None:
            means[name] = mean
    hardest = min(means, key=lambda name: means[name])
    heading = "Accuracy by domain"
    chart = bars(heading, names, entries, cells, Scale("accuracy, %", 100, percent, PERCENT))
    caption = (
        "Accuracy of the headline model on the test samples of each domain's clients, pooled; "
        f"whiskers are the std over seeds. Hardest on average: {hardest}, "
        f"{percent(means[hardest])} %."
    )
    return page.grid([Panel("domains", heading, caption, chart)])

"""Accuracy on every domain."""

from __future__ import annotations

from ..bars import Scale, bars, filled
from ..columns import percent
from ..entries import domain_names, mean_std
from ..figures import Panel
from ..page import Page
from . import section


@section("domains", "Domains", order=30)
def domains(page: Page) -> str | None:
    """Bars for each domain, if there are at least two."""
    names = domain_names(page.entries)
    cells = {}
    for entry in page.entries:
        cells[entry.number] = [mean_std(r.domain(name) for r in entry.shown) for name in names]
    entries = filled(page.entries, cells)
    if len(names) < 2 or not entries:
        return None
    means = {}
    for j, name in enumerate(names):
        mean, _ = mean_std(cells[e.number][j][0] for e in entries)
        if mean is not None:
            means[name] = mean
    hardest = min(means, key=lambda name: means[name])
    heading = "Accuracy by domain"
    chart = bars(heading, names, entries, cells, Scale("accuracy, %", 100, percent))
    caption = (
        "Last headline accuracy on the test samples of each domain's clients, pooled; whiskers are "
        f"the std over seeds. Hardest on average: {hardest}, {percent(means[hardest])} %."
    )
    return page.grid([Panel("domains", heading, caption, chart)])

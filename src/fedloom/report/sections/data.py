"""Who has how many training examples of which class, and what the samples look like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...data.described import listed
from ..entries import RunData, domain_order, listed_seeds, number, present
from ..figures import Heat, Panel, Value
from ..page import Page
from . import section


@section("data", "Data", order=60)
def data(page: Page) -> str | None:
    """A map for each federation, and one picture for each data set and partition."""
    federations: dict[str, list[RunData]] = {}
    for run in page.runs:
        federations.setdefault(json.dumps(run.federation, sort_keys=True), []).append(run)
    panels = []
    for place, runs in enumerate(federations.values()):
        suffix = ""
        if len(federations) > 1:
            suffix = f"-{place + 1}"
        panel = partition(runs, suffix)
        if panel:
            panels.append(panel)
    pictures: dict[str, RunData] = {}
    for run in page.runs:
        if run.picture:  # other seeds of the same data look alike
            name = f"{run.federation.get('data')}, {run.federation.get('partition')}"
            pictures.setdefault(name, run)
    notes = [text for runs in federations.values() if (text := unlisted(runs[0].federation))]
    if not panels and not pictures and not notes:
        return None
    return page.render("data.html.j2", maps=page.tabs(panels), pictures=pictures, notes=notes)


def unlisted(federation: Mapping[str, Any]) -> str:
    """How large clients are that are too many to be listed; nothing where they are listed."""
    clients = federation.get("clients")
    if not isinstance(clients, Mapping):
        return ""
    train = clients["train"]
    text = (
        f"{clients['n']:,} clients, which are not listed here but in {clients['file']}, hold from "
        f"{train['least']:,} to {train['most']:,} training examples, {train['sum']:,} in all"
    )
    domains = ", ".join(f"{name} {number:,}" for name, number in clients["domains"].items())
    return f"{text}. By domain: {domains}." if domains else f"{text}."


def partition(runs: list[RunData], suffix: str) -> Panel | None:
    """Classes by clients of one federation."""
    federation = runs[0].federation
    clients = listed(federation)
    counts = [client.get("counts") or [] for client in clients]
    size = max(map(len, counts), default=0)
    if not size:
        return None
    names = list(map(str, federation.get("classes") or []))
    names += map(str, range(len(names), size))  # a class without a name has its number
    order, labels, bands = domain_order(federation, len(clients))
    cells: list[list[Value]] = [[] for _ in range(size)]
    totals = []
    top = 0.0
    for j in order:
        column: list[Value] = [None] * size
        column[: len(counts[j])] = map(number, counts[j])
        for row, count in zip(cells, column, strict=True):
            row.append(count)
        totals.append(sum(present(column)))
        top = max([top, *present(column)])
    heading = "Training examples by client and class"
    caption = (
        f"{federation.get('description') or ''} {len(clients)} clients hold from "
        f"{min(totals):,.0f} to {max(totals):,.0f} training examples, {sum(totals):,.0f} in all."
    )
    rows = [f"class {name}" for name in names[:size]]
    chart = Heat(heading, rows, labels, bands, cells, (0.0, top or 1.0), _count)
    return Panel(f"partition{suffix}", heading, caption.strip(), chart, listed_seeds(runs))


def _count(value: float) -> str:
    if value >= 1e4:
        return f"{value / 1000:.0f}k"
    return f"{value:.0f}"

"""How clients fare by their network, where these differ."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ...data.described import listed
from ..bars import cells_of
from ..columns import percent, text
from ..entries import RunData, present
from ..figures import Value
from ..page import Page
from . import section


@section("networks", "Networks", order=34)
def networks(page: Page) -> str | None:
    """A table of mean accuracies, with a column for each network."""
    names: dict[str, None] = {}  # a set that keeps the order
    for entry in page.entries:
        for run in entry.runs:
            names |= dict.fromkeys(name for name in _of_clients(run) if name)
    if len(names) < 2:
        return None
    cells = cells_of(page.entries, list(names), _accuracy)
    rows = []
    for entry in page.entries:
        rows.append((entry, [text(*cell, percent) for cell in cells[entry.number]]))
    clients = []
    for name in names:
        counts = [_of_clients(run).count(name) for entry in page.entries for run in entry.runs]
        clients.append((name, max(counts)))
    return page.render("networks.html.j2", clients=clients, rows=rows)


def _of_clients(run: RunData) -> Sequence[str]:
    """Each client's network; empty where all have the same."""
    return [str(client.get("network", "")) for client in listed(run.federation)]


def _accuracy(run: RunData, name: str) -> Value:
    """The mean accuracy of the clients that have this network."""
    own = zip(run.accuracies, _of_clients(run), strict=False)
    values = present(value for value, network in own if network == name)
    return fmean(values) if values else None

"""Every client with every method: its accuracy, and its gain over training alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..columns import percent, signed, text
from ..entries import (
    Entry,
    RunData,
    domain_order,
    gains,
    listed_seeds,
    mean_std,
    present,
    seeds_of,
    shown_runs,
)
from ..figures import Axis, Chart, Heat, Mark, Panel, Value
from ..page import Page
from . import section

SMALL = 8  # up to this many clients, two maps fit side by side
Rows = list[tuple[Entry, list[Value]]]


@section("clients", "Clients", order=50)
def clients(page: Page) -> str | None:
    """Gains as dots, then maps of clients by methods."""
    parts = []
    dots = gain(page.entries)
    if dots:
        parts.append(page.grid([dots]))
    layouts = _layouts(page.entries)
    maps = []
    for draw in (accuracy_map, gain_map):
        tabs = page.tabs(draw(page.entries, layout) for layout in layouts)
        if tabs:
            maps.append(tabs)
    if maps:
        kind = "two"
        for run in page.runs:
            if len(run.clients) > SMALL:
                kind = ""
        parts.append(page.render("grid.html.j2", parts=maps, kind=kind))
    if not parts:
        return None
    return page.render("parts.html.j2", parts=parts)


# -- maps ----------------------------------------------------------------------------------------
class Layout(NamedTuple):
    """Runs whose client k is the same sort of client, with the tab and the note of their maps."""

    runs: list[RunData]
    suffix: str
    tab: str
    note: str

    def of(self, entry: Entry) -> list[RunData]:
        """The runs of a method among them."""
        ours = list(map(id, self.runs))
        return [run for run in entry.shown if id(run) in ours]


def _layouts(entries: Sequence[Entry]) -> list[Layout]:
    """Runs by layout: their clients have the same domains or, without domains, the same samples."""
    groups: dict[str, list[RunData]] = {}
    for run in shown_runs(entries):
        if run.clients:
            groups.setdefault(_likeness(run.federation), []).append(run)
    layouts = []
    for place, runs in enumerate(groups.values()):
        seeds = listed_seeds(runs)
        note = ""
        if len(seeds_of(runs)) > 1:
            note = f" Mean over {seeds}: in each, client k has the same domain, but other samples."
        suffix = ""
        if len(groups) > 1:
            suffix = f"-{place + 1}"
        layouts.append(Layout(runs, suffix, seeds, note))
    return layouts


def _likeness(federation: Mapping[str, Any]) -> str:
    """A text that is the same for federations whose client k is the same sort of client."""
    domains = [client.get("domain") for client in federation.get("clients") or []]
    if domains and None not in domains:
        return json.dumps(domains)
    return json.dumps(federation, sort_keys=True)


def accuracy_map(entries: Sequence[Entry], layout: Layout) -> Panel | None:
    """Every client's last accuracy with the headline model."""
    rows: Rows = []
    for entry in entries:
        runs = layout.of(entry)
        if runs:
            rows.append((entry, _means([run.clients for run in runs])))
    lows = []
    for entry, row in rows:
        for j, value in enumerate(row):
            if value is not None:
                lows.append((value, j, entry.name))
    if not lows:
        return None
    lowest, client, method = min(lows)
    heading = "Accuracy of every client"
    caption = (
        "Last accuracy of the headline model in %, a column per client, grouped by domain if there "
        f"are domains.{layout.note} Lowest: client {client} with {method}, {percent(lowest)} %."
    )
    highest, _, _ = max(lows)
    chart = _map(heading, rows, layout.runs[0].federation, (lowest, highest), percent)
    return Panel(f"clients{layout.suffix}", heading, caption, chart, layout.tab)


def gain_map(entries: Sequence[Entry], layout: Layout) -> Panel | None:
    """Every client's gain over training alone."""
    everyone = shown_runs(entries)
    rows: Rows = []
    for entry in entries:
        gained = []
        for run in layout.of(entry):
            row = gains(run, everyone)
            if row:
                gained.append(row)
        if gained:
            rows.append((entry, _means(gained)))
    if not rows:
        return None
    most = 0.0
    for _, means in rows:
        most = max([most, *map(abs, present(means))])
    most = most or 0.01
    heading = "Gain of every client over training alone"
    caption = (
        "Percentage points above (blue) or below (orange) the same client's run of local with the "
        f"same seed.{layout.note}"
    )
    chart = _map(heading, rows, layout.runs[0].federation, (-most, most), signed)
    return Panel(f"gain-map{layout.suffix}", heading, caption, chart, layout.tab)


def _means(rows: Sequence[Sequence[Value]]) -> list[Value]:
    """The mean of each column of rows that may differ in length."""
    size = max(map(len, rows), default=0)
    means = []
    for j in range(size):
        mean, _ = mean_std(row[j] for row in rows if j < len(row))
        means.append(mean)
    return means


def _map(
    heading: str,
    rows: Rows,
    federation: Mapping[str, Any],
    ends: tuple[float, float],
    show: Any,
) -> Heat:
    size = 0
    for _, row in rows:
        size = max(size, len(row))
    order, labels, bands = domain_order(federation, size)
    names = []
    cells = []
    for entry, row in rows:
        names.append(entry.name)
        padded = [*row, *[None] * (size - len(row))]
        cells.append([padded[j] for j in order])
    return Heat(heading, names, labels, bands, cells, ends, show)


# -- dots ----------------------------------------------------------------------------------------
Gained = list[tuple[float, int, RunData]]  # a gain, whose it is, and in which run


def gain(entries: Sequence[Entry]) -> Panel | None:
    """Every client's gain over training alone, a row of dots for each method."""
    everyone = shown_runs(entries)
    marks: list[Mark] = []
    names: list[tuple[float, str]] = []
    better: list[str] = []
    for entry in entries:
        gained: Gained = []
        winners = 0
        means = []
        for run in entry.shown:
            row = gains(run, everyone)
            for client, value in enumerate(row):
                if value is not None:
                    gained.append((value, client, run))
                    winners += value > 0
            means.append(mean_std(row)[0])
        if not gained:
            continue
        y = -float(len(names))
        names.append((y, entry.name))
        mean, std = mean_std(means)
        assert mean is not None
        marks += [_client_dots(entry, y, gained), _mean_diamond(entry, y, mean, std)]
        better.append(f"{entry.name} {winners} of {len(gained)} (mean {signed(mean)})")
    if not marks:
        return None
    heading = "Gain over training alone"
    dot = "A dot is a client"
    if len(seeds_of(everyone)) > 1:
        dot += " of a seed"
    caption = (
        f"{dot}; right of the line it is better off than alone. Diamonds are means over clients. "
        f"Better off: {'; '.join(better)}."
    )
    chart = Chart(
        heading,
        marks,
        Axis("points above local", zero=True),
        Axis(ticks=names, ends=(names[-1][0] - 0.6, 0.6)),
        width=1080,
        height=60 + 44 * len(names),
        rule=0.0,
    )
    return Panel("gain", heading, caption, chart)


def _client_dots(entry: Entry, y: float, gained: Gained) -> Mark:
    # A fixed scatter up and down, so that equal gains do not hide each other.
    points: list[float] = []
    heights: list[float] = []
    tips: list[str] = []
    for i, (value, client, run) in enumerate(gained):
        points.append(100 * value)
        heights.append(y + 0.52 * ((i * 0.618034) % 1 - 0.5))
        tips.append(f"{entry.name}, client {client}, seed {run.seed}: {signed(value)} points")
    number, name = entry.number, entry.name
    return Mark("dots", points, heights, number, name, tips=tips, size=3.2, opacity=0.55)


def _mean_diamond(entry: Entry, y: float, mean: float, std: Value) -> Mark:
    tip = f"{entry.name}, mean over clients: {text(mean, std, signed)} points"
    return Mark(
        "dots", [100 * mean], [y], entry.number, ink="ink", symbol="diamond", tips=[tip], size=5
    )

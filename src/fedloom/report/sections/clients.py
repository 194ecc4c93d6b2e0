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
    mean_std,
    present,
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
    dots = gain(page.entries)
    layouts = _layouts(page.entries)
    accuracy = [accuracy_map(page.entries, layout) for layout in layouts]
    gained = [gain_map(page.entries, layout) for layout in layouts]
    parts = []
    if dots:
        parts.append(page.grid([dots]))
    maps = [page.tabs([panel for panel in panels if panel]) for panels in (accuracy, gained)]
    shown = [part for part in maps if part]
    if shown:
        size = max(len(r.clients) for r in page.runs)
        kind = "two" if size <= SMALL else ""
        parts.append(page.render("grid.html.j2", parts=shown, kind=kind))
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
        return [run for run in entry.shown if any(run is other for other in self.runs)]


def _layouts(entries: Sequence[Entry]) -> list[Layout]:
    """Runs by layout: their clients have the same domains or, without domains, the same samples."""
    groups: dict[str, list[RunData]] = {}
    for run in shown_runs(entries):
        if run.clients:
            domains = [c.get("domain") for c in run.federation.get("clients") or []]
            named = domains and None not in domains
            key = json.dumps(domains if named else run.federation, sort_keys=True)
            groups.setdefault(key, []).append(run)
    layouts = []
    for place, runs in enumerate(groups.values()):
        seeds = list(dict.fromkeys(str(run.seed) for run in runs))
        listed = ", ".join(seeds)
        note = ""
        if len(seeds) > 1:
            note = (
                f" Mean over seeds {listed}: in each, client k has the same domain, but other "
                "samples."
            )
        suffix, tab = "", ""
        if len(groups) > 1:
            suffix = f"-{place + 1}"
            tab = f"seeds {listed}" if len(seeds) > 1 else f"seed {listed}"
        layouts.append(Layout(runs, suffix, tab, note))
    return layouts


def accuracy_map(entries: Sequence[Entry], layout: Layout) -> Panel | None:
    """Every client's last headline accuracy."""
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
        "Last headline accuracy in %, a column per client, grouped by domain if there are domains."
        f"{layout.note} Lowest: client {client} with {method}, {percent(lowest)} %."
    )
    known = [value for value, _, _ in lows]
    chart = _map(heading, rows, layout.runs[0].federation, (min(known), max(known)), percent)
    return Panel(f"clients{layout.suffix}", heading, caption, chart, layout.tab)


def gain_map(entries: Sequence[Entry], layout: Layout) -> Panel | None:
    """Every client's gain over training alone."""
    everyone = shown_runs(entries)
    rows: Rows = []
    for entry in entries:
        gained = [gains(run, everyone) for run in layout.of(entry)]
        gained = [row for row in gained if row]
        if gained:
            rows.append((entry, _means(gained)))
    if not rows:
        return None
    most = max((abs(v) for _, row in rows for v in present(row)), default=0.0) or 0.01
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
    size = max(len(row) for _, row in rows)
    order, labels, bands = domain_order(federation, size)
    cells = []
    for _, row in rows:
        padded = [*row, *[None] * (size - len(row))]
        cells.append([padded[j] for j in order])
    return Heat(heading, [entry.name for entry, _ in rows], labels, bands, cells, ends, show)


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
        means = []
        for run in entry.shown:
            row = gains(run, everyone)
            gained += [(v, j, run) for j, v in enumerate(row) if v is not None]
            means.append(mean_std(row)[0])
        if not gained:
            continue
        y = -float(len(names))
        names.append((y, entry.name))
        mean, std = mean_std(means)
        assert mean is not None
        marks += [_client_dots(entry, y, gained), _mean_diamond(entry, y, mean, std)]
        count = sum(value > 0 for value, _, _ in gained)
        better.append(f"{entry.name} {count} of {len(gained)} (mean {signed(mean)})")
    if not marks:
        return None
    heading = "Gain over training alone"
    dot = "A dot is a client"
    if len({str(run.seed) for run in everyone}) > 1:
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
    heights = [y + 0.52 * ((i * 0.618034) % 1 - 0.5) for i in range(len(gained))]
    tips = []
    for value, client, run in gained:
        tips.append(f"{entry.name}, client {client}, seed {run.seed}: {signed(value)} points")
    return Mark(
        "dots",
        [100 * value for value, _, _ in gained],
        heights,
        entry.number,
        entry.name,
        tips=tips,
        size=3.2,
        opacity=0.55,
    )


def _mean_diamond(entry: Entry, y: float, mean: float, std: Value) -> Mark:
    tip = f"{entry.name}, mean over clients: {text(mean, std, signed)} points"
    return Mark(
        "dots", [100 * mean], [y], entry.number, ink="ink", symbol="diamond", tips=[tip], size=5
    )

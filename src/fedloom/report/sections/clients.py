"""Every client with every method: its headline, and its gain over training alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...metrics.distribution import Distribution
from ...metrics.registry import DEFAULT
from ..columns import signed_as, text
from ..entries import (
    ALONE,
    Entry,
    RunData,
    domain_order,
    gains,
    likeness,
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
    """Gains as dots, then maps of clients by methods; a sentence where clients are not listed."""
    parts: list[Any] = []
    for entry in page.entries:
        for run in entry.shown[:1]:
            if run.spread:
                told = _unlisted(page, entry, run.spread) + _at_the_end(page, run)
                parts.append(page.render("note.html.j2", text=told))
    dots = gain(page)
    if dots:
        parts.append(page.grid([dots]))
    layouts = _layouts(page.entries)
    maps = []
    for draw in (value_map, gain_map):
        tabs = page.tabs(draw(page, layout) for layout in layouts)
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


def _unlisted(page: Page, entry: Entry, spread: Distribution) -> str:
    """How clients fare that are too many to be listed."""
    metric = page.ranking.metric
    numbers = [spread.least, spread.lowest_tenth, spread.mean, spread.highest_tenth, spread.most]
    worst, low, mean, high, best = map(metric.shown, numbers)
    tenths = f"the lowest tenth has {low} on average, the highest {high}"
    return (
        f"{entry.name}: the {spread.n:,} clients that were scored are not listed. Their "
        f"{metric.in_a_sentence} goes from {worst} to {best}{metric.sign}, with a mean of {mean} "
        f"and a std of {metric.shown(spread.std)}; {tenths}."
    )


def _at_the_end(page: Page, run: RunData) -> str:
    """The mean of all clients, where a run has scored them once at its end."""
    metric = page.ranking.metric
    everybody = run.summary.get("everybody") or {}
    found = Distribution.read((everybody.get("before") or {}).get("headline"))
    if found is None or (run.judged_by or run.metric) != run.metric:
        return ""
    return f" All {found.n:,} clients, scored once at the end, have {metric.shown(found.mean)}."


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
            groups.setdefault(likeness(run.federation), []).append(run)
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


def value_map(page: Page, layout: Layout) -> Panel | None:
    """Every client's headline with the headline model."""
    metric = page.ranking.metric
    rows: Rows = []
    for entry in page.entries:
        runs = layout.of(entry)
        if runs:
            rows.append((entry, _means([run.clients for run in runs])))
    values = []
    for entry, row in rows:
        for j, value in enumerate(row):
            if value is not None:
                values.append((value, j, entry.name))
    if not values:
        return None
    lowest, highest = min(values), max(values)
    worst, client, method = highest
    if metric.higher:
        worst, client, method = lowest
    heading = f"{metric.label} of every client"
    unit = ""
    if metric.unit == "percent":
        unit = " in %"
    caption = (
        f"{metric.label} of the headline model{unit}, a column per client, grouped by domain if "
        f"there are domains.{layout.note} Worst: client {client} with {method}, "
        f"{metric.shown(worst)}{metric.sign}."
    )
    ends = (lowest[0], highest[0])
    chart = _map(heading, rows, layout.runs[0].federation, ends, metric.shown)
    return Panel(f"clients{layout.suffix}", heading, caption, chart, layout.tab)


def gain_map(page: Page, layout: Layout) -> Panel | None:
    """Every client's gain over the method that all are measured against."""
    metric, against = page.ranking.metric, page.ranking.against
    everyone = shown_runs(page.entries)
    rows: Rows = []
    for entry in page.entries:
        gained = []
        for run in layout.of(entry):
            row = gains(run, everyone, against)
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
    heading = f"Gain of every client over {_rival(against)}"
    unit = f"By how much {metric.in_a_sentence} is better"
    if metric.unit == "percent":
        unit = "Percentage points better"
    caption = (
        f"{unit} (blue) or worse (orange) than in the same client's run of {against} with the "
        f"same seed.{layout.note}"
    )
    federation = layout.runs[0].federation
    chart = _map(heading, rows, federation, (-most, most), signed_as(metric))
    return Panel(f"gain-map{layout.suffix}", heading, caption, chart, layout.tab)


def _rival(against: str) -> str:
    """The method that gains are measured against, in a heading."""
    if against == ALONE:
        return "training alone"
    return against


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


def gain(page: Page) -> Panel | None:
    """Every client's gain over the method that all are measured against, a row for each method."""
    against, show = page.ranking.against, signed_as(page.ranking.metric)
    everyone = shown_runs(page.entries)
    marks: list[Mark] = []
    names: list[tuple[float, str]] = []
    better: list[str] = []
    for entry in page.entries:
        gained: Gained = []
        winners = 0
        means = []
        for run in entry.shown:
            row = gains(run, everyone, against)
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
        marks += [_client_dots(page, entry, y, gained), _mean_diamond(page, entry, y, mean, std)]
        better.append(f"{entry.name} {winners} of {len(gained)} (mean {show(mean)})")
    if not marks:
        return None
    heading = f"Gain over {_rival(against)}"
    dot = "A dot is a client"
    if len(seeds_of(everyone)) > 1:
        dot += " of a seed"
    than = against
    if against == ALONE:
        than = "alone"
    caption = (
        f"{dot}; right of the line it is better off than {than}. Diamonds are means over clients. "
        f"Better off: {'; '.join(better)}."
    )
    chart = Chart(
        heading,
        marks,
        Axis(f"{_unit(page)} better than {against}", zero=True),
        Axis(ticks=names, ends=(names[-1][0] - 0.6, 0.6)),
        width=700,
        height=60 + 44 * len(names),
        rule=0.0,
    )
    return Panel("gain", heading, caption, chart)


def _unit(page: Page) -> str:
    """What gains are counted in."""
    metric = page.ranking.metric
    if metric.unit != "percent":
        return metric.in_a_sentence
    if metric.name == DEFAULT:
        return "points"
    return f"points of {metric.in_a_sentence}"


def _client_dots(page: Page, entry: Entry, y: float, gained: Gained) -> Mark:
    # A fixed scatter up and down, so that equal gains do not hide each other.
    metric, show = page.ranking.metric, signed_as(page.ranking.metric)
    points: list[float] = []
    heights: list[float] = []
    tips: list[str] = []
    for i, (value, client, run) in enumerate(gained):
        points.append(metric.factor * value)
        heights.append(y + 0.52 * ((i * 0.618034) % 1 - 0.5))
        of = f"{entry.name}, client {client}, seed {run.seed}"
        tips.append(f"{of}: {show(value)} {_unit(page)}")
    number, name = entry.number, entry.name
    return Mark("dots", points, heights, number, name, tips=tips, size=3.2, opacity=0.55)


def _mean_diamond(page: Page, entry: Entry, y: float, mean: float, std: Value) -> Mark:
    metric = page.ranking.metric
    shown = text(mean, std, signed_as(metric))
    tip = f"{entry.name}, mean over clients: {shown} {_unit(page)}"
    at = [metric.factor * mean]
    return Mark("dots", at, [y], entry.number, ink="ink", symbol="diamond", tips=[tip], size=5)

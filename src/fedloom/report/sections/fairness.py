"""Accuracy against its spread over clients, against the worst client, and clients by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..columns import percent, text
from ..entries import Entry, mean_std
from ..figures import PERCENT, Axis, Chart, Mark, Panel, Value
from ..page import Page
from . import section
from .curves import BAND, band, few


class Against(NamedTuple):
    """What the mean accuracy is drawn against."""

    id: str
    heading: str
    figure: str  # its name in a run
    label: str
    caption: str
    tab: str


SPREAD = Against(
    "fairness",
    "Accuracy and fairness",
    "accuracy_std",
    "std over clients, points",
    "Each method by the mean of its clients' accuracies and by their spread (std over clients, "
    "ddof 0). To the right is better, further down is fairer: the lower right corner is best.",
    "spread over clients",
)
WORST = Against(
    "worst",
    "Accuracy and the worst client",
    "worst_client",
    "worst client, %",
    "Each method by the mean of its clients' accuracies and by its worst client: the upper right "
    "corner is best.",
    "worst client",
)


@section("fairness", "Fairness", order=40)
def fairness(page: Page) -> str | None:
    """The two scatter plots behind tabs, and the ranked clients beside them."""
    scatters = [scatter(page.entries, against) for against in (SPREAD, WORST)]
    parts = [page.tabs(scatters)]
    ranked = profile(page.entries)
    if ranked:
        parts.append(page.figure(ranked))
    if not any(parts):
        return None
    return page.render("grid.html.j2", parts=parts, kind="two")


def scatter(entries: Sequence[Entry], against: Against) -> Panel | None:
    """A large dot for each method, small ones for its seeds."""
    small: list[Mark] = []
    large: list[Mark] = []
    for entry in entries:
        seeds = _seeds(entry, against.figure)
        if not seeds:
            continue
        if len(seeds) > 1:
            small.append(_seed_dots(entry, seeds))
        large.append(_mean_dot(entry, seeds))
    if not large:
        return None
    caption = against.caption
    if small:
        caption += " Small dots are the seeds, the large one their mean with whiskers of one std."
    chart = Chart(
        against.heading,
        [*small, *large],
        Axis("mean accuracy of the clients, %"),
        Axis(against.label),
        width=540,
        height=330,
    )
    return Panel(against.id, against.heading, caption, chart, against.tab)


Seeds = list[tuple[float, float, object]]  # mean accuracy, the other figure, the seed


def _seeds(entry: Entry, figure: str) -> Seeds:
    seeds: Seeds = []
    for run in entry.shown:
        x = run.figure("accuracy_mean")
        y = run.figure(figure)
        if x is not None and y is not None:
            seeds.append((x, y, run.seed))
    return seeds


def _seed_dots(entry: Entry, seeds: Seeds) -> Mark:
    means: list[float] = []
    others: list[float] = []
    tips: list[str] = []
    for x, y, seed in seeds:
        means.append(100 * x)
        others.append(100 * y)
        tips.append(f"{entry.name}, seed {seed}: {percent(x)} %, {percent(y)}")
    return Mark("dots", means, others, entry.number, tips=tips, size=2.6, opacity=0.5)


def _mean_dot(entry: Entry, seeds: Seeds) -> Mark:
    means, others, _ = zip(*seeds, strict=True)
    x, dx = mean_std(means)
    y, dy = mean_std(others)
    assert x is not None and y is not None
    return Mark(
        "dots",
        [100 * x],
        [100 * y],
        entry.number,
        entry.name,
        dx=[_points(dx)],
        dy=[_points(dy)],
        ends=PERCENT,
        tips=[f"{entry.name}: {text(x, dx, percent)} %, {text(y, dy, percent)}"],
        size=6.5,
    )


def _points(share: Value) -> Value:
    if share is None:
        return None
    return 100 * share


def profile(entries: Sequence[Entry]) -> Panel | None:
    """The clients of each method from the worst to the best."""
    bands: list[Mark] = []
    lines: list[Mark] = []
    for entry in entries:
        rows = [run.ranked for run in entry.shown]
        sizes = set(map(len, rows))
        if len(sizes) != 1 or min(sizes) < 2:
            continue
        x: list[float] = []
        y: list[float] = []
        spreads: list[float] = []
        tips: list[str] = []
        for rank, accuracies in enumerate(zip(*rows, strict=True), 1):
            mean, std = mean_std(accuracies)
            x.append(float(rank))
            y.append(100 * (mean or 0.0))
            if std is not None:
                spreads.append(100 * std)
            tips.append(f"{entry.name}: {text(mean, std, percent)} %")
        if len(spreads) == len(x):
            bands.append(band(entry, x, y, spreads, PERCENT, opacity=0.14))
        lines.append(Mark("line", x, y, entry.number, entry.name, tips=tips, size=2.2))
    if not lines:
        return None
    bands = few(bands)
    heading = "Clients from worst to best"
    caption = (
        "Accuracy with the headline model, the clients of each method ranked by their own. A "
        "flat line treats all alike; a high left end leaves nobody behind."
    )
    if bands:
        caption += f" With several seeds, clients are ranked within each; {BAND}."
    across = Axis("rank of the client: 1 is the worst off", whole=True)
    if any(run.spread for entry in entries for run in entry.shown):
        across = Axis("clients by rank: 1 is the worst off, 101 the best of all", whole=True)
        caption += " Clients are not listed one by one: shown are percentiles."
    chart = Chart(
        heading,
        [*bands, *lines],
        across,
        Axis("accuracy, %"),
        width=540,
        height=330,
        unified=True,
    )
    return Panel("profile", heading, caption, chart)

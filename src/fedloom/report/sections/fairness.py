"""Accuracy against its spread over clients, against the worst client, and clients by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..columns import percent, text
from ..entries import Entry, mean_std, present
from ..figures import Axis, Chart, Mark, Panel, Value
from ..page import Page
from . import section
from .curves import BAND


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
    parts = [page.tabs([panel for panel in scatters if panel])]
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
        large.append(_mean_dot(entry, seeds, beside=len(entries) <= 12))
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
        x, y = run.figure("accuracy_mean"), run.figure(figure)
        if x is not None and y is not None:
            seeds.append((x, y, run.seed))
    return seeds


def _seed_dots(entry: Entry, seeds: Seeds) -> Mark:
    return Mark(
        "dots",
        [100 * x for x, _, _ in seeds],
        [100 * y for _, y, _ in seeds],
        entry.number,
        tips=[f"{entry.name}, seed {s}: {percent(x)} %, {percent(y)}" for x, y, s in seeds],
        size=2.6,
        opacity=0.5,
    )


def _mean_dot(entry: Entry, seeds: Seeds, beside: bool) -> Mark:
    x, dx = mean_std(x for x, _, _ in seeds)
    y, dy = mean_std(y for _, y, _ in seeds)
    assert x is not None and y is not None
    return Mark(
        "dots",
        [100 * x],
        [100 * y],
        entry.number,
        entry.name,
        dx=[_points(dx)],
        dy=[_points(dy)],
        tips=[f"{entry.name}: {text(x, dx, percent)} %, {text(y, dy, percent)}"],
        size=6.5,
        beside=beside,
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
        rows = [sorted(present(run.clients)) for run in entry.shown]
        sizes = {len(row) for row in rows}
        if len(sizes) != 1 or min(sizes) < 2:
            continue
        ranks = [mean_std(accuracies) for accuracies in zip(*rows, strict=True)]
        x = [j + 1.0 for j in range(len(ranks))]
        y = [100 * (value or 0.0) for value, _ in ranks]
        spreads = [100 * std for _, std in ranks if std is not None]
        if len(spreads) == len(ranks):
            up = [v + s for v, s in zip(y, spreads, strict=True)]
            low = [v - s for v, s in zip(y, spreads, strict=True)]
            bands.append(Mark("band", x, up, entry.number, low=low, opacity=0.14))
        tips = [f"{entry.name}: {text(v, s, percent)} %" for v, s in ranks]
        lines.append(Mark("line", x, y, entry.number, entry.name, tips=tips, size=2.2))
    if not lines:
        return None
    heading = "Clients from worst to best"
    caption = (
        "Last headline accuracy, the clients of each method ranked by their own. A flat line "
        "treats all alike; a high left end leaves nobody behind."
    )
    if bands:
        caption += f" With several seeds, clients are ranked within each; {BAND}."
    across = Axis("rank of the client: 1 is the worst off", whole=True)
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

"""The headline metric by round, by traffic and by time; accuracy, losses and figures by round."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...metrics.registry import DEFAULT, METRICS, Metric
from ..entries import Entry, RunData, mean_std, number
from ..figures import PERCENT, Axis, Chart, Mark, Panel, Value
from ..page import Page
from . import section

BAND = "the band is the std over seeds"
MOST_BANDS = 9  # more would hide each other, and the lines
Point = tuple[float, float, Value]  # where it stands, the mean and the std over seeds
Line = Mapping[str, Any]  # a line of metrics


class Along(NamedTuple):
    """What a curve is drawn against: the axis, the tab, a remark, and the unit in tips."""

    label: str
    tab: str
    remark: str
    unit: str


ALONG = {
    "round": Along("round", "by round", "", ""),
    "traffic": Along(
        "MB up and down so far, all clients",
        "by traffic",
        " A method that sends nothing stands at 0 MB.",
        "MB",
    ),
    "time": Along(
        "seconds so far",
        "by time",
        " Seconds depend on the machine and on what else it was doing.",
        "s",
    ),
    "simulated": Along(
        "simulated seconds so far",
        "by simulated time",
        " Seconds of the clock that [clock] describes, not of the machine that computed it.",
        "s",
    ),
}
MODELS = {
    "personal": ("Personal", "with the model that each method reports (its headline model)"),
    "common": ("Common model", "with the one model for all, where the method has one"),
    "before": (
        "Before local training",
        "with what the server sends, before the client trains on it",
    ),
    "after": ("After local training", "with what the client holds right after it has trained"),
}


class Curve(NamedTuple):
    """What is drawn: how to read it from a line of metrics, and how to show and name it."""

    read: Callable[[Line], Value]
    id: str
    heading: str
    about: str
    axis: str
    decimals: int = 1
    sign: str = ""
    ends: tuple[float, float] | None = None


@section("curves", "Curves", order=20)
def curves(page: Page) -> str | None:
    """The headline against its axes; other models, losses and methods' own figures by round."""
    metric = page.ranking.metric
    of_personal = _of_model(metric, "personal")
    personal = [draw(page.entries, of_personal, by) for by in ALONG]
    if metric.name != DEFAULT:
        personal.append(_accuracy(page))
    others = []
    for model in ("common", "before", "after"):
        panel = draw(page.entries, _of_model(metric, model), "round")
        if panel:
            others.append(replace(panel, tab=MODELS[model][0]))
    losses = [_loss(page, part) for part in _parts(page.entries, "loss")]
    figures = [_figure(page, name) for name in _parts(page.entries, "figures")]
    parts = [page.tabs(personal), page.tabs(others), page.tabs(losses), page.tabs(figures)]
    if not any(parts):
        return None
    return page.render("grid.html.j2", parts=list(filter(None, parts)), kind="two")


def _of_model(metric: Metric, model: str) -> Curve:
    """A metric's mean over clients, with one of the models that are evaluated."""
    heading, about = MODELS[model]
    name = metric.in_a_sentence
    if model == "personal":
        heading += f" {name}"
    axis = name
    if metric.sign:
        axis += f",{metric.sign}"
    ends = None
    if metric.unit == "percent":
        ends = PERCENT

    def read(line: Line) -> Value:
        value = number(line, model, metric.key)
        if value is None:
            return None
        return metric.factor * value

    caption = f"Mean test {name} of the clients {about}"
    return Curve(read, model, heading, caption, axis, metric.decimals, metric.sign, ends)


def _accuracy(page: Page) -> Panel | None:
    """Accuracy by round, beside a headline that is another metric."""
    panel = draw(page.entries, _of_model(METRICS.find(DEFAULT), "personal"), "round")
    if panel is None:
        return None
    return replace(panel, id="accuracy-by-round", tab="accuracy by round")


def _parts(entries: Sequence[Entry], key: str) -> list[str]:
    """The names under a key of metrics, those that most methods have first."""
    users: dict[str, int] = {}
    for entry in entries:
        parts: set[str] = set()
        for run in entry.shown:
            parts |= set(run.last.get(key) or {})
        for part in sorted(parts):
            users[part] = users.get(part, 0) + 1
    return sorted(users, key=lambda part: (-users[part], part))


def _loss(page: Page, part: str) -> Panel | None:
    """A part of the loss that clients train with."""

    def read(line: Line) -> Value:
        return number(line, "loss", part)

    caption = (
        f"Mean of {part} over the samples that clients train on in the round, of the models while "
        "they train. A loss that still falls asks for more rounds; one that falls while the "
        "accuracy on test samples does too means that clients learn their samples by heart"
    )
    name = f"loss-{re.sub(r'[^a-z0-9]+', '-', part.lower())}"
    loss = Curve(read, name, f"Training loss: {part}", caption, part, decimals=3)
    panel = draw(page.entries, loss, "round")
    if panel is None:
        return None
    return replace(panel, tab=f"loss: {part}")


def _figure(page: Page, name: str) -> Panel | None:
    """Something that methods measure of themselves, see `figures` in their pages."""

    def read(line: Line) -> Value:
        return number(line, "figures", name)

    title = name.replace("_", " ")
    caption = f"{title[0].upper()}{title[1:]} at the end of the round, which the method measures"
    key = f"figure-{re.sub(r'[^a-z0-9]+', '-', name.lower())}"
    curve = Curve(read, key, f"Measured: {title}", caption, title, decimals=4)
    panel = draw(page.entries, curve, "round")
    if panel is None:
        return None
    return replace(panel, tab=title)


def draw(entries: Sequence[Entry], curve: Curve, by: str) -> Panel | None:
    """A line for each method with a band over its seeds."""
    bands: list[Mark] = []
    lines: list[Mark] = []
    for entry in entries:
        points = _points(entry, curve, by)
        if not points:
            continue
        x, y, spreads = map(list, zip(*points, strict=True))
        if None not in spreads:
            bands.append(band(entry, x, y, spreads, curve.ends, opacity=0.16))
        tips = [_tip(entry.name, curve, by, point) for point in points]
        lines.append(Mark("line", x, y, entry.number, entry.name, tips=tips, size=2.6))
    if not lines:
        return None
    bands = few(bands)
    along = ALONG[by]
    note = ""
    if bands:
        note = f"; {BAND}"
    chart = Chart(
        f"{curve.heading} {along.tab}",
        [*bands, *lines],
        Axis(along.label, whole=by == "round", zero=by != "round"),
        Axis(curve.axis),
        width=540,
        height=330,
        unified=by == "round",
    )
    return Panel(
        f"{curve.id}-{along.tab.replace(' ', '-')}",
        chart.title,
        f"{curve.about}{note}. The vertical axis need not start at zero.{along.remark}",
        chart,
        along.tab,
    )


def few(bands: list[Mark]) -> list[Mark]:
    """The bands of a figure, or none if there are too many of them to look at."""
    if len(bands) > MOST_BANDS:
        return []
    return bands


def band(
    entry: Entry,
    x: list[float],
    middle: list[float],
    spreads: list[float],
    ends: tuple[float, float] | None,
    opacity: float,
) -> Mark:
    """From one std below the line of a method to one above it, but not beyond the ends."""
    upper: list[float] = []
    lower: list[float] = []
    for value, spread in zip(middle, spreads, strict=True):
        low, high = value - spread, value + spread
        if ends:
            low, high = max(low, ends[0]), min(high, ends[1])
        upper.append(high)
        lower.append(low)
    return Mark("band", x, upper, entry.number, low=lower, opacity=opacity)


def _tip(name: str, curve: Curve, by: str, point: Point) -> str:
    at, value, spread = point
    tip = f"{name}: {value:.{curve.decimals}f}"
    if spread is not None:
        tip += f" ± {spread:.{curve.decimals}f}"
    tip += curve.sign
    if by != "round":
        tip += f", {at:,.1f} {ALONG[by].unit}"
    return tip


def _points(entry: Entry, curve: Curve, by: str) -> list[Point]:
    """(x, mean, std over seeds) at every round that all runs of the method have evaluated."""
    tables = [_table(run, curve, by) for run in entry.shown]
    if not tables:
        return []
    rounds = set(tables[0])
    for table in tables:
        rounds &= set(table)
    points = []
    for turn in sorted(rounds):
        places, values = zip(*(table[turn] for table in tables), strict=True)
        x, _ = mean_std(places)
        y, spread = mean_std(values)
        assert x is not None and y is not None
        points.append((x, y, spread))
    return points


def _table(run: RunData, curve: Curve, by: str) -> dict[float, tuple[float, float]]:
    """Where each evaluated round of a run stands, and its value as it is shown."""
    clock = _clock(run)
    table: dict[float, tuple[float, float]] = {}
    for line in run.metrics:
        turn = number(line, "round")
        value = curve.read(line)
        if turn is None or value is None:
            continue
        x: Value = turn
        if by == "time":
            x = clock.get(turn)
        elif by == "traffic":
            x = _traffic(line)
        elif by == "simulated":
            x = number(line, "simulated_seconds")
        if x is not None:
            table[turn] = (x, value)
    return table


def _traffic(line: Line) -> Value:
    """The megabytes sent up to a round."""
    up = number(line, "bytes_total", "up")
    down = number(line, "bytes_total", "down")
    if up is None or down is None:
        return None
    return (up + down) / 1e6


def _clock(run: RunData) -> dict[float, float]:
    """The seconds spent up to each round."""
    spent = 0.0
    clock: dict[float, float] = {}
    for line in run.timing:
        spent += number(line, "seconds") or 0.0
        clock[number(line, "round") or 0.0] = spent
    return clock

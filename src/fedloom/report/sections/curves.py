"""The headline metric by round, by traffic and by time; accuracy by round in any case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...metrics.registry import DEFAULT, METRICS, Metric
from ..columns import in_a_sentence
from ..entries import Entry, RunData, mean_std, number
from ..figures import PERCENT, Axis, Chart, Mark, Panel, Value
from ..page import Page
from . import section

BAND = "the band is the std over seeds"
Point = tuple[float, float, Value]  # where it stands, the mean and the std over seeds


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


@section("curves", "Curves", order=20)
def curves(page: Page) -> str | None:
    """The headline against three axes, the other models by round, and the legend."""
    metric = page.ranking.metric
    personal = [curve(page.entries, metric, "personal", by) for by in ALONG]
    if metric.name != DEFAULT:
        personal.append(_accuracy(page))
    others = [
        curve(page.entries, metric, model, "round") for model in ("common", "before", "after")
    ]
    parts = [page.tabs(personal), page.tabs(others)]
    if not any(parts):
        return None
    return page.render("curves.html.j2", listed=page.shown, parts=parts)


def _accuracy(page: Page) -> Panel | None:
    """Accuracy by round, beside a headline that is another metric."""
    panel = curve(page.entries, METRICS.find(DEFAULT), "personal", "round")
    if panel is None:
        return None
    return replace(panel, id="accuracy-by-round", tab="accuracy by round")


def curve(entries: Sequence[Entry], metric: Metric, model: str, by: str) -> Panel | None:
    """Mean over the clients, a line for each method with a band over its seeds."""
    bands: list[Mark] = []
    lines: list[Mark] = []
    for entry in entries:
        points = _points(entry, metric, model, by)
        if not points:
            continue
        x, y, spreads = map(list, zip(*points, strict=True))
        if None not in spreads:
            ends = PERCENT if metric.unit == "percent" else None
            bands.append(band(entry, x, y, spreads, ends, opacity=0.16))
        tips = [_tip(entry.name, metric, by, point) for point in points]
        lines.append(Mark("line", x, y, entry.number, entry.name, tips=tips, size=2.6))
    if not lines:
        return None
    heading, model_about = MODELS[model]
    name = in_a_sentence(metric.label)
    tab = heading
    along = ALONG[by]
    if model == "personal":
        heading += f" {name}"
        tab = along.tab
    note = ""
    if bands:
        note = f"; {BAND}"
    scale = name
    if metric.sign:
        scale += f",{metric.sign}"
    chart = Chart(
        f"{heading} {along.tab}",
        [*bands, *lines],
        Axis(along.label, whole=by == "round", zero=by != "round"),
        Axis(scale),
        width=540,
        height=330,
        unified=by == "round",
    )
    return Panel(
        f"{model}-{along.tab.replace(' ', '-')}",
        chart.title,
        f"Mean test {name} of the clients {model_about}{note}. The vertical axis need not start "
        f"at zero.{along.remark}",
        chart,
        tab,
    )


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


def _tip(name: str, metric: Metric, by: str, point: Point) -> str:
    at, value, spread = point
    tip = f"{name}: {value:.{metric.decimals}f}"
    if spread is not None:
        tip += f" ± {spread:.{metric.decimals}f}"
    tip += metric.sign
    if by != "round":
        tip += f", {at:,.1f} {ALONG[by].unit}"
    return tip


def _points(entry: Entry, metric: Metric, model: str, by: str) -> list[Point]:
    """(x, mean, std over seeds) at every round that all runs of the method have evaluated."""
    tables = [_table(run, metric, model, by) for run in entry.shown]
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


def _table(run: RunData, metric: Metric, model: str, by: str) -> dict[float, tuple[float, float]]:
    """Where each evaluated round of a run stands, and its value as it is shown."""
    clock = _clock(run)
    table: dict[float, tuple[float, float]] = {}
    for line in run.metrics:
        turn = number(line, "round")
        value = number(line, model, metric.key)
        if turn is None or value is None:
            continue
        x: Value = turn
        if by == "time":
            x = clock.get(turn)
        elif by == "traffic":
            x = _traffic(line)
        if x is not None:
            table[turn] = (x, metric.factor * value)
    return table


def _traffic(line: Mapping[str, Any]) -> Value:
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

"""Accuracy by round, by traffic and by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..entries import Entry, RunData, mean_std, number
from ..figures import Axis, Chart, Mark, Panel, Value
from ..page import Page
from . import section

BAND = "the band is the std over seeds"


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
    "personal": (
        "Personal accuracy",
        "with the model that each method reports (its headline accuracy)",
    ),
    "common": ("Common model", "with the one model for all, where the method has one"),
    "before": (
        "Before local training",
        "with what the server sends, before the client trains on it",
    ),
    "after": ("After local training", "with what the client holds right after it has trained"),
}


@section("curves", "Curves", order=20)
def curves(page: Page) -> str | None:
    """The headline accuracy against three axes, the other models by round, and the legend."""
    personal = [curve(page.entries, "personal", by) for by in ALONG]
    others = [curve(page.entries, model, "round") for model in ("common", "before", "after")]
    places = [[p for p in panels if p] for panels in (personal, others)]
    if not any(places):
        return None
    return page.render(
        "curves.html.j2",
        listed=[e for e in page.entries if e.shown],
        parts=[page.tabs(panels) for panels in places],
    )


def curve(entries: Sequence[Entry], model: str, by: str) -> Panel | None:
    """Mean accuracy over the clients, a line for each method with a band over its seeds."""
    bands: list[Mark] = []
    lines: list[Mark] = []
    for entry in entries:
        points = _points(entry, model, by)
        if not points:
            continue
        x = [at for at, _, _ in points]
        y = [value for _, value, _ in points]
        spreads = [spread for _, _, spread in points]
        if None not in spreads:
            up = [value + (spread or 0.0) for _, value, spread in points]
            low = [value - (spread or 0.0) for _, value, spread in points]
            bands.append(Mark("band", x, up, entry.number, low=low, opacity=0.16))
        tips = [_tip(entry.name, by, point) for point in points]
        lines.append(Mark("line", x, y, entry.number, entry.name, tips=tips, size=2.6))
    if not lines:
        return None
    heading, model_about = MODELS[model]
    along = ALONG[by]
    band = f"; {BAND}" if bands else ""
    chart = Chart(
        f"{heading} {along.tab}",
        [*bands, *lines],
        Axis(along.label, whole=by == "round", zero=by != "round"),
        Axis("accuracy, %"),
        width=540,
        height=330,
        unified=by == "round",
    )
    return Panel(
        f"{model}-{along.tab.replace(' ', '-')}",
        chart.title,
        f"Mean test accuracy of the clients {model_about}{band}. The vertical axis need not start "
        f"at zero.{along.remark}",
        chart,
        along.tab if model == "personal" else heading,
    )


Point = tuple[float, float, Value]


def _tip(name: str, by: str, point: Point) -> str:
    at, value, spread = point
    tip = f"{name}: {value:.1f}"
    if spread is not None:
        tip += f" ± {spread:.1f}"
    tip += " %"
    if by != "round":
        tip += f", {at:,.1f} {ALONG[by].unit}"
    return tip


def _points(entry: Entry, model: str, by: str) -> list[Point]:
    """(x, mean, std over seeds) at every round that all runs of the method have evaluated."""
    tables = [_table(run, model, by) for run in entry.shown]
    if not tables:
        return []
    rounds = set(tables[0])
    for table in tables:
        rounds &= set(table)
    points = []
    for turn in sorted(rounds):
        x, _ = mean_std(table[turn][0] for table in tables)
        y, spread = mean_std(table[turn][1] for table in tables)
        assert x is not None and y is not None
        points.append((x, y, spread))
    return points


def _table(run: RunData, model: str, by: str) -> dict[float, tuple[float, float]]:
    """Where each evaluated round of a run stands, and its accuracy in percent."""
    clock = _clock(run)
    table: dict[float, tuple[float, float]] = {}
    for line in run.metrics:
        turn, value = number(line, "round"), number(line, model, "accuracy_mean")
        if turn is None or value is None:
            continue
        x: Value = turn
        if by == "time":
            x = clock.get(turn)
        elif by == "traffic":
            up, down = number(line, "bytes_total", "up"), number(line, "bytes_total", "down")
            x = None if up is None or down is None else (up + down) / 1e6
        if x is not None:
            table[turn] = (x, 100 * value)
    return table


def _clock(run: RunData) -> dict[float, float]:
    """The seconds spent up to each round."""
    spent = 0.0
    clock: dict[float, float] = {}
    for line in run.timing:
        spent += number(line, "seconds") or 0.0
        clock[number(line, "round") or 0.0] = spent
    return clock

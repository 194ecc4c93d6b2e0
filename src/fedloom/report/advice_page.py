"""The page of `fedloom advise`: the verdict first, then what it rests on, each with a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .document import in_document
from .figures import Axis, Chart, Figure, Heat, Mark, Panel
from .page import Page

Values = Mapping[str, Any]
MOST_COLUMNS = 60  # clients or classes that a picture shows
WIDE = 1080


def advice_page(values: Values) -> str:
    """The page as an HTML document; the same advice gives the same bytes."""
    page = Page([], "fedloom advise")
    findings = []
    for finding in values["diagnosis"]["findings"]:
        figure = None
        if finding["numbers"]:
            drawn = _DRAWN[finding["name"]](finding["numbers"])
            figure = page.figure(Panel(finding["name"], drawn.title, "", drawn))
        findings.append({**finding, "figure": figure})
    pictures = [
        page.figure(Panel("race", "The race", RACE, _race(values["race"]))),
        page.figure(Panel("gains", "Who gains", GAINS, _gains(values["clients"]))),
    ]
    body = page.render("advice.html.j2", advice=values, findings=findings, pictures=pictures)
    return in_document(page, body)


RACE = (
    "Mean accuracy of clients on held-out training samples, by stage. A method whose line ends "
    "early left the race there."
)
GAINS = "Each client's gain over training alone with the method of the verdict, in points."


def _percent(value: float) -> str:
    return f"{100 * value:.0f}"


def _bars(title: str, names: Sequence[str], values: Sequence[float], label: str) -> Chart:
    """One bar for each name; of very many, the first."""
    names, values = names[:MOST_COLUMNS], values[:MOST_COLUMNS]
    places = list(map(float, range(len(names))))
    tips = [f"{name}: {value:g}" for name, value in zip(names, values, strict=True)]
    ticks = list(zip(places, map(str, names), strict=True))
    if len(ticks) > 12:  # more names would run into each other
        ticks = [(place, str(int(place))) for place in places[:: len(places) // 12 + 1]]
    mark = Mark("bars", places, values, 0, tips=tips, size=0.9)
    across = Axis(ticks=ticks, ends=(-0.5, len(names) - 0.5))
    return Chart(title, [mark], across, Axis(label, zero=True), width=WIDE, height=240)


def _sizes(numbers: Values) -> Figure:
    return _bars("Training samples by client", numbers["names"], numbers["sizes"], "samples")


def _classes(numbers: Values) -> Figure:
    return _bars("Training samples by class", numbers["names"], numbers["counts"], "samples")


def _labels(numbers: Values) -> Figure:
    shares = numbers["shares"][:MOST_COLUMNS]
    classes = numbers["classes"][:MOST_COLUMNS]
    cells = []
    for place in range(len(classes)):
        cells.append([row[place] for row in shares])
    title = "Each client's mix of classes, %"
    columns = [str(number) for number in range(len(shares))]
    bands = [None] * len(columns)
    rows = [f"class {name}" for name in classes]
    top = max(max(row) for row in cells)
    return Heat(title, rows, columns, bands, cells, (0.0, top or 1.0), _percent)


def _domains(numbers: Values) -> Figure:
    names = numbers["names"]
    title = f"What a classifier takes samples of these {numbers['what']} for, %"
    columns = [str(number) for number in range(len(names))]
    rows = [f"{number} {name}" for number, name in enumerate(names)]
    bands = [None] * len(columns)
    return Heat(title, rows, columns, bands, numbers["confusion"], (0.0, 1.0), _percent, of="")


def _agreement(numbers: Values) -> Figure:
    names = {"majority": "majority class", "own": "own", "others": "all others'", "both": "both"}
    shares = [100 * numbers[name] for name in names]
    title = "Accuracy of a linear classifier, by whose samples it is trained on, %"
    return _bars(title, list(names.values()), shares, "accuracy, %")


_DRAWN = {
    "sizes": _sizes,
    "classes": _classes,
    "labels": _labels,
    "domains": _domains,
    "agreement": _agreement,
}


def _race(stages: Sequence[Values]) -> Chart:
    """A line for each method, with a point for each stage; of one length, the last counts."""
    points: dict[str, dict[int, float]] = {}
    for stage in stages:
        for method, accuracy in stage["accuracy"].items():
            points.setdefault(method, {})[stage["rounds"]] = 100 * accuracy
    marks = []
    for number, (method, line) in enumerate(points.items()):
        tips = [f"{method}, {rounds} rounds: {value:.1f} %" for rounds, value in line.items()]
        x = list(map(float, line))
        marks.append(Mark("line", x, list(line.values()), number, method, tips=tips))
    across, up = Axis("rounds", whole=True), Axis("accuracy, %")
    return Chart("The race", marks, across, up, width=WIDE, height=320, legend=True)


def _gains(clients: Sequence[Values]) -> Chart:
    names, gains = [], []
    for client in clients:
        if client["gain"] is not None:
            names.append(client["client"])
            gains.append(100 * client["gain"])
    return _bars("Gain over training alone by client", names, gains, "points")

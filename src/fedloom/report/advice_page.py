"""The page of `fedloom advise`: the verdict first, then what it rests on, each with a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..metrics.registry import Metric, headline
from .advice_table import cells, heads
from .document import in_document
from .figures import Axis, Chart, Figure, Heat, Mark, Panel
from .page import Page
from .palette import slots

Values = Mapping[str, Any]
MOST_COLUMNS = 60  # clients or classes that a picture shows
MOST_NAMED = 12  # clients that a caption names
WIDE, NARROW = 1080, 460  # a wide chart scrolls on a phone, a narrow one shrinks
FEW_BARS = 6  # so many have room for their names in a narrow chart


def advice_page(values: Values) -> str:
    """The page as an HTML document; the same advice gives the same bytes."""
    page = Page([], "fedloom advise")
    findings = []
    for finding in values["diagnosis"]["findings"]:
        figure = None
        if finding["numbers"]:
            drawn = _DRAWN[finding["name"]](finding["numbers"])
            caption = _CAPTIONS.get(finding["name"], _nothing)(finding["numbers"])
            figure = page.figure(Panel(finding["name"], drawn.title, caption, drawn))
        findings.append({**finding, "figure": figure})
    metric = headline(values["metric"])
    gains = _gains(values["clients"], metric)
    shown = {
        "race": page.figure(Panel("race", "The race", _about_race(metric), _race(values, metric))),
        "gains": page.figure(Panel("gains", "Who gains", _about_gains(values), gains)),
        "heads": heads(metric),
        "rows": [(row["helps"], cells(row, metric)) for row in values["table"]],
    }
    body = page.render("advice.html.j2", advice=values, findings=findings, **shown)
    return in_document(page, body)


def _about_gains(values: Values) -> str:
    return (
        f"Each client's gain over training alone with {values['method']}, on {values['samples']}: "
        "a mean over seeds."
    )


def _about_race(metric: Metric) -> str:
    return (
        f"Mean {metric.in_a_sentence} of clients on held-out training samples, by stage. A method "
        "whose line ends early left the race there."
    )


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
    marks = []
    for ink, below in (("pos", False), ("neg", True)):
        chosen = [i for i, value in enumerate(values) if (value < 0) == below]
        x, y = [places[i] for i in chosen], [values[i] for i in chosen]
        if chosen:
            said = [tips[i] for i in chosen]
            marks.append(Mark("bars", x, y, ink=ink, tips=said, size=0.9))
    across = Axis(ticks=ticks, ends=(-0.5, len(names) - 0.5))
    width = NARROW
    if len(names) > FEW_BARS:
        width = WIDE
    return Chart(title, marks, across, Axis(label, zero=True), width=width, height=240)


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


def _nothing(numbers: Values) -> str:
    return ""


def _columns_of_labels(numbers: Values) -> str:
    """Which client a column is; many would fill the page."""
    names = numbers["names"]
    by_number = [f"client {number}" for number in range(len(names))]
    if len(names) > MOST_NAMED or list(names) == by_number:
        return "A column is a client."
    called = [f"{number} {name}" for number, name in enumerate(names)]
    return f"A column is a client: {', '.join(called)}."


def _rows_of_domains(numbers: Values) -> str:
    return (
        "A row is where samples come from, a column what the classifier takes them for, in per "
        "cent of the row."
    )


_CAPTIONS = {"labels": _columns_of_labels, "domains": _rows_of_domains}


def _race(values: Values, metric: Metric) -> Chart:
    """A line for each method, with a point for each stage; of one length, the last counts."""
    points: dict[str, dict[int, float]] = {}
    for stage in values["race"]:
        for method, mean in stage["means"].items():
            points.setdefault(method, {})[stage["rounds"]] = mean
    marks = []
    colours = slots(list(points))  # a method has its colour on every page
    for method, line in points.items():
        tips = [
            f"{method}, {rounds} rounds: {metric.shown(value)}{metric.sign}"
            for rounds, value in line.items()
        ]
        x = list(map(float, line))
        y = [metric.factor * value for value in line.values()]
        marks.append(Mark("line", x, y, colours[method], method, tips=tips))
    label = metric.in_a_sentence
    if metric.sign:
        label += f",{metric.sign}"
    across, up = Axis("rounds", whole=True), Axis(label)
    return Chart("The race", marks, across, up, width=NARROW, height=320, legend=True)


def _gains(clients: Sequence[Values], metric: Metric) -> Chart:
    names, gains = [], []
    for client in clients:
        if client["gain"] is not None:
            names.append(client["client"])
            gains.append(metric.factor * client["gain"])
    unit = metric.in_a_sentence
    if metric.unit == "percent":
        unit = "points"
    return _bars("Gain over training alone by client", names, gains, unit)

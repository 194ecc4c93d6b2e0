"""The figures of a comparison, each with its heading and a caption; for the page and for export."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .figures import Axis, Chart, Figure, Heat, Mark, Value
from .gather import (
    SIGMA,
    Entry,
    RunData,
    alone,
    gains,
    megabytes,
    number,
    over,
    percent,
    signed,
    text,
)

SEEDS = "the band is the std over seeds"


@dataclass(frozen=True)
class Panel:
    """A figure (or a PNG) with its heading, its caption and, where several share a place, the name of its tab."""

    id: str
    heading: str
    caption: str
    figure: Figure | bytes
    tab: str = ""


Panels = list[Panel]


def _count(value: float) -> str:
    return f"{value / 1000:.0f}k" if value >= 1e4 else f"{value:.0f}"


# -- curves -----------------------------------------------------------------------------------------------------------
def _curve(entry: Entry, kind: str, by: str) -> list[tuple[float, float, Value]]:
    """(x, mean, std over seeds) at every round that all of the method's runs have evaluated."""
    tables = []
    for run in entry.shown:
        spent, clock = 0.0, {}
        for line in run.timing:
            spent += number(line, "seconds") or 0.0
            clock[number(line, "round")] = spent
        table: dict[float, tuple[float, float]] = {}
        for line in run.metrics:
            turn, value = number(line, "round"), number(line, kind, "accuracy_mean")
            up, down = number(line, "bytes_total", "up"), number(line, "bytes_total", "down")
            x = turn if by == "round" else clock.get(turn) if by == "time" else None
            if by == "traffic" and up is not None and down is not None:
                x = (up + down) / 1e6
            if turn is not None and value is not None and x is not None:
                table[turn] = (x, 100 * value)
        tables.append(table)
    points = []
    for turn in sorted(set.intersection(*map(set, tables))) if tables else []:
        y, spread = over(t[turn][1] for t in tables)
        x, _ = over(t[turn][0] for t in tables)
        assert x is not None and y is not None
        points.append((x, y, spread))
    return points


BY = {
    "round": ("round", "by round", ""),
    "traffic": (
        "MB up and down so far, all clients",
        "by traffic",
        " A method that sends nothing stands at 0 MB.",
    ),
    "time": (
        "seconds so far",
        "by time",
        " Seconds depend on the machine and on what else it was doing.",
    ),
}
KINDS = {
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


def curve(entries: Sequence[Entry], kind: str, by: str) -> Panel | None:
    """Mean accuracy over the clients, by round, by traffic or by time, with a band over seeds."""
    marks: list[Mark] = []
    label, tab, more = BY[by]
    for entry in entries:
        points = _curve(entry, kind, by)
        if not points:
            continue
        x, y = [p[0] for p in points], [p[1] for p in points]
        if all(p[2] is not None for p in points):
            up, low = (
                [v + sign * (p[2] or 0) for v, p in zip(y, points, strict=True)] for sign in (1, -1)
            )
            marks.append(Mark("band", x, up, entry.number, low=low, opacity=0.16))
        tips = []
        for at, value, spread in points:
            where = f"{at:,.0f}" if by == "round" else f"{at:,.1f}"
            place = "" if by == "round" else f", {where} {'s' if by == 'time' else 'MB'}"
            tips.append(
                f"{entry.name}: {value:.1f}{f' ± {spread:.1f}' if spread is not None else ''} %{place}"
            )
        marks.append(Mark("line", x, y, entry.number, entry.name, tips=tips, size=2.6))
    if not marks:
        return None
    # Bands behind all lines.
    marks.sort(key=lambda m: m.kind == "line")
    heading, with_what = KINDS[kind]
    banded = any(m.kind == "band" for m in marks)
    caption = (
        f"Mean test accuracy of the clients {with_what}{f'; {SEEDS}' if banded else ''}. The vertical axis need not "
        f"start at zero.{more}"
    )
    axis = Axis(label, whole=by == "round", zero=by != "round")
    chart = Chart(
        f"{heading} {tab}",
        marks,
        axis,
        Axis("accuracy, %"),
        width=540,
        height=330,
        unified=by == "round",
    )
    return Panel(
        f"{kind}-{tab.replace(' ', '-')}",
        f"{heading} {tab}",
        caption,
        chart,
        tab if kind == "personal" else heading,
    )


def curves(entries: Sequence[Entry]) -> tuple[Panels, Panels]:
    """The headline accuracy by round, traffic and time; the other models by round."""
    first = [curve(entries, "personal", by) for by in BY]
    others = [curve(entries, kind, "round") for kind in ("common", "before", "after")]
    return [p for p in first if p], [p for p in others if p]


# -- domains and fairness ---------------------------------------------------------------------------------------------
def domain_names(entries: Sequence[Entry]) -> list[str]:
    """All domains, in the data's order."""
    runs = [r for e in entries for r in e.runs]
    named = [str(d) for r in runs for d in r.federation.get("domains") or []]
    return list(
        dict.fromkeys(named + [str(d) for r in runs for d in r.summary.get("domains") or {}])
    )


def domains(entries: Sequence[Entry]) -> Panels:
    """Bars of every domain, a bar for each method."""
    names = domain_names(entries)
    table = {e.number: [e.over(lambda r, d=d: r.domain(d)) for d in names] for e in entries}  # type: ignore[misc]
    known = {e.number: e for e in entries if any(v is not None for v, _ in table[e.number])}
    if len(names) < 2 or not known:
        return []
    return [
        _grouped(
            "domains",
            "Accuracy by domain",
            names,
            known,
            table,
            percent,
            "accuracy, %",
            100,
            _hardest(names, known, table),
        )
    ]


def _hardest(
    names: Sequence[str],
    known: Mapping[int, Entry],
    table: Mapping[int, Sequence[tuple[Value, Value]]],
) -> str:
    means = {
        d: m
        for j, d in enumerate(names)
        if (m := over(table[i][j][0] for i in known)[0]) is not None
    }
    hard = min(means, key=lambda d: means[d])
    return (
        "Last headline accuracy on the test samples of each domain's clients, pooled; whiskers are the std over seeds. "
        f"Hardest on average: {hard}, {percent(means[hard])} %."
    )


def _grouped(
    id: str,
    heading: str,
    names: Sequence[str],
    known: Mapping[int, Entry],
    table: Mapping[int, Sequence[tuple[Value, Value]]],
    show: Callable[[float], str],
    label: str,
    factor: float,
    caption: str,
) -> Panel:
    """Bars in groups: one group for each name, in it one bar for each method."""
    wide = 0.84 / len(known)
    marks = []
    for place, (series, entry) in enumerate(known.items()):
        cells = [(j, v, s) for j, (v, s) in enumerate(table[series]) if v is not None]
        x = [j + (place - (len(known) - 1) / 2) * wide for j, _, _ in cells]
        tips = [f"{entry.name}, {names[j]}: {text(v, s, show)}" for j, v, s in cells]
        y, dy = (
            [factor * v for _, v, _ in cells],
            [None if s is None else factor * s for _, _, s in cells],
        )
        marks.append(Mark("bars", x, y, series, entry.name, dy=dy, tips=tips, size=wide))
    axis = Axis("", ticks=[(j, n) for j, n in enumerate(names)], ends=(-0.5, len(names) - 0.5))
    return Panel(
        id,
        heading,
        caption,
        Chart(heading, marks, axis, Axis(label, zero=True), width=1080, height=320),
    )


def fairness(entries: Sequence[Entry]) -> Panels:
    """Accuracy against its spread over clients: to the right is better, further down is fairer."""
    return _scatter(
        entries,
        "fairness",
        "Accuracy and fairness",
        lambda r: r.figure("accuracy_mean"),
        lambda r: r.figure("accuracy_std"),
        "mean accuracy of the clients, %",
        "std over clients, points",
        "Each method by the mean of its clients' accuracies and by their spread (std over clients, ddof 0). To the "
        "right is better, further down is fairer: the lower right corner is where to be.",
        "spread over clients",
    ) + _scatter(
        entries,
        "worst",
        "Accuracy and the worst client",
        lambda r: r.figure("accuracy_mean"),
        lambda r: r.figure("worst_client"),
        "mean accuracy of the clients, %",
        "worst client, %",
        "Each method by the mean of its clients' accuracies and by its worst client: the upper right "
        "corner is where to be.",
        "worst client",
    )


def _scatter(
    entries: Sequence[Entry],
    id: str,
    heading: str,
    right: Callable[[RunData], Value],
    up: Callable[[RunData], Value],
    x_label: str,
    y_label: str,
    caption: str,
    tab: str,
) -> Panels:
    marks = []
    several = False
    for entry in entries:
        seeds = [
            (a, b, r)
            for r in entry.shown
            if (a := right(r)) is not None and (b := up(r)) is not None
        ]
        if not seeds:
            continue
        (x, dx), (y, dy) = over(a for a, _, _ in seeds), over(b for _, b, _ in seeds)
        assert x is not None and y is not None
        if len(seeds) > 1:
            several = True
            tips = [
                f"{entry.name}, seed {r.seed}: {percent(a)} %, {percent(b)}" for a, b, r in seeds
            ]
            marks.append(
                Mark(
                    "dots",
                    [100 * a for a, _, _ in seeds],
                    [100 * b for _, b, _ in seeds],
                    entry.number,
                    tips=tips,
                    size=2.6,
                    opacity=0.5,
                )
            )
        errors = [[None if e is None else 100 * e] for e in (dx, dy)]
        tip = f"{entry.name}: {text(x, dx, percent)} %, {text(y, dy, percent)}"
        marks.append(
            Mark(
                "dots",
                [100 * x],
                [100 * y],
                entry.number,
                entry.name,
                dx=errors[0],
                dy=errors[1],
                tips=[tip],
                size=6.5,
                beside=len(entries) <= 12,
            )
        )
    if not marks:
        return []
    marks.sort(key=lambda m: m.size)
    more = (
        " Small dots are the seeds, the large one their mean with whiskers of one std."
        if several
        else ""
    )
    chart = Chart(heading, marks, Axis(x_label), Axis(y_label), width=540, height=330)
    return [Panel(id, heading, caption + more, chart, tab)]


def profile(entries: Sequence[Entry]) -> Panels:
    """The clients of each method from the worst to the best."""
    marks: list[Mark] = []
    for entry in entries:
        rows = [sorted(c for c in r.clients if c is not None) for r in entry.shown]
        size = min(map(len, rows), default=0)
        if size < 2 or len({len(r) for r in rows}) > 1:
            continue
        cells = [over(row[j] for row in rows) for j in range(size)]
        x, y = [j + 1.0 for j in range(size)], [100 * (v or 0) for v, _ in cells]
        if all(s is not None for _, s in cells):
            up, low = (
                [v + sign * 100 * (s or 0) for v, (_, s) in zip(y, cells, strict=True)]
                for sign in (1, -1)
            )
            marks.append(Mark("band", x, up, entry.number, low=low, opacity=0.14))
        tips = [f"{entry.name}: {text(v, s, percent)} %" for v, s in cells]
        marks.append(Mark("line", x, y, entry.number, entry.name, tips=tips, size=2.2))
    if not marks:
        return []
    marks.sort(key=lambda m: m.kind == "line")
    heading = "Clients from worst to best"
    axis = Axis("rank of the client: 1 is the worst off", whole=True)
    chart = Chart(heading, marks, axis, Axis("accuracy, %"), width=540, height=330, unified=True)
    banded = (
        f" With several seeds, clients are ranked within each; {SEEDS}."
        if any(m.kind == "band" for m in marks)
        else ""
    )
    caption = (
        "Last headline accuracy, the clients of each method ranked by their own. A flat line treats all alike; a high "
        f"left end leaves nobody behind.{banded}"
    )
    return [Panel("profile", heading, caption, chart)]


# -- clients ----------------------------------------------------------------------------------------------------------
def _layouts(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Runs whose client k is the same sort of client: of the same domain or, without domains, the very same."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        if run.clients:
            own = [c.get("domain") for c in run.federation.get("clients") or []]
            key = (
                json.dumps(own)
                if own and None not in own
                else json.dumps(run.federation, sort_keys=True)
            )
            groups.setdefault(key, []).append(run)
    return groups


def domain_order(
    federation: Mapping[str, Any], size: int
) -> tuple[list[int], list[str], list[str | None]]:
    """The order of the clients, domain by domain, with their labels and domains."""
    clients = federation.get("clients") or []
    owned = [clients[j].get("domain") if j < len(clients) else None for j in range(size)]
    rank = {d: k for k, d in enumerate(dict.fromkeys([*(federation.get("domains") or []), *owned]))}
    order = sorted(range(size), key=lambda j: rank[owned[j]])
    return (
        order,
        [str(j) for j in order],
        [None if owned[j] is None else str(owned[j]) for j in order],
    )


def _means(rows: Sequence[Sequence[Value]]) -> list[Value]:
    size = max(map(len, rows), default=0)
    return [over(row[j] for row in rows if j < len(row))[0] for j in range(size)]


def _seeds(runs: Sequence[RunData]) -> str:
    return ", ".join(dict.fromkeys(str(r.seed) for r in runs))


def clients(entries: Sequence[Entry]) -> tuple[Panels, Panels]:
    """Maps of every client with every method: its accuracy, and its gain over training alone."""
    shown = [r for e in entries for r in e.shown]
    accuracy, gained = [], []
    layouts = _layouts(shown)
    for place, group in enumerate(layouts.values()):
        ids = {id(r) for r in group}
        own = {e.number: [r for r in e.shown if id(r) in ids] for e in entries}
        several = len({str(r.seed) for r in group}) > 1
        note = (
            f" Mean over seeds {_seeds(group)}: in each, client k has the same domain, but other samples."
            if several
            else ""
        )
        tab = f"seed{'s' * several} {_seeds(group)}" if len(layouts) > 1 else ""
        suffix = f"-{place + 1}" if len(layouts) > 1 else ""
        rows = [(e, _means([r.clients for r in own[e.number]])) for e in entries if own[e.number]]
        lows = [(v, j, e.name) for e, row in rows for j, v in enumerate(row) if v is not None]
        if not lows:
            continue
        least = min(lows)
        accuracy.append(
            Panel(
                f"clients{suffix}",
                "Accuracy of every client",
                f"Last headline accuracy in %, a column per client, grouped by domain if there are domains.{note} "
                f"Lowest: client {least[1]} with {least[2]}, {percent(least[0])} %.",
                _map("Accuracy of every client", rows, group[0].federation, False),
                tab,
            )
        )
        lifts = [
            (e, _means(found))
            for e in entries
            if (found := [g for r in own[e.number] if (g := gains(r, shown))])
        ]
        if lifts:
            gained.append(
                Panel(
                    f"gain-map{suffix}",
                    "Gain of every client over training alone",
                    "Percentage points above (blue) or below (orange) the same client's run of local, of the same "
                    f"seed.{note}",
                    _map(
                        "Gain of every client over training alone", lifts, group[0].federation, True
                    ),
                    tab,
                )
            )
    return accuracy, gained


def _map(
    heading: str,
    rows: Sequence[tuple[Entry, list[Value]]],
    federation: Mapping[str, Any],
    gain: bool,
) -> Heat:
    order, labels, bands = domain_order(federation, max(len(row) for _, row in rows))
    cells = [[row[j] if j < len(row) else None for j in order] for _, row in rows]
    known = [v for row in cells for v in row if v is not None] or [0.0]
    most = max(abs(v) for v in known) or 0.01
    ends = (-most, most) if gain else (min(known), max(known))
    return Heat(
        heading, [e.name for e, _ in rows], labels, bands, cells, ends, signed if gain else percent
    )


def gain(entries: Sequence[Entry]) -> Panels:
    """Every client's gain over training alone, a row of dots for each method."""
    shown = [r for e in entries for r in e.shown]
    marks: list[Mark] = []
    names: list[tuple[float, str]] = []
    said: list[str] = []
    for entry in entries:
        rows = [(r, g) for r in entry.shown if (g := gains(r, shown))]
        known = [(v, j, r) for r, row in rows for j, v in enumerate(row) if v is not None]
        if not known:
            continue
        y = -float(len(names))
        names.append((y, entry.name))
        # A fixed scatter up and down, so that equal gains do not hide each other.
        offsets = [y + 0.52 * ((i * 0.618034) % 1 - 0.5) for i in range(len(known))]
        tips = [f"{entry.name}, client {j}, seed {r.seed}: {signed(v)} points" for v, j, r in known]
        marks.append(
            Mark(
                "dots",
                [100 * v for v, _, _ in known],
                offsets,
                entry.number,
                entry.name,
                tips=tips,
                size=3.2,
                opacity=0.55,
            )
        )
        middle, spread = over(over(v for v in row if v is not None)[0] for _, row in rows)
        assert middle is not None
        tip = f"{entry.name}, mean over clients: {text(middle, spread, signed)} points"
        marks.append(
            Mark(
                "dots",
                [100 * middle],
                [y],
                entry.number,
                ink="ink",
                symbol="diamond",
                tips=[tip],
                size=5,
            )
        )
        better = sum(v > 0 for v, _, _ in known)
        said.append(f"{entry.name} {better} of {len(known)} (mean {signed(middle)})")
    if not marks:
        return []
    heading = "Gain over training alone"
    axis = Axis("points above local", zero=True)
    ends = (names[-1][0] - 0.6, 0.6)
    chart = Chart(
        heading,
        marks,
        axis,
        Axis("", ticks=names, ends=ends),
        width=1080,
        height=60 + 44 * len(names),
        rule=0.0,
    )
    many = len({str(r.seed) for r in shown}) > 1
    caption = (
        f"A dot is a client{' of a seed' * many}; right of the line it is better off than alone. Diamonds are means "
        f"over clients. Better off: {'; '.join(said)}."
    )
    return [Panel("gain", heading, caption, chart)]


# -- the data and the costs -------------------------------------------------------------------------------------------
def partition(entries: Sequence[Entry]) -> Panels:
    """Who has how many training examples of which class."""
    federations: dict[str, list[RunData]] = {}
    for run in (r for e in entries for r in e.runs):
        federations.setdefault(json.dumps(run.federation, sort_keys=True), []).append(run)
    panels = []
    for place, runs in enumerate(federations.values()):
        federation = runs[0].federation
        owners = federation.get("clients") or []
        counts = [c.get("counts") or [] for c in owners]
        size = max(map(len, counts), default=0)
        if not size:
            continue
        named = [str(c) for c in federation.get("classes") or []]
        classes = [f"class {named[k] if k < len(named) else k}" for k in range(size)]
        order, labels, bands = domain_order(federation, len(owners))
        cells = [[number(dict(enumerate(counts[j])), k) for j in order] for k in range(size)]
        totals = [sum(v for row in cells if (v := row[j]) is not None) for j in range(len(order))]
        top = max((v for row in cells for v in row if v is not None), default=0.0) or 1.0
        heading = "Training examples by client and class"
        said = str(federation.get("description") or "")
        panels.append(
            Panel(
                f"partition{f'-{place + 1}' if len(federations) > 1 else ''}",
                heading,
                f"{said} {len(owners)} clients hold from {min(totals):,.0f} to {max(totals):,.0f} training examples, "
                f"{sum(totals):,.0f} in all.".strip(),
                Heat(heading, classes, labels, bands, cells, (0.0, top), _count),
                f"seed {_seeds(runs)}",
            )
        )
    return panels


def costs(entries: Sequence[Entry]) -> Panels:
    """What travels in a round."""
    ways = ("up", "down")
    table = {e.number: [e.over(lambda r, w=w: r.sent(w)) for w in ways] for e in entries}  # type: ignore[misc]
    known = {e.number: e for e in entries if any(v is not None for v, _ in table[e.number])}
    if not known or not any(v for cells in table.values() for v, _ in cells):
        return []
    names = ("up: from all clients", "down: to all clients")
    caption = (
        "Bytes as serialised, of all clients together, mean over the rounds; MB are 10⁶ bytes."
    )
    return [
        _grouped(
            "traffic",
            "Traffic per round",
            names,
            known,
            table,
            megabytes,
            "MB per round",
            1e-6,
            caption,
        )
    ]


def has_local(entries: Sequence[Entry]) -> bool:
    """Whether gains over training alone can be told."""
    shown = [r for e in entries for r in e.shown]
    return any(r.method != "local" and alone(r, shown) for r in shown)


def every(entries: Sequence[Entry]) -> Panels:
    """All figures, in the page's order."""
    return [
        *(p for group in curves(entries) for p in group),
        *domains(entries),
        *fairness(entries),
        *profile(entries),
        *gain(entries),
        *(p for group in clients(entries) for p in group),
        *partition(entries),
        *costs(entries),
    ]


NOTES = {
    "Personal": "mean test accuracy of the clients, each with its own model, in the last evaluated round; every client "
    "weighs the same. This is the headline accuracy.",
    "before / after local training": "whether a client is scored with what the server sends it, or with what it holds "
    "right after training on that; each method is judged as its paper does.",
    "by validation": "the same in the round that validation data would choose: a choice one can make in practice.",
    "best\u00a0on test": "the highest test accuracy of any round. It is picked on test data, so it flatters, and "
    "does not rank.",
    "Common": "mean test accuracy of the clients with the one model for all.",
    "Mean gain": "points above the same client's run of local (training alone), mean over clients.",
    "Better\u00a0off": "share of clients with a gain above zero.",
    "Worst tenth": "mean accuracy of the worst-off tenth of the clients.",
    "Domain std": "sample std (ddof 1) of the domains' accuracies; lower is fairer.",
    f"{SIGMA} type": "population std (ddof 0) of the domains' accuracies; lower is fairer.",
    f"{SIGMA} client": "population std (ddof 0) over clients, each with its domain's accuracy; lower is fairer.",
    "±": "std over seeds (ddof 1). Without it there is one seed only.",
    "Up, Down": "what all clients together send and receive, as serialised; MB are 10⁶ bytes.",
    "Numbers up": "how many floating-point numbers a client sends in a round: what papers count.",
    "Lost": "share of the clients asked in a round that were not heard of again (drop-outs), in the evaluated rounds.",
    "Dice": "for segmentation, mean over the classes but the background; accuracies are then shares of pixels.",
    "To target": "until the target accuracy of the comparison is reached; told where all seeds reach it.",
    "Time, Memory": "depend on the machine and its load: shown, but neither ranked nor marked.",
}

"""The comparison page: a leaderboard, curves, domains, clients, the partition, costs and the configurations."""

import base64
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.report import svg
from fedloom.report.svg import ABSENT, Value, esc

MINUS, SIGMA = "\u2212", "\u03c3"
EMPTY = "no evaluated round yet"

# The colours are Okabe and Ito's, which colour-blind readers can tell apart, adjusted for contrast on each background.
STYLE = """
:root{--bg:#fff;--ink:#1c2024;--soft:#5b636b;--rule:#d9dde1;--panel:#f5f7f9;--best:#dcebf7;--hi:#fff;
--seq:#0b5394;--pos:#0b5394;--neg:#b84a00;
--p0:#0072b2;--p1:#d55e00;--p2:#009e73;--p3:#c2609a;--p4:#d99000;--p5:#45a8e0;--p6:#6b6b6b;--p7:#882255}
@media screen and (prefers-color-scheme:dark){:root{--bg:#14171a;--ink:#e8eaec;--soft:#a3abb3;--rule:#353b41;
--panel:#1d2125;--best:#1d3d5a;--seq:#1f6fc0;--pos:#1f6fc0;--neg:#b8520a;
--p0:#3d8fd1;--p1:#f0743e;--p2:#1fbf92;--p3:#dd8fbd;--p4:#f0b030;--p5:#8fd3ff;--p6:#b0b0b0;--p7:#f0e442}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:auto;padding:16px}
h1{font-size:1.6em;line-height:1.2;margin:.3em 0;overflow-wrap:anywhere}
h2{font-size:1.2em;margin:1.8em 0 .5em;border-bottom:1px solid var(--rule)}
h3,h4{font-size:1em;margin:0 0 .4em}
h4{font-size:.9em;overflow-wrap:anywhere}
.facts,.note,figcaption{color:var(--soft);margin:.5em 0}.facts b,.note b{color:var(--ink)}
.note,figcaption{font-size:.87em;max-width:80em;overflow-wrap:anywhere}
.empty{background:var(--panel);padding:.8em 1em;border-left:4px solid var(--p4)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.88em;width:100%}
th,td{padding:.35em .5em;text-align:right;border-bottom:1px solid var(--rule);font-variant-numeric:tabular-nums}
thead th{vertical-align:bottom;padding:0}
tr>:first-child{text-align:left;position:sticky;left:0;background:var(--bg);min-width:8.5em;max-width:16em;
overflow-wrap:anywhere}
th small{display:block;font-weight:400;color:var(--soft);font-size:.82em;line-height:1.25}
th button{all:unset;cursor:pointer;padding:.35em .5em;line-height:1.25;font-weight:600}
th button:focus-visible{outline:2px solid var(--p0)}
[aria-sort=ascending] button::after{content:"\\25b2"}[aria-sort=descending] button::after{content:"\\25bc"}
.minor{font-size:.87em;color:var(--soft)}.minor button{font-weight:400}
.best{background:var(--best);font-weight:700;color:var(--ink)}b.best{padding:0 .3em}
figure{margin:0 0 1.4em;min-width:0}
.picture img{max-width:100%;background:#fff;border-radius:6px}
.two,.three{display:grid;gap:6px 28px;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr))}
.three{gap:14px 24px;grid-template-columns:repeat(auto-fill,minmax(min(100%,240px),1fr))}.three svg{max-width:350px}
.legend{display:flex;flex-wrap:wrap;gap:.2em 1.1em;margin:.6em 0 1em;font-size:.9em}
.legend label{cursor:pointer;overflow-wrap:anywhere}.legend input{vertical-align:-2px;margin:0 .4em 0 0}
.key{display:inline-block;width:.75em;height:.75em;border-radius:2px;background:var(--c);margin-right:.45em}
svg{display:block}.chart{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
svg .num{fill:var(--ink);font-variant-numeric:tabular-nums}svg .hi{fill:var(--hi)}svg .tight{font-size:9.5px}
.end{text-anchor:end}.mid{text-anchor:middle}
.grid{stroke:var(--rule)}.tick{stroke:var(--soft)}
.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round;stroke-dasharray:var(--d)}
.dot{fill:var(--c);stroke:var(--bg);stroke-width:.8}.bar{fill:var(--c)}
.band{fill:var(--panel);stroke:var(--rule)}.cell{stroke:var(--rule);stroke-width:.6}
.seq{fill:var(--seq)}.pos{fill:var(--pos)}.neg{fill:var(--neg)}.none{fill:var(--panel)}
.off{display:none}
details{border:1px solid var(--rule);border-radius:4px;margin:.4em 0;padding:.4em .8em}
summary{cursor:pointer;overflow-wrap:anywhere}
pre{overflow-x:auto;background:var(--panel);padding:.8em;font-size:.85em;user-select:all}
@media print{*{print-color-adjust:exact;-webkit-print-color-adjust:exact}main{max-width:none;padding:0}
figure,tr,.three>div{break-inside:avoid}h2,h3,h4,.legend{break-after:avoid}.scroll{overflow:visible}table{font-size:7pt}
th,td,th button{padding:.2em}tr>:first-child{position:static;min-width:8em}.map{max-width:100%;height:auto}
.two{grid-template-columns:1fr 1fr}.three{grid-template-columns:1fr 1fr 1fr}.legend input{display:none}}
"""

SCRIPT = """
document.querySelectorAll('#board thead button').forEach((button, column) => button.onclick = () => {
  const head = button.parentNode, body = document.querySelector('#board tbody'), old = head.getAttribute('aria-sort');
  const down = old ? old === 'ascending' : button.dataset.down === '1';
  document.querySelectorAll('#board thead th').forEach(th => th.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const value = row => row.cells[column].dataset.v;
  [...body.rows].sort((a, b) => {
    const x = value(a), y = value(b);
    if (x === '' || y === '') return (x === '') - (y === '');
    return (column ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
  }).forEach(row => body.append(row));
});
document.onchange = event => {
  const run = event.target.dataset.s;
  for (const g of run ? document.querySelectorAll('g[data-s="' + run + '"]') : [])
    g.classList.toggle('off', !event.target.checked);
};
"""


@dataclass(frozen=True)
class RunData:
    """What the page needs to know of one run."""

    name: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    federation: dict[str, Any]
    picture: bytes | None = None  # a PNG of the samples and of who has what


def _number(data: Any, *path: str | int) -> Value:
    """Follow the keys; anything absent, null, not a number or not finite is None."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    if isinstance(data, bool) or not isinstance(data, int | float) or not math.isfinite(data):
        return None
    return float(data)


def _evaluated(run: RunData) -> list[dict[str, Any]]:
    return [m for m in run.metrics if _number(m, "personal", "accuracy_mean") is not None]


def _last(run: RunData) -> dict[str, Any]:
    """Return the last evaluated line, or an empty one."""
    return (_evaluated(run) or [{}])[-1]


def _stage(run: RunData) -> str:
    """Return which model is the headline one; a run still without a summary is judged by which of the two it equals."""
    line = _last(run)
    guess = "after" if line.get("personal") == line.get("after") != line.get("before") else "before"
    return str(run.summary.get("stage") or guess)


def _is_local(run: RunData) -> bool:
    return "local" in (run.summary.get("method"), run.name.split(",")[0].strip().lower())


def _first(*values: Value) -> Value:
    return next((v for v in values if v is not None), None)


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _signed(value: float, digits: int = 2) -> str:
    text = f"{100 * value:+.{digits}f}"
    return text.replace("-", MINUS)


def _amount(value: float) -> str:
    """Show a cost with about three digits, whatever its size."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _count(value: float) -> str:
    return f"{value / 1000:.0f}k" if value >= 1e4 else f"{value:.0f}"


@dataclass(frozen=True)
class _Column:
    label: str
    note: str
    get: Callable[[RunData], Value]
    show: Callable[[float], str] = _percent
    higher: bool = True
    minor: bool = False


def _personal(key: str) -> Callable[[RunData], Value]:
    return lambda r: _first(_number(r.summary, key, "last"), _number(_last(r), "personal", key))


def _megabytes(way: str) -> Callable[[RunData], Value]:
    def get(run: RunData) -> Value:
        sent = _first(_number(run.summary, "bytes", way, "per_round"), _number(_last(run), "bytes", way))
        return None if sent is None else sent / 1e6

    return get


def _accuracy(pick: str) -> Callable[[RunData], Value]:
    return lambda r: _number(r.summary, "personal", "accuracy_mean", pick)


def _final(run: RunData) -> Value:
    return _first(_accuracy("last")(run), _number(_last(run), "personal", "accuracy_mean"))


def _common(run: RunData) -> Value:
    return _first(_number(run.summary, "common", "accuracy", "last"), _number(_last(run), "common", "accuracy_mean"))


COLUMNS = (
    _Column("Personal", "%, last", _final),
    _Column("by validation", "%", _accuracy("best_by_validation"), minor=True),
    _Column("best", "%", _accuracy("best"), minor=True),
    _Column("Common", "%, last", _common),
    _Column("Domain average", "%", _personal("domain_avg")),
    _Column("Domain std", "ddof 1", _personal("domain_std"), higher=False),
    _Column(f"{SIGMA} type", "ddof 0", _personal("sigma_type"), higher=False),
    _Column(f"{SIGMA} client", "ddof 0", _personal("sigma_client"), higher=False),
    _Column("Worst client", "%", _personal("worst_client")),
    _Column("Better than alone", "% of clients", lambda r: _number(r.summary, "better_than_local", "share")),
    _Column("Mean gain", "points", lambda r: _number(r.summary, "better_than_local", "mean_gain"), _signed),
    _Column("Up", "MB/round", _megabytes("up"), _amount, False),
    _Column("Down", "MB/round", _megabytes("down"), _amount, False),
    _Column("Time", "s", lambda r: _number(r.summary, "seconds"), _amount, False),
    _Column("Peak memory", "MB", lambda r: _number(r.summary, "peak_rss_mb"), _amount, False),
)


def _figure(heading: str, chart: str, caption: str) -> str:
    return f"<figure><h3>{esc(heading)}</h3>{chart}<figcaption>{esc(caption)}</figcaption></figure>"


def _header(runs: Sequence[RunData], title: str) -> str:
    facts = []
    for key in ("data", "partition", "clients", "rounds", "seed"):
        seen = dict.fromkeys(str(r.summary[key]) for r in runs if r.summary.get(key) is not None)
        if seen:
            facts.append(f"{key} <b>{esc(', '.join(seen))}</b>")
    return f"<h1>{esc(title)}</h1><p class=facts>{' &middot; '.join(facts)}</p>"


def _leaderboard(runs: Sequence[RunData], domains: int) -> str:
    values = {c: [c.get(r) for r in runs] for c in COLUMNS}
    # Columns that no run fills say nothing, and over fewer than two domains there is nothing to average.
    shown = [
        c
        for c in COLUMNS[:1] + tuple(c for c in COLUMNS[1:] if any(v is not None for v in values[c]))
        if domains > 1 or not c.label.startswith("Domain")
    ]
    best: dict[_Column, str | None] = {}
    for column in shown:
        known = [v for v in values[column] if v is not None]
        texts = {column.show(v) for v in known}
        # Runs that look equal at the printed precision share the mark; where all do, nobody is best.
        best[column] = column.show((max if column.higher else min)(known)) if len(texts) > 1 else None
    head = "<th scope=col><button data-down=0>Method</button></th>" + "".join(
        f"<th scope=col{' class=minor' if c.minor else ''}><button data-down={int(c.higher)}>{esc(c.label)}"
        f"<small>{esc(c.note)}</small></button></th>"
        for c in shown
    )
    order = sorted(range(len(runs)), key=lambda i: -(-1.0 if (v := values[COLUMNS[0]][i]) is None else v))
    body = []
    for i in order:
        run, notes = runs[i], []
        method = run.summary.get("method")
        if method and str(method) not in run.name:
            notes.append(str(method))
        notes.append(f"model {_stage(run)} local training" if _evaluated(run) else EMPTY)
        if run.summary.get("finished") is False:
            notes.append("unfinished")
        row = [
            f'<th scope=row data-v="{esc(run.name)}"><i class=key {svg.tint(i)}></i>'
            f"{esc(run.name)}<small>{esc(', '.join(notes))}</small></th>"
        ]
        for c in shown:
            value = values[c][i]
            text = ABSENT if value is None else c.show(value)
            kinds = " ".join(["minor"] * c.minor + ["best"] * (value is not None and text == best[c]))
            row.append(f'<td class="{kinds}" data-v="{"" if value is None else value}">{esc(text)}</td>')
        body.append(f"<tr>{''.join(row)}</tr>")
    return (
        "<h2>Leaderboard</h2><div class=scroll><table id=board><thead><tr>"
        + head
        + "</tr></thead><tbody>"
        + "".join(body)
        + "</tbody></table></div><p class=note>Accuracies are test accuracies in percent, spreads "
        "and gains in percentage points; <b class=best>marked</b> is the best of a column, and a click on a heading "
        "sorts. <b>Last</b>, also meant where a heading names no choice, is the value at the last evaluated round. "
        "<b>By validation</b> is the value at the round with the best validation accuracy, a choice one could make in "
        "practice. <b>Best</b> is the highest test accuracy of any round: it is picked on test data and therefore "
        f"optimistic. Domain std is the sample one (ddof 1), the two {SIGMA} are population ones (ddof 0); lower is "
        "fairer. MB are 10<sup>6</sup> bytes, of all clients together.</p>"
    )


def _points(run: RunData, kind: str, against_bytes: bool) -> list[tuple[float, float]]:
    points, sent, before = [], 0.0, 0.0
    for line in run.metrics:
        turn, up, down = _number(line, "round"), _number(line, "bytes", "up"), _number(line, "bytes", "down")
        value = _number(line, kind, "accuracy_mean")
        if turn is None:
            continue
        # A line tells the bytes of its own round only; rounds without a line are taken to have cost the same.
        sent, before = sent + ((up or 0) + (down or 0)) * max(turn - before, 1) / 1e6, turn
        if value is not None and not (against_bytes and up is None and down is None):
            points.append((sent if against_bytes else turn, 100 * value))
    return points


def _curves(runs: Sequence[RunData]) -> str:
    legend = "".join(
        f"<label><input type=checkbox checked data-s={i}><i class=key {svg.tint(i)}></i>{esc(r.name)}</label>"
        for i, r in enumerate(runs)
    )
    figures = []
    for against_bytes in (False, True):
        for kind in ("personal", "common"):
            series = [(i, r.name, p) for i, r in enumerate(runs) if (p := _points(r, kind, against_bytes))]
            if not series:
                continue
            lead = max(series, key=lambda s: s[2][-1][1])
            caption = f"Mean test accuracy of the clients with their {kind} model "
            caption += (
                "by the MB sent up and down so far; a run that sends nothing stands at 0 MB."
                if against_bytes
                else "by round; the vertical axis need not start at zero."
            )
            if len(series) > 1:
                caption += f" Highest at its last point: {lead[1]}, {lead[2][-1][1]:.2f} %."
            chart = svg.lines(series, "MB up + down" if against_bytes else "round", "accuracy, %", not against_bytes)
            heading = f"{kind.capitalize()} accuracy by {'traffic' if against_bytes else 'round'}"
            figures.append(_figure(heading, chart, caption))
    if not figures:
        return f"<h2>Curves</h2><p class=note>There are no curves: {EMPTY}.</p>"
    return f"<h2>Curves</h2><div class=legend>{legend}</div><div class=two>{''.join(figures)}</div>"


def _domain_names(runs: Sequence[RunData]) -> list[str]:
    named = [str(d) for r in runs for d in r.federation.get("domains") or []]
    return list(dict.fromkeys(named + [str(d) for r in runs for d in r.summary.get("domains") or {}]))


def _domains(runs: Sequence[RunData], names: Sequence[str]) -> str:
    def value(run: RunData, domain: str) -> Value:
        now = _number(_last(run), "personal", "domains", domain)
        return _first(_number(run.summary, "domains", domain, "last"), now)

    table = {d: [value(r, d) for r in runs] for d in names}
    if len(names) < 2 or all(v is None for row in table.values() for v in row):
        return ""
    panels = "".join(
        f"<div><h4>{esc(d)}</h4>{svg.bars(d, [(i, r.name, row[i]) for i, r in enumerate(runs)], _percent, 1.0)}</div>"
        for d, row in table.items()
    )
    means = {d: sum(known) / len(known) for d, row in table.items() if (known := [v for v in row if v is not None])}
    hard = min(means, key=lambda d: means[d])
    return "<h2>Domains</h2>" + _figure(
        "Accuracy by domain",
        f"<div class=three>{panels}</div>",
        (
            "Last personal accuracy in percent on the clients of each domain, bars from 0 to 100. "
            f"Hardest on average over the runs: {hard}, {_percent(means[hard])} %."
        ),
    )


def _groups(runs: Sequence[RunData]) -> list[list[RunData]]:
    """Put runs over the same federation together: client 3 of another partition is another client."""
    groups: list[list[RunData]] = []
    for run in runs:
        home = next((g for g in groups if g[0].federation == run.federation), None)
        if home is None:
            groups.append([run])
        else:
            home.append(run)
    return groups


def _final_clients(run: RunData) -> list[Value]:
    """Return each client's accuracy with the headline model in the last evaluated round."""
    accuracies = (_last(run).get("clients") or {}).get(_stage(run)) or []
    return [_number({"a": a}, "a") for a in accuracies]


def _layout(group: Sequence[RunData], size: int) -> tuple[list[int], list[str], list[str | None]]:
    """Return the order of the clients, domain by domain, with their labels and domains."""
    clients = group[0].federation.get("clients") or []
    domains = [clients[j].get("domain") if j < len(clients) else None for j in range(size)]
    rank = {d: k for k, d in enumerate(dict.fromkeys([*(group[0].federation.get("domains") or []), *domains]))}
    order = sorted(range(size), key=lambda j: rank[domains[j]])
    return order, [str(j) for j in order], [None if domains[j] is None else str(domains[j]) for j in order]


def _gains(group: Sequence[RunData]) -> list[tuple[RunData, list[Value]]]:
    """Return each run's gain over the local run of the same seed, or else over the first local run, per client."""
    alone = [r for r in group if _is_local(r) and _final_clients(r)]
    result: list[tuple[RunData, list[Value]]] = []
    for run in group if alone else ():
        if _is_local(run) or not _final_clients(run):
            continue
        base = next((a for a in alone if a.summary.get("seed") == run.summary.get("seed")), alone[0])
        pairs = zip(_final_clients(run), _final_clients(base), strict=False)
        result.append((run, [None if a is None or b is None else a - b for a, b in pairs]))
    return result


def _client_map(rows: Sequence[tuple[RunData, list[Value]]], group: Sequence[RunData], gain: bool) -> str:
    order, labels, bands = _layout(group, max(len(row) for _, row in rows))
    cells = [[row[j] if j < len(row) else None for j in order] for _, row in rows]
    known = [v for row in cells for v in row if v is not None] or [0.0]
    most = max(abs(v) for v in known) or 0.01
    ends = (-most, most) if gain else (min(known), max(known))
    show: Callable[[float], str] = (lambda v: _signed(v, 1)) if gain else (lambda v: f"{100 * v:.1f}")
    return svg.heat([r.name for r, _ in rows], labels, bands, cells, ends, show)


def _clients(runs: Sequence[RunData]) -> str:
    figures, groups = [], _groups(runs)
    for place, group in enumerate(groups, 1):
        of = f", partition {place} of {len(groups)}" if len(groups) > 1 else ""
        rows = [(r, c) for r in group if (c := _final_clients(r))]
        if rows:
            lows = [(v, j, r.name) for r, c in rows for j, v in enumerate(c) if v is not None]
            low = f" Lowest: client {min(lows)[1]} with {min(lows)[2]}, {_percent(min(lows)[0])} %." if lows else ""
            figures.append(
                _figure(
                    f"Accuracy of every client{of}",
                    _client_map(rows, group, False),
                    (
                        "Last headline accuracy in %, a column per client, grouped by domain if there are domains; "
                        "the stronger the colour, the higher." + low
                    ),
                )
            )
        if gains := _gains(group):
            parts = []
            for run, row in gains:
                known = [v for v in row if v is not None]
                if known:
                    better, mean = sum(v > 0 for v in known), sum(known) / len(known)
                    parts.append(f"{run.name}: {better} of {len(known)} (mean {_signed(mean)})")
            figures.append(
                _figure(
                    f"Gain over training alone{of}",
                    _client_map(gains, group, True),
                    (
                        "Percentage points above (blue) or below (orange) the same client's local run. "
                        f"Clients better off: {'; '.join(parts)}."
                    ),
                )
            )
    few = all(len(_final_clients(r)) <= 8 for r in runs)  # then two maps fit side by side
    return f"<h2>Clients</h2><div{' class=two' if few else ''}>{''.join(figures)}</div>" if figures else ""


def _partition(runs: Sequence[RunData]) -> str:
    figures, groups = [], _groups(runs)
    for place, group in enumerate(groups, 1):
        clients = group[0].federation.get("clients") or []
        counts = [c.get("counts") or [] for c in clients]
        size = max((len(c) for c in counts), default=0)
        if not size:
            continue
        named = [str(c) for c in group[0].federation.get("classes") or []]
        classes = [f"class {named[k]}" if k < len(named) else f"class {k}" for k in range(size)]
        order, labels, bands = _layout(group, len(clients))
        cells = [[_number(dict(enumerate(counts[j])), k) for j in order] for k in range(size)]
        totals = [sum(v for row in cells if (v := row[j]) is not None) for j in range(len(order))]
        top = max((v for row in cells for v in row if v is not None), default=0.0) or 1.0
        chart = svg.heat(classes, labels, bands, cells, (0.0, top), _count)
        of = f", partition {place} of {len(groups)}" if len(groups) > 1 else ""
        figures.append(
            _figure(
                f"Training examples by client and class{of}",
                chart,
                (
                    f"A column is a client, a row a class. {len(clients)} clients hold from {min(totals):,.0f} to "
                    f"{max(totals):,.0f} training examples, {sum(totals):,.0f} in all."
                    + (f" Runs over this partition: {'; '.join(r.name for r in group)}." if of else "")
                ),
            )
        )
    return "<h2>Partition</h2>" + "".join(figures) if figures else ""


def _pictures(runs: Sequence[RunData]) -> str:
    """Samples and label histograms, once for each different picture."""
    different = list(dict.fromkeys(r.picture for r in runs if r.picture))
    images = [f'<img alt="samples and label histograms" src="data:image/png;base64,{_base64(p)}">' for p in different]
    return "<h2>Data</h2>" + "".join(f"<figure class=picture>{i}</figure>" for i in images) if images else ""


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _costs(runs: Sequence[RunData]) -> str:
    panels = []
    for column in COLUMNS[-4:-1]:
        rows = [(i, r.name, column.get(r)) for i, r in enumerate(runs)]
        if any(v is not None for _, _, v in rows):
            name = f"{column.label}, {column.note}"
            panels.append(f"<div><h4>{esc(name)}</h4>{svg.bars(name, rows, column.show, None)}</div>")
    return (
        "<h2>Costs</h2>"
        + _figure(
            "Traffic and time",
            f"<div class=three>{''.join(panels)}</div>",
            (
                "What all clients send (up) and receive (down) in a round, and the seconds the whole run took; "
                "shorter is cheaper."
            ),
        )
        if panels
        else ""
    )


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False)


def _key(key: object) -> str:
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else json.dumps(str(key), ensure_ascii=False)


def _config_text(config: dict[str, Any], path: str = "") -> str:
    """Write a nested dictionary as TOML; nulls, which TOML does not have, become comments."""
    out = [f"[{path}]"] if path else []
    plain = {k: v for k, v in config.items() if not isinstance(v, dict)}
    out += [f"# {_key(k)} is unset" if v is None else f"{_key(k)} = {_toml(v)}" for k, v in plain.items()]
    root = f"{path}." if path else ""
    tables = [_config_text(v, root + _key(k)) for k, v in config.items() if isinstance(v, dict)]
    return "\n\n".join(["\n".join(out), *tables]).strip()


def _configs(runs: Sequence[RunData]) -> str:
    out = []
    for run in runs:
        given = run.config.get("toml")
        text = given if isinstance(given, str) else _config_text(run.config)
        out.append(f"<details><summary>{esc(run.name)}</summary><pre>{esc(text)}</pre></details>")
    return "<h2>Configurations</h2><p class=note>A click into a text selects all of it.</p>" + "".join(out)


def render(runs: Sequence[RunData], title: str) -> str:
    """Return a self-contained HTML page that compares the runs."""
    domains = _domain_names(runs)
    body = [_header(runs, title)]
    if not any(_evaluated(r) for r in runs):
        body.append(f"<p class=empty>{EMPTY.capitalize()}.</p>")
    body += [
        _leaderboard(runs, len(domains)),
        _curves(runs),
        _domains(runs, domains),
        _clients(runs),
        _partition(runs),
        _pictures(runs),
        _costs(runs),
        _configs(runs),
    ]
    # The policy makes the browser itself refuse any request, so that the page stays self-contained whatever is in it.
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        f"<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8><title>{esc(title)}</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        '<meta name=color-scheme content="light dark">'
        f'<meta http-equiv=Content-Security-Policy content="{policy}"><style>{STYLE}</style></head>\n<body><main>'
        + "\n".join(p for p in body if p)
        + f"</main><script>{SCRIPT}</script></body></html>\n"
    )

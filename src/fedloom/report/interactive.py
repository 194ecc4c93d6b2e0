"""Charts and heat maps as Plotly wants them: plain JSON for its library, which the page carries.

A colour is written `@name` or `@name/opacity`; the page's script puts in the value that holds in
light or dark.
"""

from __future__ import annotations

import html
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .figures import Axis, Chart, Figure, Heat, Mark
from .palette import dashes, shorten

Json = dict[str, Any]


def plotly_library() -> str | None:
    """Plotly's script, if the extra `plots` is installed.

    The package itself is not imported: that would take a second.
    """
    spec = importlib.util.find_spec("plotly")
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        bundle = Path(folder) / "package_data" / "plotly.min.js"
        if bundle.is_file():
            return bundle.read_text(encoding="utf-8")
    return None


def plotly(figure: Figure) -> Json:
    """Data and layout of a figure."""
    if isinstance(figure, Heat):
        return _heat(figure)
    return {"data": _traces(figure), "layout": _layout(figure)}


# -- charts --------------------------------------------------------------------------------------
def _traces(chart: Chart) -> list[Json]:
    traces = []
    listed: set[str] = set()
    for mark in chart.marks:
        trace = _trace(mark)
        if chart.legend and mark.name and (not mark.x or mark.name not in listed):
            listed.add(mark.name)
            trace |= {"showlegend": True, "legendgroup": trace["name"]}
            if not mark.x:  # it stands for a name only, and Plotly lists no empty trace
                trace |= {"x": [None], "y": [None]}
        traces.append(trace)
    return traces


def _trace(mark: Mark) -> Json:
    """One mark."""
    tips = [_plain(tip) for tip in mark.tips]
    trace: Json = {
        "x": [_digits(x) for x in mark.x],
        "y": [_digits(y) for y in mark.y],
        "name": _plain(mark.name),
        "meta": mark.series,
        "text": tips[0] if len(tips) == 1 else tips,
        "hoverinfo": "text" if tips else "skip",
        "showlegend": False,
    }
    if mark.kind == "band":
        trace |= _band(mark)
    elif mark.kind == "bars":
        look = {"color": f"@{mark.colour}"}
        trace |= {"type": "bar", "width": 0.88 * mark.size, "marker": look, "textposition": "none"}
    else:
        trace |= _points(mark)
    if mark.beside:
        trace |= _beside(mark)
    for way, errors in (("error_x", mark.dx), ("error_y", mark.dy)):
        if any(errors):
            trace[way] = _errors(mark, errors)
    return trace


def _band(mark: Mark) -> Json:
    """A closed line along the upper end and back along the lower one."""
    return {
        "x": [*mark.x, *reversed(mark.x)],
        "y": [_digits(y) for y in (*mark.y, *reversed(mark.low))],
        "type": "scatter",
        "mode": "lines",
        "fill": "toself",
        "line": {"width": 0},
        "fillcolor": f"@{mark.colour}/{mark.opacity}",
        "hoverinfo": "skip",
    }


def _points(mark: Mark) -> Json:
    """Dots, or a line with dots on it."""
    edge = "card" if mark.edge == "bg" else mark.edge
    look = {
        "color": f"@{mark.colour}",
        "size": 2 * mark.size,
        "opacity": mark.opacity,
        "symbol": mark.symbol,
        "line": {"color": f"@{edge}", "width": 0.8},
    }
    if mark.kind == "dots":
        return {"type": "scatter", "mode": "markers", "marker": look}
    lengths = [] if mark.ink else dashes(mark.series or 0).split()
    line = {
        "color": f"@{mark.colour}",
        "width": 2.2,
        "dash": ",".join(f"{length}px" for length in lengths),
    }
    mode = "lines+markers" if mark.size else "lines"
    return {"type": "scatter", "mode": mode, "marker": look, "line": line}


def _beside(mark: Mark) -> Json:
    """The name of a dot beside it."""
    names = [_plain(mark.name)] * len(mark.x)
    return {
        "mode": "markers+text",
        "text": names,
        "hoverinfo": "text",
        "hovertext": [_plain(tip) for tip in mark.tips] or names,
        "textposition": "top right",
        "textfont": {"color": "@ink", "size": 12},
        "cliponaxis": False,
    }


def _errors(mark: Mark, errors: Sequence[float | None]) -> Json:
    colour = "@ink/0.75" if mark.kind == "bars" else f"@{mark.colour}/0.5"
    lengths = [_digits(e or 0.0) for e in errors]
    return {"type": "data", "array": lengths, "color": colour, "thickness": 1.2, "width": 0}


def _layout(chart: Chart) -> Json:
    across = _axis(chart.x, chart.square)
    if chart.x.ticks:
        across["showgrid"] = False
    layout: Json = {
        "xaxis": across,
        "yaxis": _axis(chart.y, chart.square),
        "hovermode": "x unified" if chart.unified else "closest",
        "barmode": "overlay",
        "height": chart.height + 20,
    }
    if chart.legend:
        below = -0.06 if chart.square else -0.2
        layout |= {"showlegend": True, "legend": {"orientation": "h", "y": below}}
        layout["height"] = chart.height + 60
    if chart.rule is not None:
        line = {"color": "@soft", "width": 1.2}
        ends = {"x0": chart.rule, "x1": chart.rule, "y0": 0, "y1": 1}
        layout["shapes"] = [
            {"type": "line", "yref": "paper", "layer": "below", "line": line, **ends}
        ]
    return layout


def _axis(axis: Axis, bare: bool) -> Json:
    look: Json = {
        "title": {"text": _plain(axis.label), "standoff": 8},
        "zeroline": False,
        "automargin": True,
    }
    if axis.ticks:
        look["tickvals"] = [at for at, _ in axis.ticks]
        look["ticktext"] = [_plain(shorten(name, 130)) for _, name in axis.ticks]
        look["tickfont"] = {"size": 12.5, "color": "@ink"}
    if axis.ends:
        look["range"] = list(axis.ends)
    elif axis.zero:
        look["rangemode"] = "tozero"
    if bare:
        look |= {"showticklabels": False, "showgrid": False}
    return look


# -- heat maps -----------------------------------------------------------------------------------
def _heat(heat: Heat) -> Json:
    low, high = heat.ends
    # Without transparency: Plotly chooses black or white numbers by the colour of the cell alone.
    ramp: list[list[Any]] = [[0, "@card"], [1, "@seq"]]
    if low < 0:
        high = max(high, -low)
        low = -high
        ramp = [[0, "@neg"], [0.5, "@card"], [1, "@pos"]]
    values, labels, tips = [], [], []
    for i, row in enumerate(heat.cells):
        values.append([None if v is None else _digits(v) for v in row])
        labels.append([heat.label(i, j) for j in range(len(row))])
        tips.append([_plain(heat.tip(i, j)) for j in range(len(row))])
    trace = {
        "type": "heatmap",
        "z": values,
        "zmin": low,
        "zmax": high,
        "colorscale": ramp,
        "showscale": False,
        "text": labels if heat.numbered else None,
        "texttemplate": "%{text}" if heat.numbered else None,
        "textfont": {"size": 11 if len(heat.columns) <= 12 else 10},
        "hovertext": tips,
        "hoverinfo": "text",
        "xgap": 1,
        "ygap": 1,
    }
    cell, _, left, _ = heat.sizes()
    return {
        "data": [trace],
        "layout": _heat_layout(heat),
        "least": left + cell * len(heat.columns) + 4,
    }


def _heat_layout(heat: Heat) -> Json:
    cell, tall, left, head = heat.sizes()
    labelled = list(range(0, len(heat.columns), heat.stride(cell)))
    shared = {"showgrid": False, "zeroline": False, "ticks": "", "fixedrange": False}
    across = {
        "side": "top",
        "tickvals": labelled,
        "ticktext": [_plain(heat.columns[j]) for j in labelled],
    }
    down = {
        "tickvals": list(range(len(heat.rows))),
        "ticktext": [_plain(shorten(row, left - 7)) for row in heat.rows],
        "range": [len(heat.rows) - 0.5, -0.5],
        "tickfont": {"color": "@ink"},
    }
    return {
        "xaxis": shared | across,
        "yaxis": shared | down,
        "margin": {"l": left, "r": 4, "t": head + 2, "b": 6},
        "height": head + tall * len(heat.rows) + 8,
        "annotations": [_band_name(span, cell) for span in heat.spans()],
        "shapes": [_band_edge(start) for start, *_ in heat.spans()[1:]],
    }


def _band_name(span: tuple[int, int, str], cell: float) -> Json:
    start, count, name = span
    return {
        "x": start + (count - 1) / 2,
        "y": 1,
        "yref": "paper",
        "yshift": 22,
        "yanchor": "bottom",
        "text": _plain(shorten(name, count * cell - 6)),
        "showarrow": False,
        "font": {"color": "@ink"},
    }


def _band_edge(start: int) -> Json:
    ends = {"x0": start - 0.5, "x1": start - 0.5, "y0": 0, "y1": 1}
    return {"type": "line", "yref": "paper", "line": {"color": "@card", "width": 4}, **ends}


def _digits(value: float) -> float:
    """A number with as many digits as one can see."""
    return float(f"{value:.5g}")


def _plain(text: str) -> str:
    """Text that Plotly shows as it is: it would take `<b>` for a tag."""
    return html.escape(text, quote=False)

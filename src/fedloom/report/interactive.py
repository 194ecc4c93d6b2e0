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

from .figures import LONGEST, Axis, Chart, Figure, Heat, Mark
from .palette import dashes, fold, hatch

Json = dict[str, Any]
LARGER = 1.15  # text of Plotly is that much larger than Matplotlib's


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
    drawn: Json = {"data": _traces(figure), "layout": _layout(figure)}
    if figure.wide:
        drawn["least"] = 640  # on a phone it scrolls: its labels would not fit
    return drawn


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
    trace: Json = {
        "x": list(map(_digits, mark.x)),
        "y": list(map(_digits, mark.y)),
        "name": _plain(mark.name),
        "meta": mark.series,
        "text": list(map(_plain, mark.tips)),
        "hoverinfo": "text",
        "showlegend": False,
    }
    if not mark.tips:
        trace["hoverinfo"] = "skip"
    elif len(mark.tips) == 1:  # one for all points
        trace["text"] = _plain(mark.tips[0])
    if mark.kind == "band":
        trace |= _band(mark)
    elif mark.kind == "bars":
        look: Json = {"color": f"@{mark.colour}"}
        if hatch(mark.series or 0):
            shape = hatch(mark.series or 0)
            # Plotly's own choice, `replace`, would show the hatching only, on nothing.
            look["pattern"] = {"shape": shape, "fgcolor": "@card", "fillmode": "overlay"}
        trace |= {"type": "bar", "width": 0.88 * mark.size, "marker": look, "textposition": "none"}
    else:
        trace |= _points(mark)
    if any(mark.dx):
        trace["error_x"] = _errors(mark, mark.reach(mark.x, mark.dx))
    if any(mark.dy):
        trace["error_y"] = _errors(mark, mark.reach(mark.y, mark.dy))
    return trace


def _band(mark: Mark) -> Json:
    """A closed line along the upper end and back along the lower one."""
    return {
        "x": [*mark.x, *reversed(mark.x)],
        "y": list(map(_digits, [*mark.y, *reversed(mark.low)])),
        "type": "scatter",
        "mode": "lines",
        "fill": "toself",
        "line": {"width": 0},
        "fillcolor": f"@{mark.colour}/{mark.opacity}",
        "hoverinfo": "skip",
    }


def _points(mark: Mark) -> Json:
    """Dots, or a line with dots on it."""
    edge = mark.edge
    if edge == "bg":
        edge = "card"
    look = {
        "color": f"@{mark.colour}",
        "size": 2 * mark.size,
        "opacity": mark.opacity,
        "symbol": mark.sign,
        "line": {"color": f"@{edge}", "width": 0.8},
    }
    if mark.kind == "dots":
        return {"type": "scatter", "mode": "markers", "marker": look}
    line = {"color": f"@{mark.colour}", "width": 2.2, "dash": ""}
    if not mark.ink:
        lengths = dashes(mark.series or 0).split()
        line["dash"] = ",".join(f"{length}px" for length in lengths)
    mode = "lines"
    if mark.size:
        mode = "lines+markers"
    return {"type": "scatter", "mode": mode, "marker": look, "line": line}


def _errors(mark: Mark, reach: Sequence[Sequence[float]]) -> Json:
    colour = f"@{mark.colour}/0.5"
    if mark.kind == "bars":
        colour = "@ink/0.75"
    down, up = reach
    return {
        "type": "data",
        "symmetric": False,
        "array": list(map(_digits, up)),
        "arrayminus": list(map(_digits, down)),
        "color": colour,
        "thickness": 1.2,
        "width": 0,
    }


FEW_WHOLES = 10  # over a longer span Plotly chooses whole numbers by itself


def _layout(chart: Chart) -> Json:
    across = _axis(chart.x, chart.square)
    if chart.x.ticks:
        across["showgrid"] = False
    if chart.x.whole and chart.span <= FEW_WHOLES:
        across |= {"tick0": 0, "dtick": 1}
    layout: Json = {
        "xaxis": across,
        "yaxis": _axis(chart.y, chart.square),
        "hovermode": "closest",
        "barmode": "overlay",
        "height": chart.height + 20,
    }
    if chart.unified:
        layout["hovermode"] = "x unified"
    if chart.legend:
        below = -0.2
        if chart.square:
            below = -0.06
        layout |= {"showlegend": True, "legend": {"orientation": "h", "y": below}}
        layout["height"] = chart.height + 60
    if chart.rule is not None:
        line = {"color": "@soft", "width": 1.2}
        ends = {"x0": chart.rule, "x1": chart.rule, "y0": 0, "y1": 1}
        layout["shapes"] = [
            {"type": "line", "yref": "paper", "layer": "below", "line": line, **ends}
        ]
    if chart.rule_name:
        anchor = {"left": "right", "right": "left"}[chart.rule_side]
        layout["annotations"] = [
            {
                "x": chart.rule,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "xanchor": anchor,
                "text": _plain(chart.rule_name),
                "showarrow": False,
            }
        ]
        layout["margin"] = {"l": 48, "r": 12, "t": 26, "b": 42}
    return layout


def _axis(axis: Axis, bare: bool) -> Json:
    look: Json = {
        "title": {"text": _plain(axis.label), "standoff": 8},
        "zeroline": False,
        "automargin": True,
    }
    if axis.ticks:
        places, names = zip(*axis.ticks, strict=True)
        look["tickvals"] = list(places)
        look["ticktext"] = [_plain(fold(name, LONGEST)) for name in names]
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
    trace: Json = {
        "type": "heatmap",
        "z": [],
        "zmin": low,
        "zmax": high,
        "colorscale": ramp,
        "showscale": False,
        "text": [],
        "texttemplate": "%{text}",
        "textfont": {"size": 10},
        "hovertext": [],
        "hoverinfo": "text",
        "xgap": 1,
        "ygap": 1,
    }
    cell, _, left, _ = heat.sizes()
    if cell < 4:  # gaps would hide the cells
        trace["xgap"] = 0
    for i in range(len(heat.cells)):
        values, labels, tips = _heat_row(heat, i)
        trace["z"].append(values)
        trace["text"].append(labels)
        trace["hovertext"].append(tips)
    if not heat.numbered:
        trace |= {"text": None, "texttemplate": None}
    if len(heat.columns) <= 12:
        trace["textfont"] = {"size": 11}
    return {
        "data": [trace],
        "layout": _heat_layout(heat),
        "least": left * LARGER + cell * len(heat.columns) + 4,
    }


def _heat_row(heat: Heat, i: int) -> tuple[list[float | None], list[str], list[str]]:
    """The values, labels and tips of a row."""
    values: list[float | None] = []
    labels: list[str] = []
    tips: list[str] = []
    for j, value in enumerate(heat.cells[i]):
        if value is not None:
            value = _digits(value)
        values.append(value)
        labels.append(heat.label(i, j))
        tips.append(_plain(heat.tip(i, j)))
    return values, labels, tips


def _heat_layout(heat: Heat) -> Json:
    cell, tall, left, head = heat.sizes()
    labelled = list(range(0, len(heat.columns), heat.stride(cell)))
    shared = {"showgrid": False, "zeroline": False, "ticks": "", "fixedrange": False}
    across = {
        "side": "top",
        "tickangle": -90 * heat.upright(cell),
        "tickvals": labelled,
        "ticktext": [_plain(heat.columns[j]) for j in labelled],
    }
    down = {
        "tickvals": list(range(len(heat.rows))),
        "ticktext": [_plain(heat.row_label(i)) for i in range(len(heat.rows))],
        "range": [len(heat.rows) - 0.5, -0.5],
        "tickfont": {"color": "@ink"},
    }
    return {
        "xaxis": shared | across,
        "yaxis": shared | down,
        "margin": {"l": left * LARGER, "r": 4, "t": head + 2, "b": 6},
        "height": head + tall * len(heat.rows) + 8,
        "annotations": _band_names(heat, cell),
        "shapes": list(map(_band_edge, heat.spans()[1:])),
    }


def _band_names(heat: Heat, cell: float) -> list[Json]:
    """The names of bands above those of columns."""
    names: list[Json] = []
    for start, count, name in heat.spans():
        if not heat.band_named(count, name, cell):
            continue
        turned = 0
        if heat.band_upright(count, name, cell):
            turned = -90
        names.append(
            {
                "x": start + (count - 1) / 2,
                "y": 1,
                "yref": "paper",
                "yshift": heat.heads(cell) + 2,
                "yanchor": "bottom",
                "text": _plain(heat.band_label(count, name, cell)),
                "textangle": turned,
                "showarrow": False,
                "font": {"color": "@ink"},
            }
        )
    return names


def _band_edge(span: tuple[int, int, str]) -> Json:
    """A gap before a band."""
    start, _, _ = span
    ends = {"x0": start - 0.5, "x1": start - 0.5, "y0": 0, "y1": 1}
    return {"type": "line", "yref": "paper", "line": {"color": "@card", "width": 4}, **ends}


def _digits(value: float) -> float:
    """A number with as many digits as one can see."""
    return float(f"{value:.5g}")


def _plain(text: str) -> str:
    """Text that Plotly shows as it is: it would take `<b>` for a tag, and wants one for a line."""
    return html.escape(text, quote=False).replace("\n", "<br>")

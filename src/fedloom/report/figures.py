"""The two kinds of figure, charts and heat maps: each is data that can be drawn, or handed to Plotly as plain JSON.

In what goes to Plotly a colour is written `@name` or `@name/opacity`; the page's script puts in the value that holds in
light or dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .drawing import CHARACTER, Drawing, colour, dash, shorten

Value = float | None
Grid = Sequence[Sequence[Value]]
ABSENT = "\u2013"


@dataclass(frozen=True)
class Axis:
    """One axis. With `ticks` these are labelled and nothing else; `whole` numbers only; `zero` must be seen."""

    label: str = ""
    ticks: Sequence[tuple[float, str]] = ()
    ends: tuple[float, float] | None = None
    whole: bool = False
    zero: bool = False

    def scale(
        self, values: Sequence[float], count: int, snug: bool
    ) -> tuple[float, float, list[tuple[float, str]]]:
        """Lower end, upper end and labelled ticks for these values."""
        if self.ends:
            if self.ticks:
                return *self.ends, list(self.ticks)
            values = self.ends
        low, high, ticks = spread(
            [*values, *([0.0] if self.zero else [])] or [0.0], count, self.whole, snug
        )
        return (
            low,
            high,
            list(self.ticks) or [(t, f"{t:,.10g}".replace("-", "\u2212")) for t in ticks],
        )


def spread(
    values: Sequence[float], count: int, whole: bool, snug: bool
) -> tuple[float, float, list[float]]:
    """Return lower end, upper end and round ticks of an axis; `snug` keeps the ends at the data."""
    low, high = min(values), max(values)
    if (
        low == high
    ):  # one value still needs a span; grow it without leaving what an accuracy or a count can be
        low, high = (low - 1, high) if low >= 1 else (low, high + 1)
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(power * m for m in (1, 2, 5, 10, 20) if (high - low) / (power * m) <= count)
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if snug:
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = [round(k * step, 10) for k in range(first, last + 1)]
    return (low, high, ticks) if snug else (ticks[0], ticks[-1], ticks)


@dataclass(frozen=True)
class Mark:
    """Something drawn in a chart: a line with a point at each value, a band, single dots, or bars from zero.

    `series` is the number of the method it belongs to, which gives its colour unless `ink` names another.
    """

    kind: Literal["line", "band", "dots", "bars"]
    x: Sequence[float]
    y: Sequence[float]
    series: int | None = None
    name: str = ""
    ink: str = ""
    low: Sequence[float] = ()  # a band reaches from here to y
    dx: Sequence[Value] = ()  # error bars
    dy: Sequence[Value] = ()
    tips: Sequence[str] = ()  # one for each point, or one for all
    symbol: str = "circle"
    size: float = 3.0  # radius of dots, or width of bars in units of x
    opacity: float = 1.0
    beside: bool = False  # dots have the name beside them
    edge: str = "bg"  # the colour of a dot's edge

    @property
    def colour(self) -> str:
        """The name or value of its colour."""
        return self.ink or colour(self.series or 0)

    def tip(self, i: int) -> str:
        """What is said of its i-th point."""
        return self.tips[0] if len(self.tips) == 1 else self.tips[i] if i < len(self.tips) else ""


@dataclass(frozen=True)
class Chart:
    """Marks over two axes."""

    title: str
    marks: Sequence[Mark]
    x: Axis
    y: Axis
    width: float = 460
    height: float = 300
    unified: bool = False  # one tip for all marks at the same x
    legend: bool = False  # the names are told beside it even where the page has a legend for all
    rule: float | None = None  # a line across at this x, such as zero
    square: bool = False  # neither axis means anything: no ticks

    def draw(self, legend: bool = False) -> Drawing:
        """Draw it; with a `legend` for use outside the page."""
        names = self.keys() if legend or self.legend else []
        per_row = max(
            1,
            int(
                (self.width - 20) / (30 + CHARACTER * max((len(k.name) for k in names), default=1))
            ),
        )
        extra = 18 * math.ceil(len(names) / per_row)
        sheet = Drawing(self.width, self.height + extra, self.title)
        right, bottom = 16, (38 if self.x.label else 24)
        xs = [v for m in self.marks for i, x in enumerate(m.x) for v in _reach(x, m.dx, i, m, "x")]
        ys = [v for m in self.marks for i, y in enumerate(m.y) for v in _reach(y, m.dy, i, m, "y")]
        ys += [v for m in self.marks for v in m.low]
        x_low, x_high, x_ticks = self.x.scale(xs, 7, snug=not self.square)
        y_low, y_high, y_ticks = self.y.scale(ys, 6, snug=bool(self.y.ticks))
        named = max((len(t) for _, t in y_ticks), default=0)
        left = 8 if self.square else math.ceil(min(CHARACTER * named, 130)) + 14
        top = 24 if self.y.label else 10
        if (
            xs and not self.x.ends and any(m.kind == "dots" for m in self.marks)
        ):  # dots keep off the frame
            pad = 0.06 * (x_high - x_low)
            x_low, x_high = x_low - pad, x_high + pad

        def px(x: float) -> float:
            return left + (x - x_low) / ((x_high - x_low) or 1) * (self.width - left - right)

        def py(y: float) -> float:
            return (
                self.height
                - bottom
                - (y - y_low) / ((y_high - y_low) or 1) * (self.height - top - bottom)
            )

        base = self.height - bottom
        for at, text in [] if self.square else y_ticks:
            sheet.line([(left, py(at)), (self.width - right, py(at))], "rule")
            sheet.word(
                left - 7,
                py(at) + 4,
                shorten(text, 130),
                anchor="end",
                tip=text if len(text) > 20 else "",
            )
        step = (self.width - left - right) / max(len(x_ticks), 1)
        for at, text in [] if self.square else x_ticks:
            sheet.line([(px(at), base), (px(at), base + 4)], "soft")
            sheet.word(
                px(at),
                base + 16,
                shorten(text, step - 4) if self.x.ticks else text,
                anchor="middle",
                tip=text,
            )
        sheet.word(2, 12, self.y.label)
        sheet.word(self.width - right, self.height - 5, self.x.label, anchor="end")
        if self.rule is not None:
            sheet.line([(px(self.rule), top), (px(self.rule), base)], "soft", 1.2)
        for mark in self.marks:
            self._mark(sheet, mark, px, py)
        for i, mark in enumerate(names):
            x, y = (
                12 + i % per_row * (self.width - 20) / per_row,
                self.height + 12 + 18 * (i // per_row),
            )
            if mark.kind == "line":
                sheet.line(
                    [(x - 5, y - 4), (x + 9, y - 4)], mark.colour, 2, dashes=dash(mark.series or 0)
                )
            sheet.dot(
                x + 2,
                y - 4,
                4,
                mark.colour,
                symbol="square" if mark.kind == "bars" else mark.symbol,
            )
            sheet.word(x + 14, y, mark.name, fill="ink")
        return sheet

    def keys(self) -> list[Mark]:
        """One mark for every name."""
        return list({m.name: m for m in self.marks if m.name and m.kind != "band"}.values())

    def _mark(
        self, sheet: Drawing, mark: Mark, px: Callable[[float], float], py: Callable[[float], float]
    ) -> None:
        ink, series = mark.colour, mark.series
        points = [(px(x), py(y)) for x, y in zip(mark.x, mark.y, strict=True)]
        if mark.kind == "band":
            back = [(px(x), py(y)) for x, y in zip(mark.x, mark.low, strict=True)]
            sheet.area([*points, *reversed(back)], ink, opacity=mark.opacity, series=series)
            return
        if mark.kind == "line":
            sheet.line(
                points,
                ink,
                2,
                dashes=dash(series or 0) if not mark.ink else "",
                series=series,
                tip=mark.name,
            )
        if mark.kind == "bars":
            for i, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
                a, b, top, base = px(x - mark.size / 2), px(x + mark.size / 2), py(y), py(0.0)
                gap = min(2.0, (b - a) / 10)
                tip = mark.tip(i)
                sheet.rect(
                    a + gap,
                    min(top, base),
                    b - a - 2 * gap,
                    abs(base - top),
                    ink,
                    series=series,
                    tip=tip,
                )
        for i, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
            for ends in _errors(mark, i, x, y):
                wide, tint = (1.2, "ink") if mark.kind == "bars" else (0.8, ink)
                sheet.line([(px(u), py(v)) for u, v in ends], tint, wide, series=series)
        if mark.kind == "dots" or (mark.kind == "line" and mark.size):
            stride = 1 if mark.kind == "dots" else math.ceil(len(points) / 60)
            for i in sorted(
                {*range(0, len(points), stride), len(points) - 1} & set(range(len(points)))
            ):
                (x, y), tip = points[i], mark.tip(i)
                look = {
                    "symbol": mark.symbol,
                    "opacity": mark.opacity,
                    "series": series,
                    "tip": tip,
                    "stroke": mark.edge,
                }
                sheet.dot(x, y, mark.size, ink, **look)  # type: ignore[arg-type]
                if mark.beside:
                    room = x + 12 + CHARACTER * len(mark.name) < self.width
                    at, anchor = (x + 9, "start") if room else (x - 9, "end")
                    sheet.word(at, y - 7, mark.name, fill="ink", series=series, anchor=anchor)  # type: ignore[arg-type]

    def plotly(self) -> dict[str, Any]:
        """Data and layout for Plotly."""
        data: list[dict[str, Any]] = []
        named: set[str] = set()
        for mark in self.marks:
            ink = f"@{mark.colour}"
            trace: dict[str, Any] = {
                "x": [_digits(x) for x in mark.x],
                "y": [_digits(y) for y in mark.y],
                "name": _plain(mark.name),
                "meta": mark.series,
                "text": _plain(mark.tips[0])
                if len(mark.tips) == 1
                else [_plain(t) for t in mark.tips],
                "hoverinfo": "text" if mark.tips else "skip",
                "showlegend": False,
            }
            if mark.kind == "band":
                shape = {
                    "x": [*mark.x, *reversed(mark.x)],
                    "y": [_digits(y) for y in (*mark.y, *reversed(mark.low))],
                }
                trace |= {
                    **shape,
                    "type": "scatter",
                    "mode": "lines",
                    "fill": "toself",
                    "line": {"width": 0},
                }
                trace |= {"fillcolor": f"{ink}/{mark.opacity}", "hoverinfo": "skip"}
            elif mark.kind == "bars":
                trace |= {
                    "type": "bar",
                    "width": 0.88 * mark.size,
                    "marker": {"color": ink},
                    "textposition": "none",
                }
            else:
                edge = {"color": f"@{mark.edge}" if mark.edge != "bg" else "@card", "width": 0.8}
                look = {
                    "color": ink,
                    "size": 2 * mark.size,
                    "opacity": mark.opacity,
                    "symbol": mark.symbol,
                }
                mode = (
                    "markers" if mark.kind == "dots" else "lines+markers" if mark.size else "lines"
                )
                trace |= {"type": "scatter", "mode": mode, "marker": look | {"line": edge}}
                if mark.beside:
                    trace |= {
                        "mode": "markers+text",
                        "text": [_plain(mark.name)] * len(mark.x),
                        "hoverinfo": "text",
                    }
                    trace |= {
                        "hovertext": trace["text"]
                        if not mark.tips
                        else [_plain(t) for t in mark.tips]
                    }
                    trace |= {
                        "textposition": "top right",
                        "textfont": {"color": "@ink", "size": 12},
                        "cliponaxis": False,
                    }
                if mark.kind == "line":
                    dashes = "" if mark.ink else dash(mark.series or 0)
                    trace["line"] = {
                        "color": ink,
                        "width": 2.2,
                        "dash": dashes.replace(" ", "px,") + "px" * bool(dashes),
                    }
            for way, errors in (("error_x", mark.dx), ("error_y", mark.dy)):
                if any(errors):
                    tint = "@ink/0.75" if mark.kind == "bars" else f"{ink}/0.5"
                    bar = {
                        "type": "data",
                        "array": [_digits(e or 0) for e in errors],
                        "color": tint,
                        "thickness": 1.2,
                    }
                    trace[way] = bar | {"width": 0}
            if self.legend and mark.name and (not mark.x or mark.name not in named):
                named.add(mark.name)
                trace |= {"showlegend": True, "legendgroup": trace["name"]} | (
                    {} if mark.x else {"x": [None], "y": [None]}
                )
            data.append(trace)
        layout: dict[str, Any] = {
            "xaxis": _axis(self.x, self.square) | ({"showgrid": False} if self.x.ticks else {}),
            "yaxis": _axis(self.y, self.square),
            "hovermode": "x unified" if self.unified else "closest",
            "barmode": "overlay",
            "height": self.height + 20,
        }
        if self.legend:
            layout |= {
                "showlegend": True,
                "legend": {"orientation": "h", "y": -0.06 if self.square else -0.2},
            }
            layout |= {"height": self.height + 60}
        if self.rule is not None:
            layout["shapes"] = [
                {
                    "type": "line",
                    "yref": "paper",
                    "y0": 0,
                    "y1": 1,
                    "x0": self.rule,
                    "x1": self.rule,
                }
                | {"layer": "below", "line": {"color": "@soft", "width": 1.2}}
            ]
        return {"data": data, "layout": layout}


@dataclass(frozen=True)
class Heat:
    """Rows by columns; neighbouring columns with the same band (a domain) share a heading.

    `ends` are the values of the faintest and the strongest colour; where the lower one is negative, zero is colourless
    and the two signs have colours of their own. Numbers are left out where they would not be legible.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    bands: Sequence[str | None]
    cells: Grid
    ends: tuple[float, float]
    show: Callable[[float], str]
    of: str = "client"  # what a column is
    numbers: bool = True  # shown if there is room

    @property
    def numbered(self) -> bool:
        """Whether there is room for the numbers."""
        return self.numbers and len(self.columns) <= 30 and len(self.rows) <= 60

    def tip(self, i: int, j: int) -> str:
        """What is said of a cell."""
        value = self.cells[i][j]
        band = f" ({self.bands[j]})" if self.bands[j] else ""
        return f"{self.rows[i]}, {self.of} {self.columns[j]}{band}: {ABSENT if value is None else self.show(value)}"

    def spans(self) -> list[tuple[int, int, str]]:
        """Bands as (first column, how many, name)."""
        found: list[tuple[int, int, str]] = []
        start = 0
        for j in range(1, len(self.columns) + 1):
            if j == len(self.columns) or self.bands[j] != self.bands[start]:
                if self.bands[start]:
                    found.append((start, j - start, str(self.bands[start])))
                start = j
        return found

    def sizes(self) -> tuple[float, float, float, float]:
        """A cell's width and height, the room left of the cells and above them."""
        count = len(self.columns)
        cell = (
            (40.0 if count <= 12 else 33.0)
            if self.numbered
            else max(8.0, min(20.0, 900 / max(count, 1)))
        )
        left = max(CHARACTER * min(max(map(len, self.rows), default=0), 22) + 8, 60)
        return cell, (26 if self.numbered else 16), left, (42 if any(self.bands) else 20)

    def draw(self, legend: bool = False) -> Drawing:
        """Draw it; it always has its colour key."""
        (low, high), (cell, tall, left, head) = self.ends, self.sizes()
        width = left + max(cell * len(self.columns), 190) + 4
        sheet = Drawing(width, head + tall * len(self.rows) + 30, self.title)

        def paint(value: float) -> tuple[str, float]:
            strength = (
                abs(value) / (max(high, -low) or 1)
                if low < 0
                else (value - low) / ((high - low) or 1.0)
            )
            name = "neg" if value < 0 else "pos" if low < 0 else "seq"
            return name, 0.04 + 0.96 * min(max(strength, 0.0), 1.0)

        for start, span, name in self.spans():
            x, wide = left + start * cell, span * cell
            sheet.rect(x + 1, 1, wide - 2, 19, "panel", tip=name)
            sheet.word(
                x + wide / 2, 15, shorten(name, wide - 6), anchor="middle", fill="ink", tip=name
            )
        stride = self._stride(cell)
        for j in range(0, len(self.columns), stride):
            room = cell * stride - 2
            sheet.word(
                left + (j + 0.5) * cell, head - 6, shorten(self.columns[j], room), anchor="middle"
            )
        for i, row in enumerate(self.rows):
            y = head + i * tall
            sheet.word(
                left - 7,
                y + tall / 2 + 4,
                shorten(row, left - 7),
                anchor="end",
                fill="ink",
                tip=row,
            )
            for j, value in enumerate(self.cells[i]):
                x = left + j * cell
                name, strength = ("panel", 1.0) if value is None else paint(value)
                sheet.rect(
                    x, y, cell, tall, name, opacity=strength, stroke="bg", tip=self.tip(i, j)
                )
                if self.numbered:
                    ink = "#ffffff" if strength > 0.55 and value is not None else "ink"
                    said = ABSENT if value is None else self.show(value)
                    size = 11 if len(self.columns) <= 12 else 10
                    sheet.word(
                        x + cell / 2, y + tall / 2 + 4, said, anchor="middle", fill=ink, size=size
                    )
        for start, *_ in self.spans()[1:]:
            x = left + start * cell
            sheet.line([(x, head), (x, head + tall * len(self.rows))], "bg", 3)
        y = head + tall * len(self.rows) + 12
        sheet.word(left - 7, y + 11, self.show(low), anchor="end")
        for k in range(9):  # the colour key
            name, strength = paint(low + (high - low) * k / 8)
            sheet.rect(left + k * 14, y, 14, 14, name, opacity=strength, stroke="bg")
        sheet.word(left + 134, y + 11, self.show(high))
        return sheet

    def plotly(self) -> dict[str, Any]:
        """Data and layout for Plotly."""
        (low, high), (cell, tall, left, head) = self.ends, self.sizes()
        # Without transparency: Plotly chooses black or white for the numbers by the colour of the cell alone.
        ramp: list[list[Any]] = [[0, "@card"], [1, "@seq"]]
        if low < 0:
            low, high = -max(high, -low), max(high, -low)
            ramp = [[0, "@neg"], [0.5, "@card"], [1, "@pos"]]
        tips = [
            [_plain(self.tip(i, j)) for j in range(len(self.columns))]
            for i in range(len(self.rows))
        ]
        said = [[ABSENT if v is None else self.show(v) for v in row] for row in self.cells]
        data = {
            "type": "heatmap",
            "z": [[None if v is None else _digits(v) for v in row] for row in self.cells],
            "zmin": low,
            "zmax": high,
            "colorscale": ramp,
            "showscale": False,
            "text": said if self.numbered else None,
            "texttemplate": "%{text}" if self.numbered else None,
            "textfont": {"size": 11 if len(self.columns) <= 12 else 10},
            "hovertext": tips,
            "hoverinfo": "text",
            "xgap": 1,
            "ygap": 1,
        }
        stride = self._stride(cell)
        place = range(0, len(self.columns), stride)
        down = [shorten(r, left - 7) for r in self.rows]
        axis = {"showgrid": False, "zeroline": False, "ticks": "", "fixedrange": False}
        layout = {
            "xaxis": axis
            | {
                "side": "top",
                "tickvals": [*place],
                "ticktext": [_plain(self.columns[j]) for j in place],
            },
            "yaxis": axis
            | {"tickvals": [*range(len(self.rows))], "ticktext": [_plain(r) for r in down]}
            | {"range": [len(self.rows) - 0.5, -0.5], "tickfont": {"color": "@ink"}},
            "margin": {"l": left, "r": 4, "t": head + 2, "b": 6},
            "height": head + tall * len(self.rows) + 8,
            "annotations": [
                {
                    "x": start + (span - 1) / 2,
                    "y": 1,
                    "yref": "paper",
                    "yshift": 22,
                    "yanchor": "bottom",
                }
                | {
                    "text": _plain(shorten(name, span * cell - 6)),
                    "showarrow": False,
                    "font": {"color": "@ink"},
                }
                for start, span, name in self.spans()
            ],
            "shapes": [
                {"type": "line", "x0": s - 0.5, "x1": s - 0.5, "yref": "paper", "y0": 0, "y1": 1}
                | {"line": {"color": "@card", "width": 4}}
                for s, *_ in self.spans()[1:]
            ],
        }
        return {"data": [data], "layout": layout, "least": left + cell * len(self.columns) + 4}

    def _stride(self, cell: float) -> int:
        """Every how manyth column is labelled."""
        if max(map(len, self.columns), default=1) * CHARACTER <= cell or cell >= 30:
            return 1
        return 5 if len(self.columns) <= 60 else 10


Figure = Chart | Heat


def _reach(value: float, errors: Sequence[Value], i: int, mark: Mark, way: str) -> list[float]:
    """What the axis must hold for a value: itself, its error bar, a bar's width and foot."""
    error = (errors[i] or 0.0) if i < len(errors) else 0.0
    if mark.kind == "bars":
        return (
            [value - mark.size / 2, value + mark.size / 2] if way == "x" else [0.0, value + error]
        )
    return [value - error, value + error]


def _errors(mark: Mark, i: int, x: float, y: float) -> list[list[tuple[float, float]]]:
    found = []
    if i < len(mark.dx) and (e := mark.dx[i]):
        found.append([(x - e, y), (x + e, y)])
    if i < len(mark.dy) and (e := mark.dy[i]):
        found.append([(x, y - e), (x, y + e)])
    return found


def _axis(axis: Axis, bare: bool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "title": {"text": _plain(axis.label), "standoff": 8},
        "zeroline": False,
        "automargin": True,
    }
    if axis.ticks:
        made |= {
            "tickvals": [t for t, _ in axis.ticks],
            "ticktext": [_plain(shorten(t, 130)) for _, t in axis.ticks],
        }
        made |= {"tickfont": {"size": 12.5, "color": "@ink"}}
    if axis.ends:
        made["range"] = list(axis.ends)
    elif axis.zero:
        made["rangemode"] = "tozero"
    if bare:
        made |= {"showticklabels": False, "showgrid": False}
    return made


def _digits(value: float) -> float:
    """A number with as many digits as can be seen."""
    return float(f"{value:.5g}")


def _plain(text: str) -> str:
    """Text that Plotly shows as it is: it would take `<b>` for a tag."""
    return html.escape(text, quote=False)

"""Charts and heat maps drawn by Matplotlib: as SVG for the page, as SVG, PDF and PNG for papers.

Matplotlib takes a second to import, so nothing but a drawing function imports it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .canvas import Rect, Sheet, Spot, canvas, saved, style
from .figures import LINE, LONGEST, Axis, Chart, Figure, Heat, Mark, width_of
from .palette import CHARACTER, dashes, fold, hatch, light
from .svg import Tag, inline, standalone

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "cross": "P",
    "triangle-down": "v",
    "pentagon": "p",
    "hexagon": "h",
    "star": "*",
}
WHITE = "#fefefe"  # white that stays white on the dark page, where #ffffff follows the background


def page_svg(figure: Figure, id: str) -> str:
    """A figure as an SVG element that follows the page's colours; `id` keeps its names apart.

    A chart takes the width that it gets; a heat map keeps its size, so that numbers stay legible.
    """
    with style(id):
        sheet = draw(figure)
        text = saved(sheet.canvas, "svg").decode()
    return inline(text, sheet.tags, figure.title, fit=isinstance(figure, Chart))


def save(figure: Figure, format: str, legend: bool = False) -> bytes:
    """A figure as a file of its own: svg, pdf or png."""
    with style(figure.title):
        sheet = draw(figure, legend)
        data = saved(sheet.canvas, format)
    if format == "svg":
        return standalone(data.decode(), sheet.tags, figure.title).encode()
    return data


def draw(figure: Figure, legend: bool = False) -> Sheet:
    """Draw a figure; `legend` adds the names of the methods for use outside the page."""
    keys: list[Mark] = []
    if isinstance(figure, Chart) and (legend or figure.legend):
        keys = figure.keys()
    width, height = size(figure)
    across, foot = legend_room(keys, width)
    whole = canvas(width, height + foot)
    share = foot / (height + foot)
    sheet = draw_at(figure, Spot(whole, bottom=share, height=1 - share), {})
    if keys:
        add_legend(whole, keys, across)
    return sheet


def draw_at(figure: Figure, spot: Spot, tags: dict[str, Tag]) -> Sheet:
    """Draw a figure, without a legend, on a part of a canvas of the figure's size."""
    if isinstance(figure, Heat):
        return _heat(figure, spot, tags)
    return _chart(figure, spot, tags)


def size(figure: Figure) -> tuple[float, float]:
    """The width and the height of a figure without its legend."""
    if isinstance(figure, Chart):
        return figure.width, figure.height
    cell, tall, left, head = figure.sizes()
    width = left + max(cell * len(figure.columns), 190) + 4
    return width, head + tall * len(figure.rows) + 30


# -- charts --------------------------------------------------------------------------------------
def _chart(chart: Chart, spot: Spot, tags: dict[str, Tag]) -> Sheet:
    sheet = Sheet(spot.canvas, spot.canvas.add_axes(spot.within(_frame(chart))), tags)
    axes = sheet.axes
    if chart.rule is not None:
        axes.axvline(chart.rule, color=light("soft"), linewidth=1.2, zorder=0.6)
        ends = {"left": "right", "right": "left"}[chart.rule_side]  # where the text has its anchor
        at: Any = {"xytext": (0, 4), "textcoords": "offset points", "ha": ends}
        top = ("data", "axes fraction")
        axes.annotate(chart.rule_name, (chart.rule, 1), xycoords=top, color=light("soft"), **at)
    for mark in chart.marks:
        _mark(sheet, mark)
    _limits(axes, chart)
    for axis, which in ((chart.x, "x"), (chart.y, "y")):
        _axis(axes, axis, which, chart)
    return sheet


def legend_room(keys: Sequence[Mark], width: float) -> tuple[int, float]:
    """How many names of a legend stand beside each other, and how high it is."""
    longest = max((len(mark.name) for mark in keys), default=1)
    across = max(1, int((width - 20) / (34 + CHARACTER * longest)))
    return across, 18.0 * math.ceil(len(keys) / across)


def add_legend(whole: Canvas, keys: Sequence[Mark], across: int) -> None:
    """The names of the marks at the foot of a canvas."""
    whole.legend(
        handles=list(map(_handle, keys)),
        loc="lower left",
        ncols=across,
        frameon=False,
        handlelength=1.6,
        columnspacing=1.2,
        borderaxespad=0.2,
    )


def _frame(chart: Chart) -> Rect:
    """Where the axes stand; Matplotlib's own layout would take twice as long."""
    left, top, right, bottom = 44.0, 26.0, 16.0, 26.0
    if chart.y.ticks:
        left = width_of(_lines(chart.y, LONGEST)) + 14
    if not chart.y.label and not chart.rule_name:
        top = 10.0
    if chart.x.label:
        bottom = 42.0
    for _, name in chart.x.ticks:
        lines = fold(name, _room(chart)).count("\n")
        bottom = max(bottom, 26.0 + LINE * lines)
    if chart.square:
        left, top, right, bottom = 8.0, 8.0, 8.0, 8.0
    width, height = chart.width, chart.height
    return (
        left / width,
        bottom / height,
        1 - (left + right) / width,
        1 - (top + bottom) / height,
    )


def _lines(axis: Axis, room: float) -> list[str]:
    """All lines of the names at an axis."""
    lines: list[str] = []
    for _, name in axis.ticks:
        lines += fold(name, room).split("\n")
    return lines


def _room(chart: Chart) -> float:
    """How wide a name below the horizontal axis may be."""
    return (chart.width - 60) / max(len(chart.x.ticks), 1) - 8


def _mark(sheet: Sheet, mark: Mark) -> None:
    """Add one mark to the axes."""
    if not len(mark.x):
        return
    axes, ink = sheet.axes, light(mark.colour)
    if mark.kind == "band":
        band = axes.fill_between(
            mark.x, mark.low, mark.y, color=ink, alpha=mark.opacity, linewidth=0
        )
        sheet.tag(band, mark.series)
        return
    if mark.kind == "bars":
        look: Any = {"color": ink, "hatch": hatch(mark.series or 0), "edgecolor": light("bg")}
        bars = axes.bar(mark.x, mark.y, width=0.92 * mark.size, linewidth=0, **look)
        for i, bar in enumerate(bars):
            sheet.tag(bar, mark.series, [mark.tip(i)])
    else:
        _points(sheet, mark, ink)
    if any(mark.dx):
        _errors(sheet, mark, xerr=mark.reach(mark.x, mark.dx))
    if any(mark.dy):
        _errors(sheet, mark, yerr=mark.reach(mark.y, mark.dy))


def _points(sheet: Sheet, mark: Mark, ink: str) -> None:
    """Dots, or a line with dots on it; a long line has about sixty of them."""
    line = mark.kind == "line"
    stride = 1
    if line:
        stride = math.ceil(len(mark.x) / 60)
    shown = sorted({*range(0, len(mark.x), stride), len(mark.x) - 1})
    dots: dict[str, Any] = {
        "marker": MARKERS[mark.sign],
        "markersize": 2 * mark.size,
        "markerfacecolor": ink,
        "markeredgecolor": light(mark.edge),
        "markeredgewidth": 0.6,
        "markevery": shown,
    }
    if line and not mark.size:
        dots = {}
    pattern: Any = "none"
    if line:
        pattern = _pattern(mark)
    (artist,) = sheet.axes.plot(
        mark.x, mark.y, color=ink, linewidth=1.8, linestyle=pattern, alpha=mark.opacity, **dots
    )
    # Outlined in full: a dot at the frame must not be cut in half.
    artist.set_clip_on(False)
    tips = [mark.name or mark.tip(0)]
    if dots and mark.tips:
        tips = [mark.tip(i) for i in shown]
    sheet.tag(artist, mark.series, tips)


def _pattern(mark: Mark) -> Any:
    """The dashes of a line, as Matplotlib wants them."""
    lengths = dashes(mark.series or 0).split()
    if mark.ink or not lengths:
        return "-"
    return (0, [float(length) / 1.8 for length in lengths])


def _errors(sheet: Sheet, mark: Mark, **reach: Any) -> None:
    colour, wide = light(mark.colour), 0.9
    if mark.kind == "bars":
        colour, wide = light("ink"), 1.2
    bars = sheet.axes.errorbar(mark.x, mark.y, fmt="none", ecolor=colour, elinewidth=wide, **reach)
    for part in bars.lines[2]:
        sheet.tag(part, mark.series)


def _limits(axes: Axes, chart: Chart) -> None:
    """The room around the marks, unless the axes have ends of their own."""
    beside = 0.015
    for mark in chart.marks:
        if mark.kind == "dots":
            beside = 0.06
    axes.margins(x=beside, y=0.07)
    if chart.x.ends:
        axes.set_xlim(*chart.x.ends)
    elif chart.x.zero:
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.0), max(high, 0.0))
    elif chart.x.whole:
        low, high = axes.get_xlim()
        if high - low < 1:  # a single round: fractions would stand beside it
            axes.set_xlim(low - 1, high + 1)
    if chart.y.ends:
        axes.set_ylim(*chart.y.ends)
    elif chart.y.zero:
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.0), max(high, 0.0))


def _axis(axes: Axes, axis: Axis, which: str, chart: Chart) -> None:
    """Ticks, grid and label of one axis; the label of the vertical one stands above it."""
    from matplotlib.ticker import MaxNLocator

    drawn: Any = axes.yaxis
    room = LONGEST
    count = 6
    if which == "x":
        drawn = axes.xaxis
        room = _room(chart)
        count = 7
    if chart.square:
        drawn.set_ticks([])
        return
    if axis.ticks:
        places, names = zip(*axis.ticks, strict=True)
        drawn.set_ticks(places, [fold(name, room) for name in names])
    else:
        drawn.set_major_locator(MaxNLocator(count, steps=(1, 2, 5, 10), integer=axis.whole))
    if which == "x":
        axes.set_xlabel(axis.label, loc="right")
    else:
        axes.grid(axis="y", linewidth=0.8)
        axes.set_title(axis.label, loc="left", fontsize=10.5)


def _handle(mark: Mark) -> Any:
    """The sign of a mark in the legend."""
    from matplotlib.lines import Line2D

    marker = MARKERS[mark.sign]
    pattern: Any = "none"
    if mark.kind == "bars":
        marker = "s"
    elif mark.kind == "line":
        pattern = _pattern(mark)
    return Line2D(
        [],
        [],
        color=light(mark.colour),
        linestyle=pattern,
        linewidth=1.8,
        marker=marker,
        markersize=6,
        label=mark.name,
    )


# -- heat maps -----------------------------------------------------------------------------------
def _heat(heat: Heat, spot: Spot, tags: dict[str, Tag]) -> Sheet:
    """Draw a heat map with its colour key; the axes count pixels from the upper left corner."""
    _, tall, _, head = heat.sizes()
    width, height = size(heat)
    axes = spot.canvas.add_axes(spot.within((0, 0, 1, 1)))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    sheet = Sheet(spot.canvas, axes, tags)
    _heads(sheet, heat)
    if heat.rows and heat.columns:
        _cells(sheet, heat)
    _key(sheet, heat, head + tall * len(heat.rows) + 12)
    return sheet


def _heads(sheet: Sheet, heat: Heat) -> None:
    """The names of bands, columns and rows."""
    from matplotlib.patches import Rectangle

    axes = sheet.axes
    cell, tall, left, head = heat.sizes()
    band = heat.band_heads(cell)
    for start, span, name in heat.spans():
        x, wide = left + start * cell, span * cell
        box = axes.add_patch(Rectangle((x + 1, 1), wide - 2, band - 3, color=light("panel")))
        sheet.tag(box, tips=[name])
        if heat.band_named(span, name, cell):
            turned = 90.0 * heat.band_upright(span, name, cell)
            middle: Any = {"ha": "center", "va": "center", "rotation": turned}
            label = heat.band_label(span, name, cell)
            axes.text(x + wide / 2, band / 2, label, **middle)
    turned = 90.0 * heat.upright(cell)
    for j in range(0, len(heat.columns), heat.stride(cell)):
        place: Any = {"ha": "center", "rotation": turned, "color": light("soft")}
        axes.text(left + (j + 0.5) * cell, head - 6, heat.columns[j], **place)
    for i, row in enumerate(heat.rows):
        middle_of_row = head + (i + 0.5) * tall
        text = axes.text(left - 7, middle_of_row, heat.row_label(i), ha="right", va="center")
        sheet.tag(text, tips=[row])


def _cells(sheet: Sheet, heat: Heat) -> None:
    """The cells themselves, with their numbers where there is room."""
    from matplotlib.colors import to_rgba

    axes = sheet.axes
    cell, tall, left, head = heat.sizes()
    painted: list[list[Any]] = []
    tips: list[str] = []
    size = 9.5
    if len(heat.columns) <= 12:
        size = 10.5
    for i, row in enumerate(heat.cells):
        line = []
        for j, value in enumerate(row):
            name, strength = heat.paint(value)
            line.append(to_rgba(light(name), strength))
            tips.append(heat.tip(i, j))
            if heat.numbered:
                ink = light("ink")
                if strength > 0.55 and value is not None:
                    ink = WHITE
                at = (left + (j + 0.5) * cell, head + (i + 0.5) * tall)
                axes.text(*at, heat.label(i, j), ha="center", va="center", color=ink, fontsize=size)
        painted.append(line)
    across = left + cell * np.arange(len(heat.columns) + 1)
    down = head + tall * np.arange(len(heat.rows) + 1)
    edge = 0.8
    if cell < 4:  # edges would hide the cells
        edge = 0.0
    mesh = axes.pcolormesh(across, down, painted, edgecolors=light("bg"), linewidth=edge)
    sheet.tag(mesh, tips=tips)
    for start, *_ in heat.spans()[1:]:
        x = left + start * cell
        axes.plot([x, x], [down[0], down[-1]], color=light("bg"), linewidth=3)


def _key(sheet: Sheet, heat: Heat, top: float) -> None:
    """Which colour stands for which value."""
    from matplotlib.patches import Rectangle

    axes = sheet.axes
    left = heat.sizes()[2]
    low, high = heat.ends
    soft = light("soft")
    axes.text(left - 7, top + 7, heat.show(low), ha="right", va="center", color=soft)
    for k in range(9):
        name, strength = heat.paint(low + (high - low) * k / 8)
        box = Rectangle((left + 14 * k, top), 13, 14, facecolor=light(name), alpha=strength)
        axes.add_patch(box)
    axes.text(left + 134, top + 7, heat.show(high), va="center", color=soft)

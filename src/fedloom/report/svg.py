"""Small SVG charts as strings: lines, horizontal bars and heat maps.

Colours are CSS variables of the page, so that every chart follows light, dark and print without being drawn twice.
"""

import html
import math
from collections.abc import Callable, Sequence

Value = float | None
Grid = Sequence[Sequence[Value]]
PALETTE = 8  # how many run colours the page's style sheet names (--p0 ... --p7)
DASHES = ("none", "6 3", "2 3", "8 3 2 3")  # tell runs apart once the colours repeat
ABSENT = "\u2013"
CHARACTER = 6.8  # about the width of a character of 11 px text in a wide font


def esc(text: object) -> str:
    """Return the text safe for HTML content and quoted attributes."""
    return html.escape(str(text), quote=True)


def shorten(text: str, width: float) -> str:
    """Cut the middle out of a text wider than about ``width`` pixels: runs often differ at the end, in their seed."""
    room = max(int(width / CHARACTER), 0)
    tail = room // 3
    if len(text) <= room:
        return text
    return text[: max(room - tail - 1, 0)] + "\u2026" * (room > 0) + text[len(text) - tail :]


def margin(names: Sequence[str], most: int) -> int:
    """Return the room that row names of up to ``most`` characters take to the left of a chart."""
    return math.ceil(CHARACTER * min(max(map(len, names), default=0), most)) + 6


def tint(series: int) -> str:
    """Return the attribute that gives an element the colour and dash of run number ``series``."""
    return f'style="--c:var(--p{series % PALETTE});--d:{DASHES[series // PALETTE % len(DASHES)]}"'


def mark(series: int) -> str:
    """Return the attributes that colour an element as run number ``series`` and let the legend hide it."""
    return f'data-s="{series}" {tint(series)}'


def axis(
    values: Sequence[float], count: int, whole: bool = False, snug: bool = False
) -> tuple[float, float, list[float]]:
    """Return lower end, upper end and round ticks of an axis; ``snug`` keeps the ends at the data."""
    low, high = min(values), max(values)
    if low == high:  # one value still needs a span; grow it without leaving what an accuracy or a count can be
        low, high = (low - 1, high) if low >= 1 else (low, high + 1)
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(power * m for m in (1, 2, 5, 10, 20) if (high - low) / (power * m) <= count)
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if snug:
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = [round(k * step, 10) for k in range(first, last + 1)]
    return (low, high, ticks) if snug else (ticks[0], ticks[-1], ticks)


def lines(
    series: Sequence[tuple[int, str, Sequence[tuple[float, float]]]], x_label: str, y_label: str, whole: bool = False
) -> str:
    """Draw one line per (run number, name, points); x are ``whole`` numbers, or amounts whose axis starts at zero."""
    width, height, left, right, top, bottom = 460, 290, 40, 14, 24, 38
    xs = [x for _, _, points in series for x, _ in points]
    ys = [y for _, _, points in series for _, y in points]
    x_low, x_high, x_ticks = axis(xs if whole else [0.0, *xs], 8, whole, snug=True)
    y_low, y_high, y_ticks = axis(ys, 6)

    def px(x: float) -> float:
        return left + (x - x_low) / (x_high - x_low) * (width - left - right)

    def py(y: float) -> float:
        return height - bottom - (y - y_low) / (y_high - y_low) * (height - top - bottom)

    label = esc(f"{y_label} by {x_label}")
    out = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">']
    for y in y_ticks:
        out.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{py(y):.1f}" y2="{py(y):.1f}"/>')
        out.append(f'<text class="end" x="{left - 6}" y="{py(y) + 4:.1f}">{y:,.10g}</text>')
    for x in x_ticks:
        base = height - bottom
        out.append(f'<line class="tick" x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{base}" y2="{base + 4}"/>')
        out.append(f'<text class="mid" x="{px(x):.1f}" y="{base + 16}">{x:,.10g}</text>')
    out.append(f'<text x="2" y="12">{esc(y_label)}</text>')
    out.append(f'<text class="end" x="{width - right}" y="{height - 5}">{esc(x_label)}</text>')
    for number, name, points in series:
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in points)
        out.append(f'<g {mark(number)}><polyline class="line" points="{path}"/>')
        stride = math.ceil(len(points) / 100)  # long runs keep the whole line, but not a dot for every round
        for x, y in [*points[:-1:stride], points[-1]]:
            tip = f"{esc(name)}: {y:.2f} % at {esc(x_label)} {x:,.{0 if whole else 1}f}"
            out.append(f'<circle class="dot" cx="{px(x):.1f}" cy="{py(y):.1f}" r="2.8"><title>{tip}</title></circle>')
        out.append("</g>")
    return "".join(out) + "</svg>"


def bars(label: str, rows: Sequence[tuple[int, str, Value]], show: Callable[[float], str], full: float | None) -> str:
    """Draw one horizontal bar per (run number, name, value) from zero to ``full``, by default the largest value."""
    width, row, numbers = 270, 20, 46
    names = margin([name for _, name, _ in rows], 15)
    top = full or max((v for _, _, v in rows if v is not None), default=0.0) or 1.0
    out = [f'<svg class="chart" viewBox="0 0 {width} {row * len(rows) + 4}" role="img" aria-label="{esc(label)}">']
    for place, (number, name, value) in enumerate(rows):
        y, length = place * row + 2, (value or 0.0) / top * (width - names - numbers)
        text = ABSENT if value is None else show(value)
        out.append(f"<g {mark(number)}><title>{esc(name)}, {esc(label)}: {esc(text)}</title>")
        out.append(f'<text class="end" x="{names - 6}" y="{y + 13}">{esc(shorten(name, names - 6))}</text>')
        out.append(f'<rect class="bar" x="{names}" y="{y + 2}" width="{length:.1f}" height="{row - 5}"/>')
        out.append(f'<text class="num" x="{names + length + 5:.1f}" y="{y + 13}">{esc(text)}</text></g>')
    return "".join(out) + f'<line class="tick" x1="{names}" x2="{names}" y1="0" y2="{row * len(rows) + 4}"/></svg>'


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    bands: Sequence[str | None],
    cells: Grid,
    ends: tuple[float, float],
    show: Callable[[float], str],
) -> str:
    """Draw a heat map of rows by clients; neighbouring columns with the same band (domain) share a heading.

    ``ends`` are the values of the faintest and the strongest colour; where the lower one is negative, zero is
    colourless and the two signs have colours of their own. Numbers are left out where they would not be legible.
    """
    count, low, high = len(columns), *ends
    numbers = count <= 30 and len(rows) <= 60
    cell = (38.0 if count <= 12 else 31.0) if numbers else max(8.0, min(20.0, 900 / count))
    tall, left, head = (25 if numbers else 15), max(margin(rows, 18), 60), (40 if any(bands) else 20)
    width, height = left + max(cell * count, 190) + 2, head + tall * len(rows) + 30

    def paint(value: float) -> tuple[str, float]:
        strength = abs(value) / max(high, -low) if low < 0 else (value - low) / ((high - low) or 1.0)
        return ("neg" if value < 0 else "pos" if low < 0 else "seq"), min(max(strength, 0.0), 1.0)

    out = [f'<div class="scroll"><svg class="map" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" role="img">']
    start = 0
    for j in range(1, count + 1):
        if j < count and bands[j] == bands[start]:
            continue
        name, x, span = bands[start], left + start * cell, (j - start) * cell
        if name:
            out.append(f'<g><title>{esc(name)}</title><rect class="band" x="{x + 1:.1f}" y="1" width="{span - 2:.1f}"')
            out.append(f' height="18"/><text class="mid" x="{x + span / 2:.1f}" y="14">{esc(shorten(name, span))}')
            out.append("</text></g>")
        start = j
    stride = 1 if cell >= 24 else 5 if count <= 60 else 10
    for j in range(0, count, stride):
        out.append(f'<text class="mid" x="{left + (j + 0.5) * cell:.1f}" y="{head - 6}">{esc(columns[j])}</text>')
    for i, row in enumerate(rows):
        y = head + i * tall
        out.append(f'<text class="end" x="{left - 6}" y="{y + tall / 2 + 4}">{esc(shorten(row, left - 6))}')
        out.append(f"<title>{esc(row)}</title></text>")
        for j, value in enumerate(cells[i]):
            x, text = left + j * cell, ABSENT if value is None else show(value)
            kind, strength = ("none", 1.0) if value is None else paint(value)
            where = f"{row}, client {columns[j]}" + (f" ({bands[j]})" if bands[j] else "")
            out.append(f'<g><title>{esc(where)}: {esc(text)}</title><rect class="cell {kind}" x="{x:.1f}" y="{y}"')
            out.append(f' width="{cell:.1f}" height="{tall}" fill-opacity="{strength:.2f}"/>')
            if numbers:
                tone = (" hi" if strength > 0.55 and value is not None else "") + " tight" * (count > 12)
                out.append(f'<text class="num mid{tone}" x="{x + cell / 2:.1f}" y="{y + tall / 2 + 4}">{esc(text)}')
                out.append("</text>")
            out.append("</g>")
    y = head + tall * len(rows) + 12
    out.append(f'<text class="end" x="{left - 6}" y="{y + 11}">{esc(show(low))}</text>')
    for k in range(9):  # the colour key
        kind, strength = paint(low + (high - low) * k / 8)
        out.append(f'<rect class="cell {kind}" x="{left + k * 14}" y="{y}" width="14" height="14"')
        out.append(f' fill-opacity="{strength:.2f}"/>')
    return "".join(out) + f'<text x="{left + 132}" y="{y + 11}">{esc(show(high))}</text></svg></div>'

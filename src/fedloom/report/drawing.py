"""A drawing of lines, shapes and words that can be written as SVG (for the page and for papers) or as PNG.

Colours are names of the page's style sheet (`ink`, `p0` ...), so that a drawing in the page follows light, dark and
print without being drawn twice; a drawing on its own takes the light ones.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]
CHARACTER = 6.3  # about the width of a character of 11 px text
PALETTE = 10  # how many method colours there are (p0 ... p9)
DASHES = ("", "7 3", "2 3", "9 3 2 3")  # tell methods apart once the colours repeat
SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "cross",
    "triangle-down",
    "pentagon",
    "hexagon",
)

# Light and dark. The method colours follow Okabe and Ito, whom colour-blind readers can tell apart, adjusted for
# contrast on each background.
COLOURS = {
    "bg": ("#ffffff", "#12161b"),
    "card": ("#ffffff", "#191f26"),
    "panel": ("#f3f6f9", "#212932"),
    "ink": ("#17202a", "#e9eef3"),
    "soft": ("#5a6673", "#9fabb8"),
    "rule": ("#dfe5eb", "#303a45"),
    "accent": ("#0b62a8", "#5fb0f0"),
    "mark": ("#dcecfa", "#173c5c"),
    "seq": ("#0b5c9e", "#2f86d6"),
    "pos": ("#0b6fa8", "#2f8fd0"),
    "neg": ("#c2500a", "#c9601f"),
    "p0": ("#0072b2", "#4aa3e0"),
    "p1": ("#d55e00", "#f58345"),
    "p2": ("#009e73", "#22c79a"),
    "p3": ("#c2609a", "#e29bc6"),
    "p4": ("#d99a00", "#f2b632"),
    "p5": ("#45a8e0", "#9bdcff"),
    "p6": ("#6b6b6b", "#b9b9b9"),
    "p7": ("#7b3fa0", "#c39be8"),
    "p8": ("#8a5a2b", "#cf9f6d"),
    "p9": ("#93a300", "#d3de4c"),
}


def esc(text: object) -> str:
    """Return the text safe for HTML content and quoted attributes."""
    return html.escape(str(text), quote=True)


def colour(series: int) -> str:
    """The name of the colour of method number `series`."""
    return f"p{series % PALETTE}"


def dash(series: int) -> str:
    """The dashes of method number `series`, once colours repeat."""
    return DASHES[series // PALETTE % len(DASHES)]


def shorten(text: str, width: float) -> str:
    """Cut the middle out of a text wider than about `width` pixels: names often differ at the end."""
    room = max(int(width / CHARACTER), 0)
    tail = room // 3
    if len(text) <= room:
        return text
    return text[: max(room - tail - 1, 0)] + "\u2026" * (room > 0) + text[len(text) - tail :]


def symbol_points(symbol: str, x: float, y: float, r: float) -> list[Point]:
    """The corners of a symbol of about radius `r`; a circle has none."""
    if symbol == "cross":
        a, b = 1.1 * r, 0.4 * r
        corners = [
            (-b, -a),
            (b, -a),
            (b, -b),
            (a, -b),
            (a, b),
            (b, b),
            (b, a),
            (-b, a),
            (-b, b),
            (-a, b),
            (-a, -b),
        ]
        return [(x + u, y + v) for u, v in [*corners, (-b, -b)]]
    count, turn, size = {
        "square": (4, 45, 1.25),
        "diamond": (4, 0, 1.35),
        "triangle-up": (3, 0, 1.35),
        "triangle-down": (3, 180, 1.35),
        "pentagon": (5, 0, 1.2),
        "hexagon": (6, 0, 1.15),
        "star": (10, 0, 1.5),
    }.get(symbol, (0, 0, 1))
    corners = []
    for i in range(count):
        angle = math.radians(turn + 360 * i / count)
        length = r * size * (0.45 if symbol == "star" and i % 2 else 1)
        corners.append((x + length * math.sin(angle), y - length * math.cos(angle)))
    return corners


@dataclass(frozen=True)
class _Item:
    kind: Literal["path", "circle", "text"]
    points: Sequence[Point]
    fill: str = ""
    stroke: str = ""
    width: float = 1.0  # of the stroke; for a circle its radius is in `size`
    size: float = 11.0  # of text, or a circle's radius
    opacity: float = 1.0
    closed: bool = False
    dashes: str = ""
    text: str = ""
    anchor: Anchor = "start"
    bold: bool = False
    series: int | None = None  # the method it belongs to: the page's legend hides it
    tip: str = ""


@dataclass
class Drawing:
    """What has been drawn so far, from back to front, on a sheet of `width` x `height`."""

    width: float
    height: float
    label: str = ""
    items: list[_Item] = field(default_factory=list)

    def line(
        self,
        points: Sequence[Point],
        stroke: str,
        width: float = 1.0,
        *,
        dashes: str = "",
        series: int | None = None,
        tip: str = "",
    ) -> None:
        """Draw a line through the points."""
        self.items.append(
            _Item("path", points, stroke=stroke, width=width, dashes=dashes, series=series, tip=tip)
        )

    def area(
        self,
        points: Sequence[Point],
        fill: str,
        *,
        opacity: float = 1.0,
        stroke: str = "",
        width: float = 1.0,
        series: int | None = None,
        tip: str = "",
    ) -> None:
        """Fill a polygon."""
        self.items.append(
            _Item(
                "path",
                points,
                fill,
                stroke,
                width,
                opacity=opacity,
                closed=True,
                series=series,
                tip=tip,
            )
        )

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        opacity: float = 1.0,
        stroke: str = "",
        series: int | None = None,
        tip: str = "",
    ) -> None:
        """Fill a rectangle."""
        corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        self.area(corners, fill, opacity=opacity, stroke=stroke, width=0.6, series=series, tip=tip)

    def dot(
        self,
        x: float,
        y: float,
        r: float,
        fill: str,
        *,
        symbol: str = "circle",
        opacity: float = 1.0,
        stroke: str = "bg",
        series: int | None = None,
        tip: str = "",
    ) -> None:
        """Draw one of `SYMBOLS`, or a star, of about radius `r`."""
        if corners := symbol_points(symbol, x, y, r):
            self.area(
                corners, fill, opacity=opacity, stroke=stroke, width=0.8, series=series, tip=tip
            )
        else:
            self.items.append(
                _Item(
                    "circle",
                    [(x, y)],
                    fill,
                    stroke,
                    0.8,
                    size=r,
                    opacity=opacity,
                    series=series,
                    tip=tip,
                )
            )

    def word(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: Anchor = "start",
        fill: str = "soft",
        size: float = 11.0,
        bold: bool = False,
        series: int | None = None,
        tip: str = "",
    ) -> None:
        """Write a text whose baseline is at y."""
        self.items.append(
            _Item(
                "text",
                [(x, y)],
                fill,
                size=size,
                text=text,
                anchor=anchor,
                bold=bold,
                series=series,
                tip=tip,
            )
        )

    # -- SVG ------------------------------------------------------------------------------------------------------
    def svg(self, alone: bool = False, fit: bool = True) -> str:
        """The drawing as SVG; `alone` as a file of its own, `fit` to the width of the page."""
        box = f'viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" aria-label="{esc(self.label)}"'
        if not alone:
            size = 'class="fit"' if fit else f'width="{self.width:.0f}" height="{self.height:.0f}"'
            return f"<svg {size} {box}>{''.join(map(_svg, self.items))}</svg>"
        body = "".join(map(_svg, self.items))
        for name, (light, _) in COLOURS.items():
            body = body.replace(f"var(--{name})", light)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" height="{self.height:.0f}" {box} '
            f'font-family="Helvetica, Arial, sans-serif" font-size="11">'
            f'<rect width="100%" height="100%" fill="#ffffff"/>{body}</svg>\n'
        )

    # -- PNG ------------------------------------------------------------------------------------------------------
    def png(self, scale: float = 3.0) -> bytes:
        """The drawing as PNG, `scale` pixels to a unit."""
        from PIL import Image, ImageDraw, ImageFont

        # Drawn twice as large and then reduced, because Pillow does not smooth lines.
        zoom = 2 * scale
        image = Image.new(
            "RGB", (math.ceil(self.width * zoom), math.ceil(self.height * zoom)), "#ffffff"
        )
        draw = ImageDraw.Draw(image, "RGBA")
        for item in self.items:
            fill, stroke = _rgba(item.fill, item.opacity), _rgba(item.stroke, 1.0)
            points = [(x * zoom, y * zoom) for x, y in item.points]
            wide = max(1, round(item.width * zoom))
            if item.kind == "text":
                anchor = {"start": "ls", "middle": "ms", "end": "rs"}[item.anchor]
                font = ImageFont.load_default(item.size * zoom)
                # The built-in font has no real minus sign and no Greek.
                text = (
                    item.text.replace("\u2212", "-")
                    .replace("\u03c3", "sigma")
                    .replace("\u2013", "-")
                )
                draw.text(
                    points[0], text.replace("\u2026", ".."), fill=fill, font=font, anchor=anchor
                )
            elif item.kind == "circle":
                (x, y), r = points[0], item.size * zoom
                draw.ellipse((x - r, y - r, x + r, y + r), fill=fill, outline=stroke, width=wide)
            elif item.closed:
                draw.polygon(points, fill=fill, outline=stroke, width=wide)
            elif stroke:
                for part in _dashed(points, [float(d) * zoom for d in item.dashes.split()]):
                    draw.line(part, fill=stroke, width=wide, joint="curve")
        small = image.resize(
            (round(image.width / 2), round(image.height / 2)), Image.Resampling.LANCZOS
        )
        file = io.BytesIO()
        small.save(file, format="PNG", dpi=(72 * scale, 72 * scale))
        return file.getvalue()


def _svg(item: _Item) -> str:
    marks = [f'data-s="{item.series}"'] if item.series is not None else []
    if item.fill and item.kind != "text":
        marks.append(f'fill="{_ink(item.fill)}"')
    elif item.kind == "path":
        marks.append('fill="none"')
    if item.stroke:
        marks += [f'stroke="{_ink(item.stroke)}"', f'stroke-width="{item.width:g}"']
    if item.opacity < 1:
        marks.append(f'fill-opacity="{item.opacity:.2f}"')
    if item.dashes:
        marks.append(f'stroke-dasharray="{item.dashes}"')
    tip = f"<title>{esc(item.tip)}</title>" if item.tip else ""
    x, y = item.points[0] if item.points else (0.0, 0.0)
    given = " ".join(marks)
    if item.kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{item.size:g}" {given}>{tip}</circle>'
    if item.kind == "text":
        words = f'text-anchor="{item.anchor}" font-size="{item.size:g}" fill="{_ink(item.fill)}"'
        weight = ' font-weight="600"' if item.bold else ""
        return f'<text x="{x:.1f}" y="{y:.1f}" {words}{weight} {given}>{esc(item.text)}{tip}</text>'
    path = "L".join(f"{a:.1f} {b:.1f}" for a, b in item.points)
    return f'<path d="M{path}{"Z" if item.closed else ""}" {given}>{tip}</path>'


def _ink(name: str) -> str:
    return f"var(--{name})" if name in COLOURS else name


def _rgba(name: str, opacity: float) -> tuple[int, int, int, int] | None:
    if not name:
        return None
    text = COLOURS[name][0] if name in COLOURS else name
    red, green, blue = (int(text[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue, round(255 * opacity)


def _dashed(points: Sequence[Point], lengths: Sequence[float]) -> Iterator[list[Point]]:
    """The pieces of a line that are drawn; all of it without dashes."""
    if not lengths:
        yield list(points)
        return
    turn, left = 0, lengths[0]
    for (x, y), (u, v) in pairwise(points):
        far = math.hypot(u - x, v - y)
        done = 0.0
        while far - done > 1e-9:
            step = min(left, far - done)
            if turn % 2 == 0:
                at, to = done / far, (done + step) / far
                yield [(x + (u - x) * at, y + (v - y) * at), (x + (u - x) * to, y + (v - y) * to)]
            done, left = done + step, left - step
            if left <= 1e-9:
                turn += 1
                left = lengths[turn % len(lengths)]

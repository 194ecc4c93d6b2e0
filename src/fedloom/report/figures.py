"""The two kinds of figure, charts and heat maps, as plain values.

`static` draws them with Matplotlib, `interactive` hands them to Plotly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from .palette import CHARACTER, colour, fold, symbol

Value = float | None
Grid = Sequence[Sequence[Value]]
ABSENT = "\u2013"
WIDEST = 1100.0  # the room for the cells of a heat map, which must fit on a page
LINE = 13.0  # the height of a line of text
LONGEST = 190.0  # a label that is wider has several lines
PERCENT = (0.0, 100.0)  # what a share in percent can be


@dataclass(frozen=True)
class Axis:
    """One axis. `ticks` replaces the automatic ticks, `ends` fixes the limits.

    `whole` allows ticks at whole numbers only; `zero` makes the axis include zero.
    """

    label: str = ""
    ticks: Sequence[tuple[float, str]] = ()
    ends: tuple[float, float] | None = None
    whole: bool = False
    zero: bool = False


@dataclass(frozen=True)
class Mark:
    """Something in a chart: a line with a point at each value, a band, single dots, or bars.

    `series` is the number of the method that it belongs to. It gives the colour, unless `ink` names
    another, and lets the page's legend hide the mark.
    """

    kind: Literal["line", "band", "dots", "bars"]
    x: Sequence[float]
    y: Sequence[float]
    series: int | None = None
    name: str = ""
    ink: str = ""
    low: Sequence[float] = ()  # a band reaches from here to y
    dx: Sequence[Value] = ()  # half the length of horizontal error bars
    dy: Sequence[Value] = ()
    ends: tuple[float, float] | None = None  # what values can be; no error bar goes beyond
    tips: Sequence[str] = ()  # one for each point, or one for all
    symbol: str = ""  # of dots; without one, that of the method
    size: float = 3.0  # radius of dots, or width of bars in units of x
    opacity: float = 1.0
    edge: str = "bg"  # the colour of a dot's edge

    @property
    def colour(self) -> str:
        """The name or the value of its colour."""
        return self.ink or colour(self.series or 0)

    @property
    def sign(self) -> str:
        """The symbol of its dots."""
        return self.symbol or symbol(self.series or 0)

    def reach(self, values: Sequence[float], errors: Sequence[Value]) -> list[list[float]]:
        """How far the error bars of these values go down, and how far they go up."""
        down, up = [], []
        for value, error in zip(values, errors, strict=True):
            length = error or 0.0
            low, high = value - length, value + length
            if self.ends:
                low, high = max(low, self.ends[0]), min(high, self.ends[1])
            down.append(value - low)
            up.append(high - value)
        return [down, up]

    def tip(self, i: int) -> str:
        """The text that explains point `i`."""
        if len(self.tips) == 1:
            return self.tips[0]
        if i < len(self.tips):
            return self.tips[i]
        return ""


@dataclass(frozen=True)
class Chart:
    """Marks over two axes; sizes are in pixels."""

    title: str
    marks: Sequence[Mark]
    x: Axis
    y: Axis
    width: float = 460
    height: float = 300
    unified: bool = False  # one tip for all marks at the same x
    legend: bool = False  # it needs a legend even where the page has one for all figures
    rule: float | None = None  # a vertical line at this x, such as zero
    rule_name: str = ""  # what stands above that line
    square: bool = False  # neither axis means anything: no ticks

    @property
    def wide(self) -> bool:
        """Whether it scrolls on a phone instead of shrinking."""
        return self.width > 700

    @property
    def span(self) -> float:
        """How far apart the first and the last x are."""
        places = [x for mark in self.marks for x in mark.x]
        return max(places, default=0.0) - min(places, default=0.0)

    @property
    def rule_side(self) -> str:
        """On which side of its line the name of the rule has more room: `left` or `right`."""
        places = [self.rule or 0.0]
        for mark in self.marks:
            places += mark.x
        low, high = min(places), max(places)
        if places[0] > (low + high) / 2:
            return "left"
        return "right"

    def keys(self) -> list[Mark]:
        """One mark for every name, for the legend."""
        named: dict[str, Mark] = {}
        for mark in self.marks:
            if mark.name and mark.kind != "band":
                named[mark.name] = mark
        return list(named.values())


@dataclass(frozen=True)
class Heat:
    """Rows by columns; neighbouring columns with the same band (a domain) share a heading.

    `ends` are the values of the faintest and of the strongest colour. If the lower one is negative,
    zero is colourless and each sign has a colour of its own. Numbers are left out where they would
    not be legible.
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
        """Whether the cells show their numbers."""
        return self.numbers and len(self.columns) <= 30 and len(self.rows) <= 60

    def label(self, i: int, j: int) -> str:
        """A cell's value as text."""
        value = self.cells[i][j]
        if value is None:
            return ABSENT
        return self.show(value)

    def tip(self, i: int, j: int) -> str:
        """The text that explains a cell."""
        column = f"{self.of} {self.columns[j]}"
        if self.bands[j]:
            column += f" ({self.bands[j]})"
        return f"{self.rows[i]}, {column}: {self.label(i, j)}"

    def spans(self) -> list[tuple[int, int, str]]:
        """Bands as (first column, number of columns, name)."""
        spans: list[tuple[int, int, str]] = []
        start = 0
        for j in range(1, len(self.columns) + 1):
            if j < len(self.columns) and self.bands[j] == self.bands[start]:
                continue
            if self.bands[start]:
                spans.append((start, j - start, str(self.bands[start])))
            start = j
        return spans

    def paint(self, value: Value) -> tuple[str, float]:
        """The name of a value's colour and its strength from 0 to 1."""
        if value is None:
            return "panel", 1.0
        low, high = self.ends
        if low >= 0:
            name = "seq"
            strength = (value - low) / ((high - low) or 1.0)
        else:
            name = "pos"
            strength = abs(value) / (max(high, -low) or 1.0)
            if value < 0:
                name = "neg"
        return name, 0.04 + 0.96 * min(max(strength, 0.0), 1.0)

    def sizes(self) -> tuple[float, float, float, float]:
        """A cell's width and height, and the room left of the cells and above them."""
        count = max(len(self.columns), 1)
        cell, tall = 33.0, 26.0
        if not self.numbered:
            cell = min(20.0, WIDEST / count)
            tall = 16.0
        elif count <= 12:
            cell = 40.0
        left = 60.0
        for name in map(self.row_label, range(len(self.rows))):
            lines = name.split("\n")
            left = max(left, width_of(lines) + 10)
            tall = max(tall, LINE * len(lines) + 2)
        return cell, tall, left, self.heads(cell) + self.band_heads(cell)

    def row_label(self, i: int) -> str:
        """The name of a row, in lines."""
        return fold(self.rows[i], LONGEST)

    def upright(self, cell: float) -> bool:
        """Whether the names of columns are written upwards, because they are wider than a cell."""
        return not self.counted and width_of(self.columns) > cell - 2

    @property
    def counted(self) -> bool:
        """Whether columns have numbers for names, so that some may be left out."""
        return all(name.isdigit() for name in self.columns)

    def heads(self, cell: float) -> float:
        """The room for the names of columns."""
        if self.upright(cell):
            return width_of(self.columns) + 10
        return 20.0

    def band_heads(self, cell: float) -> float:
        """The room for the names of bands."""
        height = 0.0
        for _, span, name in self.spans():
            lines = self.band_label(span, name, cell).split("\n")
            height = max(height, LINE * len(lines) + 9)
            if self.band_upright(span, name, cell):
                height = max(height, width_of(lines) + 10)
        return height

    def band_label(self, span: int, name: str, cell: float) -> str:
        """The name of a band, in lines as wide as the band where its words are no wider."""
        room = _band_room(span, cell)
        if width_of(name.split()) > room:
            room = LONGEST
        return fold(name, room)

    def band_upright(self, span: int, name: str, cell: float) -> bool:
        """Whether the name of a band is written upwards, because it is wider than the band."""
        lines = self.band_label(span, name, cell).split("\n")
        return width_of(lines) > _band_room(span, cell)

    def band_named(self, span: int, name: str, cell: float) -> bool:
        """Whether a band has room for its name at all; tips tell it in any case."""
        lines = self.band_label(span, name, cell).split("\n")
        return not self.band_upright(span, name, cell) or span * cell >= LINE * len(lines)

    def stride(self, cell: float) -> int:
        """Label every column, or only every second, fifth, tenth ... where numbers would touch."""
        if not self.counted:
            return 1
        wide = width_of(self.columns) + 4
        for stride in (1, 2, 5, 10, 20, 50, 100, 200, 500):
            if stride * cell >= wide:
                return stride
        return 1000


def _band_room(span: int, cell: float) -> float:
    """How wide the name of a band may be."""
    return span * cell - 6


def width_of(lines: Sequence[str]) -> float:
    """About how many pixels wide the longest line is."""
    return CHARACTER * max(map(len, lines), default=0)


Figure = Chart | Heat


@dataclass(frozen=True)
class Panel:
    """A figure or PNG with heading and caption; `tab` names it where several share a place."""

    id: str
    heading: str
    caption: str
    figure: Figure | bytes
    tab: str = ""

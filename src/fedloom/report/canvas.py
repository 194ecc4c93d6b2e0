"""What Matplotlib draws on: a canvas, parts of it, the look of all figures, and files.

Matplotlib takes a second to import, so nothing but a drawing function imports it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .palette import light
from .svg import Tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Rect = tuple[float, float, float, float]  # left, bottom, width, height
FORMATS = ("svg", "pdf", "png")
# A point of Matplotlib is a pixel of ours: its SVG has 72 points to the inch.
INCH = 72.0
SHARP = 3  # pixels of a PNG, or of an image inside another format, to one of ours
STYLE: dict[str, Any] = {
    "font.size": 10.5,
    "font.family": "sans-serif",
    "svg.fonttype": "none",  # text stays text: it can be searched and takes the page's font
    "pdf.fonttype": 42,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": light("rule"),
    "axes.labelcolor": light("soft"),
    "axes.titlecolor": light("soft"),
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": light("rule"),
    "xtick.color": light("soft"),
    "ytick.color": light("soft"),
    "ytick.major.size": 0,
    "text.color": light("ink"),
    "path.simplify": False,
    "image.composite_image": False,  # images beside each other stay apart
}


@dataclass
class Sheet:
    """A Matplotlib figure under way, and what is to be known of its parts once it is SVG."""

    canvas: Canvas
    axes: Axes
    tags: dict[str, Tag] = field(default_factory=dict)

    def tag(self, artist: Any, series: int | None = None, tips: Sequence[str] = ()) -> None:
        """Remember the series of a part, and one tip for it or one for each of its points."""
        name = f"part{len(self.tags)}"
        artist.set_gid(name)
        self.tags[name] = Tag(series, tuple(tips))


class Spot(NamedTuple):
    """A part of a canvas: where it begins and what share of the whole it takes, from below left."""

    canvas: Canvas
    left: float = 0.0
    bottom: float = 0.0
    width: float = 1.0
    height: float = 1.0

    def within(self, rect: Rect) -> Rect:
        """A rectangle of this part as one of the whole canvas."""
        left, bottom, width, height = rect
        return (
            self.left + left * self.width,
            self.bottom + bottom * self.height,
            width * self.width,
            height * self.height,
        )


def style(salt: str) -> Any:
    """The look of all figures, while it is open; `salt` keeps the names in an SVG apart."""
    import matplotlib

    look: Any = {**STYLE, "svg.hashsalt": salt}
    return matplotlib.rc_context(look)


def canvas(width: float, height: float) -> Canvas:
    """An empty canvas of this many pixels."""
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width / INCH, height / INCH))


def saved(drawn: Canvas, format: str) -> bytes:
    """A canvas as a file: svg, pdf or png."""
    file = io.BytesIO()
    # Without dates, the same figure is the same file.
    undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    drawn.savefig(file, format=format, dpi=SHARP * INCH, metadata=undated.get(format))
    return file.getvalue()

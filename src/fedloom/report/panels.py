"""Several figures as one picture, as papers print them: headings above, one legend below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import static
from .canvas import Spot, canvas, saved, style
from .figures import Chart, Figure, Mark
from .palette import light
from .svg import Tag, standalone

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

HEADING = 24.0  # the room above a figure for its name
GAP = 14.0  # between two figures


@dataclass(frozen=True)
class Panels:
    """Figures with headings, in rows of `across`."""

    title: str
    figures: Sequence[tuple[str, Figure]]
    across: int = 2

    def keys(self) -> list[Mark]:
        """One mark for every name in any of the charts, for the legend."""
        named: dict[str, Mark] = {}
        for _, figure in self.figures:
            if not isinstance(figure, Chart):
                continue
            marks = figure.keys()
            for mark in marks:
                named.setdefault(mark.name, mark)
        return list(named.values())


def save(panels: Panels, format: str) -> bytes:
    """The picture as a file: svg, pdf or png."""
    tags: dict[str, Tag] = {}
    with style(panels.title):
        data = saved(_drawn(panels, tags), format)
    if format == "svg":
        return standalone(data.decode(), tags, panels.title).encode()
    return data


def _drawn(panels: Panels, tags: dict[str, Tag]) -> Canvas:
    """All figures on one canvas; each keeps its size, and a row is as high as its highest."""
    sizes = [static.size(figure) for _, figure in panels.figures]
    across = min(panels.across, len(sizes))
    cell = max(width for width, _ in sizes) + GAP
    heights = []
    for start in range(0, len(sizes), across):
        heights.append(max(height for _, height in sizes[start : start + across]) + HEADING)
    keys = panels.keys()
    width = across * cell - GAP
    beside, foot = static.legend_room(keys, width)
    total = sum(heights) + foot
    whole = canvas(width, total)
    for i, (heading, figure) in enumerate(panels.figures):
        row, column = divmod(i, across)
        left = column * cell
        top = total - sum(heights[:row])
        wide, high = sizes[i]
        middle = (left + wide / 2) / width
        at: Any = {"ha": "center", "va": "center", "color": light("ink"), "fontsize": 12}
        whole.text(middle, (top - HEADING / 2) / total, heading, **at)
        bottom = top - HEADING - high
        spot = Spot(whole, left / width, bottom / total, wide / width, high / total)
        static.draw_at(figure, spot, tags)
    if keys:
        static.add_legend(whole, keys, beside)
    return whole

"""A sheet on which the parts of a picture are placed, with the colours of the domains.

Sizes are in pixels, counted from the upper left corner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .palette import light

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 1200  # about how wide a picture gets
DOMAINS = (
    "#e67e22",
    "#279088",
    "#8e54ad",
    "#c0394b",
    "#7a9c34",
    "#345ea0",
    "#c99612",
    "#78695f",
    "#f0b68f",
    "#8ccdc7",
    "#cbaddb",
    "#96b4de",
)


def domain_colour(d: int) -> str:
    """The colour of domain number `d`."""
    return DOMAINS[d % len(DOMAINS)]


class Part(Protocol):
    """A part of the picture."""

    width: float
    height: float

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        """Draw it with its upper left corner at this place."""


class Sheet:
    """A figure on which axes and words are placed by pixels."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure

        self.width = width
        self.height = height
        self.figure = Figure(figsize=(width / 72, height / 72), facecolor="white")

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes without frame and ticks."""
        box = (
            left / self.width,
            1 - (top + height) / self.height,
            width / self.width,
            height / self.height,
        )
        axes = self.figure.add_axes(box)
        axes.tick_params(length=0, labelsize=10, labelcolor=light("soft"), pad=5)
        axes.spines[:].set_visible(False)
        axes.set(xticks=[], yticks=[])
        return axes

    def text(self, left: float, top: float, text: str, size: float, colour: str = "ink") -> None:
        """Words below and to the right of a place."""
        at = (left / self.width, 1 - top / self.height)
        self.figure.text(*at, text, size=size, color=light(colour), va="top")

    def rule(self, left: float, top: float, width: float) -> None:
        """A thin line across."""
        self.axes(left, top, width, 1).set_facecolor(light("rule"))

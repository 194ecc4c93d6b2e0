"""The colours, dashes and symbols of every figure, and how long names are shortened.

Figures name a colour (`ink`, `p0` ...) instead of giving its value: the page's style sheet defines
each name for light and for dark, so that one drawing serves both.
"""

from __future__ import annotations

CHARACTER = 6.3  # about the width in pixels of a character of 11 px text
PALETTE = 10  # how many colours for methods there are: p0 ... p9
DASHES = ("", "7 3", "2 3", "9 3 2 3")  # these tell methods apart once the colours repeat
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

# Light and dark. The method colours follow Okabe and Ito, whose palette colour-blind readers can
# tell apart, adjusted for contrast on each background.
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


def colour(series: int) -> str:
    """The name of the colour of method number `series`."""
    return f"p{series % PALETTE}"


def dashes(series: int) -> str:
    """The dashes of method number `series`, as SVG writes them; a full line has none."""
    return DASHES[series // PALETTE % len(DASHES)]


def light(name: str) -> str:
    """The value of a colour on a light background; a value such as `#0b5c9e` stays what it is."""
    if name in COLOURS:
        return COLOURS[name][0]
    return name


def shorten(text: str, width: float) -> str:
    """Cut the middle out of a text wider than `width` pixels: names often differ at the end."""
    room = max(int(width / CHARACTER), 0)
    if len(text) <= room:
        return text
    if room == 0:
        return ""
    tail = room // 3
    return text[: max(room - tail - 1, 0)] + "\u2026" + text[len(text) - tail :]

"""The colours, dashes and symbols of every figure, and how long names are broken or shortened.

Figures name a colour (`ink`, `p0` ...) instead of giving its value: the page's style sheet defines
each name for light and for dark, so that one drawing serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from textwrap import wrap
from zlib import crc32

CHARACTER = 6.3  # about the width in pixels of a character of 11 px text
PALETTE = 6  # how many colours for methods there are: p0 ... p5
# Methods that come after the sixth have a colour again, and something else beside it.
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 4", "9 3 2 3 2 3", "2 6")
HATCHES = ("", "/", "\\", "x", "-", "|", "+", ".")
# The number of a method is the same on all pages where these are the only ones.
NUMBERS = {"local": 0, "fedavg": 1, "fedavg-after": PALETTE + 1}
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

# Light and dark. A test shows that readers with any kind of colour blindness can tell the colours
# of methods apart, on both backgrounds.
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
    "p0": ("#2b2b2b", "#f0f0f0"),
    "p1": ("#56b4e9", "#9bdcff"),
    "p2": ("#c44e00", "#f58345"),
    "p3": ("#00805c", "#16a67f"),
    "p4": ("#7b3fa0", "#a36ee8"),
    "p5": ("#e69f00", "#f0b000"),
}


def slots(names: Sequence[str]) -> dict[str, int]:
    """A number for each method of a page, which gives it its colour, dashes and symbol.

    It comes from the name, so that a method looks the same wherever it is shown. Where another
    method of the page has that number, it takes the next free one.
    """
    numbers: dict[str, int] = {}
    for name in names:
        if name in NUMBERS:
            numbers[name] = NUMBERS[name]
    for name in sorted(set(names) - set(numbers)):
        numbers[name] = _free(name, set(numbers.values()))
    return numbers


def _free(name: str, taken: set[int]) -> int:
    """The first free number for a name, full lines before dashed ones.

    The colours of `local` and `fedavg` are the last choice among full lines.
    """
    others = list(range(2, PALETTE))
    start = crc32(name.encode()) % len(others)
    wanted = [*others[start:], *others[:start], 1, 0]
    for layer in count():
        for colour in wanted:
            number = PALETTE * layer + colour
            if number not in taken:
                return number
    raise AssertionError("there are always more numbers")


def colour(series: int) -> str:
    """The name of the colour of method number `series`."""
    return f"p{series % PALETTE}"


def dashes(series: int) -> str:
    """The dashes of method number `series`, as SVG writes them; a full line has none."""
    return DASHES[series // PALETTE % len(DASHES)]


def hatch(series: int) -> str:
    """What the bars of method number `series` are hatched with; those of the first six are not."""
    return HATCHES[series // PALETTE % len(HATCHES)]


def symbol(series: int) -> str:
    """What the dots of method number `series` look like."""
    return SYMBOLS[series // PALETTE % len(SYMBOLS)]


def light(name: str) -> str:
    """The value of a colour on a light background; a value such as `#0b5c9e` stays what it is."""
    if name in COLOURS:
        return COLOURS[name][0]
    return name


def fold(text: str, width: float) -> str:
    """Break a text into lines of at most `width` pixels: nothing of a label is left out."""
    room = max(int(width / CHARACTER), 4)
    return "\n".join(wrap(text, room)) or text


def shorten(text: str, width: float) -> str:
    """Cut the middle out of a text wider than `width` pixels: names often differ at the end."""
    room = max(int(width / CHARACTER), 0)
    if len(text) <= room:
        return text
    if room == 0:
        return ""
    tail = room // 3
    return text[: max(room - tail - 1, 0)] + "\u2026" + text[len(text) - tail :]

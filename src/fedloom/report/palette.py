"""The colours, dashes and symbols of every figure, and how long names are broken or shortened.

Figures name a colour (`ink`, `p0` ...) instead of giving its value: the page's style sheet defines
each name for light and for dark, so that one drawing serves both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap
from zlib import crc32

CHARACTER = 6.3  # about the width in pixels of a character of 11 px text
PALETTE = 6  # how many colours for methods there are: p0 ... p5
# Where a colour comes again, something else is beside it.
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 4", "9 3 2 3 2 3", "2 6")
HATCHES = ("", "/", "\\", "x", "-", "|", "+", ".")
# The colours of methods that are often compared, p0 to p5. Of two that share one and are on the
# same page, the earlier has the full line.
COMMON = (
    "local",
    "fedavg fedavg-after fedavg-ft",
    "fedprox fedrep fpl fedbabu fedamp fedsr ifca fedsa fediir pfedhn fedpga gpfl flora",
    "fedper moon fdse apfl fedpcl fedgh fedphp feddyn fedplvm cfl fedclip qffl tip-adapter",
    "fedbn fedrod fedtgp pfedme lg-fedavg fedpact fedfomo fedrcl fedntd fedgcr elcfs promptfl afl",
    "scaffold ditto f2dc fedproto fedala perfedavg fedheal harmofl fedlc feddtr cachefl fedsam",
)
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


def _plain(name: str) -> str:
    """A method's name as it is typed, without hyphens: papers' tables write Per-FedAvg."""
    return name.lower().replace("-", "")


_COLOUR = {_plain(name): p for p, names in enumerate(COMMON) for name in names.split()}
_PLACE = {name: place for place, name in enumerate(_COLOUR)}


def slots(names: Sequence[str]) -> dict[str, int]:
    """A number for each method of a page, which gives it its colour, dashes and symbol.

    The colour is always that of the name. The first method of a colour has a full line, common
    methods before others; each further one has dashes.
    """
    numbers: dict[str, int] = {}
    alike: Counter[int] = Counter()
    for name in sorted(set(names), key=lambda name: (_PLACE.get(_plain(name), len(_PLACE)), name)):
        own = _own_colour(name)
        numbers[name] = own + PALETTE * alike[own]
        alike[own] += 1
    return numbers


def _own_colour(name: str) -> int:
    """The number of a name's colour; those of `local` and `fedavg` are left to them."""
    plain = _plain(name)
    if plain in _COLOUR:
        return _COLOUR[plain]
    return 2 + crc32(plain.encode()) % (PALETTE - 2)


def colour(series: int) -> str:
    """The name of the colour of method number `series`."""
    return f"p{series % PALETTE}"


def _layer(series: int) -> int:
    """How many methods before number `series` have its colour."""
    return series // PALETTE


def dashes(series: int) -> str:
    """The dashes of method number `series`, as SVG writes them; a full line has none."""
    return DASHES[_layer(series) % len(DASHES)]


def hatch(series: int) -> str:
    """What the bars of method number `series` are hatched with, if another has its colour."""
    return HATCHES[_layer(series) % len(HATCHES)]


def symbol(series: int) -> str:
    """What the dots of method number `series` look like.

    Symbols do not begin again together with dashes, so that both together tell many apart.
    """
    layer = _layer(series)
    return SYMBOLS[(layer + layer // len(DASHES)) % len(SYMBOLS)]


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

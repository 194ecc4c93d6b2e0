"""A picture of a federation: who has how much of which class, from which domain, and sample images.

Matplotlib draws it. Sizes are in pixels, counted from the upper left corner.
"""

from __future__ import annotations

import io
import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.clients import SPLITS
from ..data.federation import Federation
from .contact_sheet import ContactSheet, showable
from .palette import CHARACTER, light, shorten
from .sheets import WIDTH, Part, Sheet, domain_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From one sample to the most; none is nearly white, so that one can be told from none.
RAMP = ("#d3e5f3", "#9ec7e1", "#4e91c4", "#185c9e", "#082657")
NONE, BAR = "#f6f7f9", "#3e6fad"
MARGIN = 28
SHOWN = 500  # clients drawn at most, the first ones
NUMBERED = 24  # up to this many clients, cells show their number
EACH = 12  # up to this many clients, each has a histogram of its own


def picture(federation: Federation) -> bytes:
    """The picture as a PNG."""
    file = io.BytesIO()
    draw(federation).savefig(file, format="png", dpi=72)
    return file.getvalue()


def draw(federation: Federation) -> Figure:
    """The heat map, the histograms and, for images, samples of each domain, below a heading."""
    data = federation.data
    unit = "samples"
    if data.y.ndim > 1:
        unit = "pixels"
    title = f"Training {unit} of each class"
    if len(federation) <= EACH:
        title += ", by client"
    parts: list[tuple[str, Part]] = [
        (f"Training {unit} of each client and class", Heatmap(federation)),
        (title, Histogram(federation)),
    ]
    if showable(data):
        parts.append(("What the samples look like", ContactSheet(data)))
    wide: float = 640
    height: float = 2 * MARGIN + 34
    for _, part in parts:
        wide = max(wide, part.width)
        height += part.height + 56
    lines = textwrap.wrap(_description(federation), int(wide / 6.6))
    sheet = Sheet(wide + 2 * MARGIN, height + 18 * len(lines))
    name = f"{data.name}, {federation.partition}: {len(federation)} clients"
    sheet.text(MARGIN, MARGIN, shorten(name, wide / 2), size=21)
    top: float = MARGIN + 34
    for line in lines:
        sheet.text(MARGIN, top, line, size=12, colour="soft")
        top += 18
    for heading, part in parts:
        top += 14
        sheet.rule(MARGIN, top, wide)
        sheet.text(MARGIN, top + 10, heading, size=15)
        part.draw(sheet, MARGIN, top + 42)
        top += 42 + part.height
    return sheet.figure


def _description(federation: Federation) -> str:
    """What the partition is, and how many samples each split has; each counts once."""
    sizes = []
    for split in SPLITS:
        rows = [np.arange(0)]
        for client in federation.clients:
            rows.append(getattr(client, split))
        sizes.append(f"{len(np.unique(np.concatenate(rows)))} {split}")
    return f"{federation.description} Samples: {', '.join(sizes)}.".strip()


# -- who has what --------------------------------------------------------------------------------
class Heatmap:
    """Training samples of each client (across) and class (down); a strip above shows the domains.

    Where targets are class maps, pixels are counted.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.data = federation.data
        self.clients = min(len(federation), SHOWN)
        self.counts = class_counts(federation, self.clients)
        self.mix = domain_shares(federation, self.clients)
        self.cell = max(2, min(52, (WIDTH - 160) // max(self.clients, 1)))
        self.row = max(1, min(26, 720 // len(self.data.classes)))
        self.names = [shorten(name, 130) for name in self.data.classes]
        self.left = 16 + CHARACTER * max(map(len, self.names))
        self.strip = 0
        self.head = 6
        if len(self.data.domains) > 1:
            self.strip = 14
            if (self.mix.max(1) < 1).any():  # mixtures need room
                self.strip = 28
            self.head = 30 + self.strip
        self.grid = max(self.cell * self.clients, 1), self.row * len(self.names)
        self.width: float = self.left + max(self.grid[0], 400) + 90
        self.height: float = self.head + self.grid[1] + 40

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        """Draw it with its upper left corner at this place."""
        left += self.left
        if self.strip:
            axes = sheet.axes(left, top + 24, self.grid[0], self.strip)
            self._strip(axes)
            legend(axes, self.data.domains)
        axes = sheet.axes(left, top + self.head, *self.grid)
        axes.set_facecolor(NONE)
        image = self._cells(axes)
        self._labels(axes)
        if image is not None:
            key = sheet.axes(
                left + self.grid[0] + 20, top + self.head, 13, min(max(self.grid[1], 60), 160)
            )
            bar = sheet.figure.colorbar(image, cax=key)
            bar.outline.set_visible(False)
            most = int(self.counts.max())
            ticks = sorted({1, most, round(most / 4), round(most / 2)} - {0})
            bar.set_ticks(ticks, labels=list(map(short, ticks)))
            key.tick_params(length=3, labelsize=10, labelcolor=light("soft"))

    def _strip(self, axes: Axes) -> None:
        """A bar for each client: the shares of its domains, the first on top."""
        axes.set(xlim=(-0.5, max(self.clients, 1) - 0.5), ylim=(1, 0))
        for d in range(len(self.data.domains)):
            clients = np.flatnonzero(self.mix[:, d])
            below = self.mix[clients, :d].sum(1)
            shares = self.mix[clients, d]
            axes.bar(clients, shares, bottom=below, width=0.96, color=domain_colour(d))

    def _cells(self, axes: Axes) -> Any:
        """The counts as colours, by their square roots, which keeps small ones visible."""
        from matplotlib.colors import LinearSegmentedColormap, PowerNorm

        most = int(self.counts.max(initial=0))
        if not most:
            axes.set(xlim=(-0.5, max(self.clients, 1) - 0.5), ylim=(len(self.names) - 0.5, -0.5))
            return None
        counts = np.ma.masked_equal(self.counts.T, 0)
        ramp = LinearSegmentedColormap.from_list("counts", RAMP)
        norm = PowerNorm(0.5, vmin=0, vmax=most)
        image = axes.imshow(counts, ramp, norm, aspect="auto", interpolation="nearest")
        if self.cell > 6:
            axes.set_xticks(np.arange(self.clients + 1) - 0.5, minor=True)
            axes.grid(which="minor", axis="x", color="white", linewidth=1)
        if self.row > 6:
            axes.set_yticks(np.arange(len(self.names) + 1) - 0.5, minor=True)
            axes.grid(which="minor", axis="y", color="white", linewidth=1)
        axes.tick_params(which="minor", length=0)
        if self.clients <= NUMBERED and self.row >= 12 and self.cell >= 22:
            for k, c in np.argwhere(self.counts > 0):
                count = int(self.counts[k, c])
                ink = light("ink")
                if count > 0.3 * most:
                    ink = "white"
                axes.text(k, c, short(count), ha="center", va="center", color=ink, size=9.5)
        return image

    def _labels(self, axes: Axes) -> None:
        """Class names and client numbers, as many as fit."""
        rows = range(0, len(self.names), math.ceil(13 / self.row))
        axes.set_yticks(list(rows), [self.names[c] for c in rows])
        axes.tick_params(axis="y", labelcolor=light("ink"), labelsize=11)
        stride = step(CHARACTER * len(str(self.clients)) + 8, self.cell)
        shown = list(range(0, self.clients, stride))
        axes.set_xticks(shown, list(map(str, shown)))
        note = "client"
        if self.clients < len(self.federation):
            note = f"client (the first {self.clients} of {len(self.federation)})"
        axes.set_xlabel(note, loc="left", size=11, color=light("soft"))


class Histogram:
    """Training samples of each class: of each client where these are few, else of all by domain."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.data = federation.data
        self.each = len(federation) <= EACH
        classes = len(self.data.classes)
        if self.each:
            self.bar = max(1.0, min(66.0, (WIDTH // 4 - 60) / classes))
            self.box = max(self.bar * classes, 150.0), 84
            rows = math.ceil(len(federation) / 4)
            self.width: float = min(len(federation), 4) * (self.box[0] + 58)
            self.height: float = rows * (self.box[1] + 50)
        else:
            self.bar = max(2.0, min(64.0, (WIDTH - 120) / classes))
            self.box = max(self.bar * classes, 400.0), 150
            self.width = self.box[0] + 60
            self.height = self.box[1] + 54

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        """Draw it with its upper left corner at this place."""
        if self.each:
            self._each(sheet, left, top)
        else:
            self._all(sheet, left, top)

    def _each(self, sheet: Sheet, left: float, top: float) -> None:
        """A small histogram for each client, all on one scale."""
        counts = class_counts(self.federation, len(self.federation))
        most = int(counts.max(initial=1))
        names = self.data.domains
        for k, client in enumerate(self.federation.clients):
            x = left + k % 4 * (self.box[0] + 58) + 44
            axes = sheet.axes(x, top + k // 4 * (self.box[1] + 50) + 22, *self.box)
            colour, head = BAR, f"client {k}"
            if client.domain:
                head += f", {client.domain}"
            if client.domain in names and len(names) > 1:
                colour = domain_colour(names.index(client.domain))
            axes.bar(range(len(counts[k])), counts[k], width=0.94, color=colour)
            axes.set_title(
                shorten(head, self.box[0]), loc="left", size=11, color=light("ink"), pad=4
            )
            self._scale(axes, most)

    def _all(self, sheet: Sheet, left: float, top: float) -> None:
        """One histogram of all clients' training samples, each bar made of its domains."""
        axes = sheet.axes(left + 52, top + 26, *self.box)
        counts = self._by_domain()
        below = np.zeros(len(self.data.classes))
        for d in range(counts.shape[1]):
            colour = BAR
            if counts.shape[1] > 1:
                colour = domain_colour(d)
            axes.bar(range(len(counts)), counts[:, d], bottom=below, width=0.84, color=colour)
            below += counts[:, d]
        if counts.shape[1] > 1:
            legend(axes, self.data.domains)
        self._scale(axes, max(1, int(below.max())))

    def _by_domain(self) -> np.ndarray:
        """Classes x domains: the training samples of all clients."""
        held = torch.from_numpy(np.concatenate([c.train for c in self.federation.clients]))
        domains = len(self.data.domains)
        labels = self.data.y[held].view(len(held), -1).to(torch.int64)
        cells = labels * domains + self.data.domain[held].to(torch.int64)[:, None]
        size = len(self.data.classes) * domains
        counts: np.ndarray = torch.bincount(cells.flatten(), minlength=size).numpy()
        return counts.reshape(-1, domains)

    def _scale(self, axes: Axes, most: int) -> None:
        """Lines at round counts, and class names below the bars or, without room, some numbers."""
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        classes = self.data.classes
        axes.set(xlim=(-0.5, len(classes) - 0.5), ylim=(0, 1.02 * most))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda n, _: short(int(n))))
        axes.grid(axis="y", color=light("rule"))
        axes.set_axisbelow(True)
        longest = CHARACTER * max(map(len, classes))
        if longest <= self.bar - 1 or self.bar >= 40:
            names = [shorten(name, self.bar) for name in classes]
            axes.set_xticks(range(len(classes)), names)
        else:
            stride = step(CHARACTER * len(str(len(classes))) + 6, self.bar)
            axes.set_xticks(range(0, len(classes), stride))


# -- counting and labelling ----------------------------------------------------------------------
def class_counts(federation: Federation, clients: int) -> np.ndarray:
    """Clients x classes: training samples of the first `clients` clients."""
    if not clients:
        return np.zeros((0, len(federation.data.classes)), dtype=np.int64)
    return torch.stack([federation.counts(k) for k in range(clients)]).numpy()


def domain_shares(federation: Federation, clients: int) -> np.ndarray:
    """Clients x domains: shares of each client's training samples."""
    domains = len(federation.data.domains)
    shares = np.zeros((clients, domains))
    for k in range(clients):
        held = federation.data.domain[torch.from_numpy(federation.clients[k].train)]
        if len(held):
            shares[k] = torch.bincount(held, minlength=domains).numpy() / len(held)
    return shares


def legend(axes: Axes, domains: tuple[str, ...]) -> None:
    """The names of the domains with their colours, above the axes."""
    from matplotlib.patches import Patch

    patches = []
    for d, name in enumerate(domains):
        patches.append(Patch(color=domain_colour(d), label=shorten(name, 150)))
    axes.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=min(len(domains), 8),
        frameon=False,
        fontsize=11,
        handlelength=0.9,
        handleheight=0.9,
        borderaxespad=0.2,
        borderpad=0,
    )


def step(room: float, cell: float) -> int:
    """The smallest of 1, 2, 5, 10, 20 ... cells that gives a label this much room."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power * cell >= room:
                return factor * power
        power *= 10


def short(n: int) -> str:
    """A count in about four characters: 950, 1.2k, 35k, 1.2M."""
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if n >= 10 * size:
            return f"{n / size:.0f}{letter}"
        if n >= size:
            return f"{n / size:.1f}".removesuffix(".0") + letter
    return str(n)

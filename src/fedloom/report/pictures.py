"""Pictures of a federation: who has how much of which class, from which domain, and what the samples look like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ..core.errors import FedloomError
from ..data.federation import SPLITS, Dataset, Federation

Colour = tuple[int, int, int]
Picture = Image.Image

PAPER, INK, FAINT, LINE = (255, 255, 255), (32, 36, 44), (112, 119, 130), (222, 225, 230)
BAR, EDGE = (62, 111, 173), (0, 230, 118)
# From nothing to the most: the first two are apart, so that one sample can be told from none.
RAMP = np.array(
    [(232, 240, 248), (158, 199, 225), (78, 145, 196), (24, 92, 158), (8, 38, 87)], dtype=float
)
NONE = (248, 249, 250)
DOMAINS: tuple[Colour, ...] = (
    (230, 126, 34),
    (39, 144, 136),
    (142, 84, 173),
    (192, 57, 75),
    (122, 156, 52),
    (52, 94, 160),
    (201, 150, 18),
    (120, 105, 95),
    (240, 182, 143),
    (140, 205, 199),
    (203, 173, 219),
    (150, 180, 222),
)
WIDTH = 1200  # about how wide a picture gets
SHOWN = 500  # clients drawn at most, the first ones
NUMBERED = 24  # up to so many clients, cells tell their number
EACH = 12  # up to so many clients, each has a histogram of its own


def heatmap(federation: Federation) -> Picture:
    """Training samples of each client (across) and class (down); a strip above shows the domains of each client.

    Where targets are class maps, pixels are counted.
    """
    data, clients = federation.data, min(len(federation), SHOWN)
    counts, mix = _counts(federation, clients), _mix(federation, clients)
    rows = len(data.classes)
    cell = max(2, min(52, (WIDTH - 160) // max(clients, 1)))
    high = max(1, min(26, 720 // rows))
    names = [_shorten(c, 130, 12) for c in data.classes]
    every = math.ceil(13 / high)
    left = 16 + math.ceil(max(_length(n, 12) for n in names[::every]))
    strip = (
        0 if len(data.domains) < 2 else 14 if (mix.max(1) == 1).all() else 28
    )  # mixtures need room
    legend = _legend(data.domains, max(cell * clients, 400)) if strip else None
    top = legend.height + 6 + strip + 4 if legend else 8
    grid_width, grid_height = cell * clients, high * rows
    note = (
        f"client (the first {clients} of {len(federation)})"
        if clients < len(federation)
        else "client"
    )
    wide = (
        left
        + max(grid_width + 84, (legend.width if legend else 0), math.ceil(_length(note, 12)))
        + 8
    )
    image, draw = _canvas(wide, top + grid_height + 40)
    if legend:
        image.paste(legend, (left, 0))
    most = int(counts.max()) if counts.size else 0
    colours = _shade(counts, most)
    # Drawn as an image of one pixel per cell, then enlarged; the gaps come on top.
    small = Image.fromarray(np.ascontiguousarray(colours.transpose(1, 0, 2)))
    image.paste(
        small.resize((max(grid_width, 1), grid_height), Image.Resampling.NEAREST), (left, top)
    )
    for k in range(clients if strip else 0):
        x, y = left + k * cell, float(top - strip - 4)
        for d in range(len(data.domains)):
            end = y + strip * mix[k, d]
            if round(end) > round(y):
                draw.rectangle(
                    (x, round(y), x + cell - (2 if cell > 6 else 1), round(end) - 1), _domain(d)
                )
            y = end
    if cell > 6:
        for k in range(clients + 1):
            draw.line((left + k * cell - 1, top, left + k * cell - 1, top + grid_height - 1), PAPER)
    if high > 6:
        for c in range(rows + 1):
            draw.line((left, top + c * high - 1, left + grid_width - 1, top + c * high - 1), PAPER)
    if clients <= NUMBERED and high >= 12 and cell >= 22:
        for k in range(clients):
            for c in range(rows):
                if n := int(counts[k, c]):
                    ink = PAPER if colours[k, c].mean() < 150 else INK
                    _text(
                        draw,
                        (left + (k + 0.5) * cell, top + (c + 0.5) * high),
                        _short(n),
                        11,
                        ink,
                        "mm",
                    )
    for c in range(0, rows, every):
        _text(draw, (left - 8, top + (c + 0.5) * high), names[c], 12, INK, "rm")
    step = _step(_length(str(clients), 11) + 6, cell)
    for k in range(0, clients, step):
        _text(draw, (left + (k + 0.5) * cell, top + grid_height + 4), str(k), 11, FAINT, "ma")
    _text(draw, (left, top + grid_height + 21), note, 12, FAINT, "la")
    _scale(draw, left + grid_width + 20, top, min(max(grid_height, 60), 160), most)
    return image


def histogram(federation: Federation) -> Picture:
    """Training samples of each class: of each client where they are few, else of all, coloured by domain."""
    if len(federation) <= EACH:
        return _each(federation)
    return _overall(federation)


def contact_sheet(data: Dataset, per_domain: int = 16) -> Picture:
    """Samples of each domain, a row or more each, with the classes taking turns; foregrounds of maps are outlined."""
    if not isinstance(data.x, Tensor) or data.x.ndim != 4 or data.x.dtype != torch.uint8:
        raise FedloomError(
            f"{data.name}: only images (uint8, channels, height, width) can be shown."
        )
    if data.x.shape[1] not in (1, 3):
        raise FedloomError(
            f"{data.name}: only images of 1 or 3 channels can be shown, these have {data.x.shape[1]}."
        )
    if per_domain < 1:
        raise FedloomError(f"per_domain must be at least 1, got {per_domain}.")
    height, width = data.x.shape[2:]
    factor = 2.0 if max(height, width) <= 48 else min(1.0, 128 / max(height, width))
    high, wide = max(1, round(height * factor)), max(1, round(width * factor))
    names = [_shorten(n, 150, 13) for n in data.domains]
    left, gap = 22 + math.ceil(max(_length(n, 13) for n in names)), 3
    chosen = [_turns(data, d, per_domain) for d in range(len(data.domains))]
    longest = max(1, *map(len, chosen)) if chosen else 1
    fit = max(1, (WIDTH - left) // (wide + gap))
    across = math.ceil(longest / math.ceil(longest / fit))  # lines of about the same length
    lines = [max(1, math.ceil(len(rows) / across)) for rows in chosen]
    image, draw = _canvas(
        left + across * (wide + gap), sum(lines) * (high + gap) + 8 * (len(lines) - 1)
    )
    top = 0
    for d, rows in enumerate(chosen):
        block = lines[d] * (high + gap) - gap
        draw.rectangle((0, top, 4, top + block - 1), _domain(d))
        _text(draw, (14, top + block / 2), names[d], 13, INK, "lm")
        masks = data.y[rows].numpy() if data.y.ndim == 3 else [None] * len(rows)
        for i, (pixels, mask) in enumerate(zip(data.x[rows], masks, strict=True)):
            place = (left + i % across * (wide + gap), top + i // across * (high + gap))
            image.paste(_sample(pixels, mask, wide, high), place)
        top += block + gap + 8
    return image


def picture(federation: Federation) -> Picture:
    """All of it with headings: the heat map, the histograms and, for images, samples of each domain."""
    data = federation.data
    what = "pixels" if data.y.ndim > 1 else "samples"
    each = ", by client" if len(federation) <= EACH else ""
    parts = [
        (f"Training {what} of each client and class", heatmap(federation)),
        (f"Training {what} of each class{each}", histogram(federation)),
    ]
    if (
        isinstance(data.x, Tensor)
        and data.x.ndim == 4
        and data.x.dtype == torch.uint8
        and data.x.shape[1] in (1, 3)
    ):
        parts.append(("What the samples look like", contact_sheet(data)))
    margin = 28
    wide = max(640, *(p.width for _, p in parts))
    # Clients may be tested on the same samples: each counts once.
    held = {part: [getattr(c, part) for c in federation.clients] for part in SPLITS}
    sizes = ", ".join(
        f"{len(np.unique(np.concatenate([*rows, []])))} {part}" for part, rows in held.items()
    )
    title = f"{data.name}, {federation.partition}: {len(federation)} clients"
    said = _wrap(f"{federation.description} Samples: {sizes}.".strip(), wide, 13)
    high = margin + 34 + 18 * len(said) + sum(p.height + 56 for _, p in parts) + margin - 14
    image, draw = _canvas(wide + 2 * margin, high)
    y = margin
    _text(draw, (margin, y), _shorten(title, wide, 22), 22, INK, "la")
    y += 34
    for line in said:
        _text(draw, (margin, y), line, 13, FAINT, "la")
        y += 18
    for heading, part in parts:
        y += 14
        draw.line((margin, y, margin + wide, y), LINE)
        _text(draw, (margin, y + 10), heading, 15, INK, "la")
        image.paste(part, (margin, y + 42))
        y += 42 + part.height
    return image


def _each(federation: Federation) -> Picture:
    """A small histogram for each client, all on one scale."""
    classes, clients = federation.data.classes, len(federation)
    counts = _counts(federation, clients)
    most = max(1, int(counts.max()) if counts.size else 1)
    across = min(clients, 4)
    bar = max(1, min(66, (WIDTH // 4 - 60) // len(classes)))
    wide, high, left = max(bar * len(classes), 150), 84, 44
    image, draw = _canvas(max(across, 1) * (left + wide + 14), math.ceil(clients / 4) * (high + 50))
    for k, client in enumerate(federation.clients):
        x, y = k % 4 * (left + wide + 14) + left, k // 4 * (high + 50) + 22
        head = f"client {k}" + (f", {client.domain}" if client.domain else "")
        _text(draw, (x, y - 20), _shorten(head, wide, 12), 12, INK, "la")
        names = federation.data.domains
        colour = (
            _domain(names.index(client.domain))
            if client.domain in names and len(names) > 1
            else BAR
        )
        _axis(draw, x, y, bar * len(classes), high, most)
        for c, n in enumerate(counts[k].tolist()):
            tall = math.ceil(n / most * high)
            if tall:
                draw.rectangle(
                    (x + c * bar, y + high - tall, x + c * bar + max(bar - 3, 0), y + high - 1),
                    colour,
                )
        _class_names(draw, classes, x, y + high + 4, bar)
    return image


def _overall(federation: Federation) -> Picture:
    """One histogram of all clients' training samples, each bar made of its domains."""
    data = federation.data
    held = torch.from_numpy(np.concatenate([c.train for c in federation.clients]))
    parts = len(data.domains)
    y = data.y[held].view(len(held), -1).to(torch.int64)
    cells = (y * parts + data.domain[held].to(torch.int64)[:, None]).flatten()
    counts = torch.bincount(cells, minlength=len(data.classes) * parts).view(-1, parts).numpy()
    most = max(1, int(counts.sum(1).max()))
    bar = max(2, min(64, (WIDTH - 120) // len(data.classes)))
    high, left = 150, 52
    legend = _legend(data.domains, max(bar * len(data.classes), 400)) if parts > 1 else None
    top = 10 + (legend.height + 6 if legend else 0)
    wide = left + max(bar * len(data.classes), legend.width if legend else 0) + 8
    image, draw = _canvas(wide, top + high + 24)
    if legend:
        image.paste(legend, (left, 0))
    _axis(draw, left, top, bar * len(data.classes), high, most)
    for c, row in enumerate(counts):
        below = 0
        for d, n in enumerate(row.tolist()):
            low, up = round(below / most * high), round((below + n) / most * high)
            if up > low:
                x, gap = left + c * bar, max(1, bar // 6)
                box = (
                    x + gap // 2,
                    top + high - up,
                    x + max(bar - gap, 1) - 1 + gap // 2,
                    top + high - low - 1,
                )
                draw.rectangle(box, _domain(d) if parts > 1 else BAR)
            below += n
    _class_names(draw, data.classes, left, top + high + 4, bar)
    return image


def _axis(draw: ImageDraw.ImageDraw, x: int, y: int, wide: int, high: int, most: int) -> None:
    """Lines at a few round counts from 0 to `most`, with their numbers on the left."""
    step = 10 ** math.floor(math.log10(most))
    step = next((max(step // f, 1) for f in (5, 2, 1) if most // max(step // f, 1) <= 4), step * 2)
    for n in range(0, most + 1, step):
        level = y + high - round(n / most * high)
        draw.line((x, level, x + wide - 1, level), LINE)
        _text(draw, (x - 6, level), _short(n), 10, FAINT, "rm")


def _class_names(
    draw: ImageDraw.ImageDraw, classes: Sequence[str], x: int, y: int, bar: int
) -> None:
    """Class names below bars, or only some of their numbers where names do not fit."""
    if max(_length(c, 11) for c in classes) <= bar - 1 or bar >= 40:
        for c, name in enumerate(classes):
            _text(draw, (x + (c + 0.5) * bar - 1, y), _shorten(name, bar - 2, 11), 11, FAINT, "ma")
        return
    for c in range(0, len(classes), _step(_length(str(len(classes)), 10) + 6, bar)):
        _text(draw, (x + (c + 0.5) * bar - 1, y), str(c), 10, FAINT, "ma")


def _scale(draw: ImageDraw.ImageDraw, x: int, y: int, high: int, most: int) -> None:
    """The colours' key: the most on top, none at the bottom."""
    if not most:
        return
    shades = _shade(np.linspace(1, 0, high) ** 2 * most, most)
    for i, shade in enumerate(shades):
        draw.line((x, y + i, x + 13, y + i), tuple(shade.tolist()))
    said = sorted({0, most, *(round(most * f) for f in (0.0625, 0.25, 0.5625))})
    last = math.inf
    for n in said:
        level = y + (high - 1) * (1 - math.sqrt(n / most))
        if last - level >= 13:
            draw.line((x + 14, round(level), x + 17, round(level)), FAINT)
            _text(draw, (x + 21, level), _short(n), 10, FAINT, "lm")
            last = level


def _legend(names: Sequence[str], wide: int) -> Picture:
    """Domain names with their colours, in as many lines as they need."""
    places: list[tuple[int, int, str]] = []
    x = y = right = 0
    for name in names:
        text = _shorten(name, 150, 12)
        length = 18 + math.ceil(_length(text, 12))
        if x and x + length > wide:
            x, y = 0, y + 20
        places.append((x, y, text))
        right = max(right, x + length)
        x += length + 18
    image, draw = _canvas(right + 1, y + 18)
    for d, (x, y, text) in enumerate(places):
        draw.rectangle((x, y + 3, x + 11, y + 14), _domain(d))
        _text(draw, (x + 18, y + 9), text, 12, INK, "lm")
    return image


def _turns(data: Dataset, domain: int, most: int) -> Tensor:
    """Up to `most` training samples of a domain (of any part if it has none), the classes taking turns."""
    own = data.domain == domain
    rows = (own & ~data.test).nonzero().view(-1)
    rows = rows if len(rows) else own.nonzero().view(-1)
    labels = data.labels[rows]
    order = torch.sort(labels, stable=True).indices
    first = torch.searchsorted(labels[order], labels[order])  # where each sample's class begins
    turn = torch.arange(len(rows)) - first
    return rows[order[torch.argsort(turn, stable=True)][:most]]


def _sample(pixels: Tensor, mask: np.ndarray | None, wide: int, high: int) -> Picture:
    array = pixels.expand(3, -1, -1).permute(1, 2, 0).numpy().copy()
    if mask is not None:
        array[_outline(mask)] = EDGE
    image = Image.fromarray(array)
    larger = wide > image.width
    return image.resize(
        (wide, high), Image.Resampling.NEAREST if larger else Image.Resampling.LANCZOS
    )


def _outline(mask: np.ndarray) -> np.ndarray:
    """Foreground pixels with a neighbour of another class."""
    around = np.pad(mask, 1, mode="edge")
    sides = (around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2], around[1:-1, 2:])
    edge: np.ndarray = (mask > 0) & np.any([s != mask for s in sides], axis=0)
    return edge


def _counts(federation: Federation, clients: int) -> np.ndarray:
    """Clients x classes."""
    if not clients:
        return np.zeros((0, len(federation.data.classes)), dtype=np.int64)
    return torch.stack([federation.counts(k) for k in range(clients)]).numpy()


def _mix(federation: Federation, clients: int) -> np.ndarray:
    """Clients x domains: shares of each client's training samples."""
    domains = len(federation.data.domains)
    mix = np.zeros((clients, domains))
    for k in range(clients):
        own = federation.data.domain[torch.from_numpy(federation.clients[k].train)]
        if len(own):
            mix[k] = torch.bincount(own, minlength=domains).numpy() / len(own)
    return mix


def _shade(counts: np.ndarray, most: int) -> np.ndarray:
    """Colours of counts; by their square roots, which keeps small ones visible."""
    at = np.sqrt(counts / max(most, 1)) * (len(RAMP) - 1)
    low = np.minimum(at.astype(int), len(RAMP) - 2)
    part = (at - low)[..., None]
    colours = RAMP[low] * (1 - part) + RAMP[low + 1] * part
    shaded: np.ndarray = np.where((counts > 0)[..., None], colours, NONE).round().astype(np.uint8)
    return shaded


def _domain(d: int) -> Colour:
    return DOMAINS[d % len(DOMAINS)]


def _step(room: float, cell: float) -> int:
    """The smallest round number of cells that gives a label this much room."""
    step = 1
    while step * cell < room:
        step = (
            next(s for s in (10 ** len(str(step)) // f for f in (5, 2, 1)) if s > step)
            if step > 1
            else 2
        )
    return step


def _short(n: int) -> str:
    """A count in at most four characters or so: 950, 1.2k, 35k, 1.2M."""
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if n >= size:
            return (
                f"{n / size:.0f}{letter}"
                if n >= 10 * size
                else f"{n / size:.1f}".removesuffix(".0") + letter
            )
    return str(n)


def _canvas(wide: int, high: int) -> tuple[Picture, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (max(wide, 1), max(high, 1)), PAPER)
    return image, ImageDraw.Draw(image)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _length(text: str, size: int) -> float:
    return _font(size).getlength(text)


def _text(
    draw: ImageDraw.ImageDraw,
    at: tuple[float, float],
    text: str,
    size: int,
    ink: Colour,
    anchor: str,
) -> None:
    draw.text(at, text, fill=ink, font=_font(size), anchor=anchor)


def _shorten(text: str, wide: float, size: int) -> str:
    """The text, cut off with dots if it is wider than this."""
    if _length(text, size) <= wide:
        return text
    while text and _length(text + "...", size) > wide:
        text = text[:-1]
    return text.rstrip() + "..." if text else ""


def _wrap(text: str, wide: float, size: int) -> list[str]:
    """The text in lines no wider than this."""
    lines: list[str] = []
    for word in text.split():
        if lines and _length(f"{lines[-1]} {word}", size) <= wide:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines

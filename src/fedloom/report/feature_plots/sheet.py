"""A sheet of images with maps over them, drawn by Matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..canvas import saved, style
from ..palette import light, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TILE, GAP, LABEL, HEAD = 88, 6, 20, 26  # pixels: an image, between two, below one, above all
# From blue (nothing) through yellow to red.
RAMP = np.array([[30, 60, 140], [60, 170, 190], [250, 220, 60], [230, 60, 30]], dtype=np.float64)


class Row(Protocol):
    """What a row of the sheet shows; all rows have the same images."""

    domains: list[str]
    images: list[np.ndarray]
    maps: list[np.ndarray]
    truth: list[str]
    predicted: list[str]


def sheet(rows: Sequence[tuple[str, Row]], format: str = "png") -> bytes:
    """A row of images, then a row of maps for each method or part, by name: png, svg or pdf."""
    from matplotlib.figure import Figure

    first = rows[0][1]
    left = max(70, 20 + 8 * max(len(name) for name, _ in rows))
    width = left + len(first.images) * (TILE + GAP)
    height = HEAD + (len(rows) + 1) * (TILE + LABEL + GAP)
    figure = Figure(figsize=(width / 72, height / 72), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    _domains(axes, first.domains, left)
    _row(axes, "input", left, HEAD, first.images, first.truth)
    for i, (name, row) in enumerate(rows, 1):
        images = list(map(overlay, row.images, row.maps))
        labels = list(map(_label, row.truth, row.predicted))
        _row(axes, name, left, HEAD + i * (TILE + LABEL + GAP), images, labels, row.truth)
    axes.set(xlim=(0, width), ylim=(height, 0))  # imshow has set them to its last image
    if format != "png":
        with style("sheet"):
            return saved(figure, format)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=72)
    return file.getvalue()


def _label(truth: str, predicted: str) -> str:
    if predicted == truth:
        return truth
    return f"taken for {predicted}"


def overlay(pixels: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """An image in grey with a map over it."""
    at = np.clip(heat, 0, 1) * (len(RAMP) - 1)
    low = np.minimum(at.astype(int), len(RAMP) - 2)
    part = (at - low)[..., None]
    tint = RAMP[low] * (1 - part) + RAMP[low + 1] * part
    grey = pixels.mean(2, keepdims=True)
    mixed: np.ndarray = (0.5 * grey + 0.5 * tint).round().astype(np.uint8)
    return mixed


def _domains(axes: Axes, domains: Sequence[str], left: float) -> None:
    """The name of each domain above its images."""
    start = 0
    for domain, group in groupby(domains):
        count = len(list(group))
        middle = left + (start + count / 2) * (TILE + GAP) - GAP / 2
        axes.text(middle, 12, domain, ha="center", va="center", color=light("ink"), fontsize=13)
        start += count


def _row(
    axes: Axes,
    name: str,
    left: float,
    top: float,
    images: Sequence[np.ndarray],
    labels: Sequence[str],
    truth: Sequence[str] | None = None,
) -> None:
    """Images with a name before them and a label below each, which stands out where it is wrong."""
    middle = top + TILE / 2
    axes.text(left - 10, middle, name, ha="right", va="center", color=light("ink"), fontsize=13)
    for j, (image, label) in enumerate(zip(images, labels, strict=True)):
        x = left + j * (TILE + GAP)
        axes.imshow(
            image, extent=(x, x + TILE, top + TILE, top), interpolation="bicubic", aspect="auto"
        )
        ink = light("soft")
        if truth is not None and label != truth[j]:
            ink = light("neg")
        text = shorten(label, TILE)
        axes.text(x + TILE / 2, top + TILE + 10, text, ha="center", va="center", color=ink)

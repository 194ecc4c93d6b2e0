"""Sample images of each domain, side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..data.federation import Dataset
from .palette import CHARACTER, shorten
from .sheets import WIDTH, Sheet, domain_colour

OUTLINE = (0, 230, 118)
GAP = 3  # between two sample images


def showable(data: Dataset) -> bool:
    """Whether the samples are images of one or three channels."""
    images = isinstance(data.x, Tensor) and data.x.ndim == 4 and data.x.dtype == torch.uint8
    return bool(images and data.x.shape[1] in (1, 3))


@dataclass
class ContactSheet:
    """Samples of each domain, a row or more each, with the classes taking turns.

    The foreground of a class map is outlined.
    """

    data: Dataset
    per_domain: int = 16

    def __post_init__(self) -> None:
        data = self.data
        if not isinstance(data.x, Tensor) or data.x.ndim != 4 or data.x.dtype != torch.uint8:
            raise FedloomError(
                f"{data.name}: only images (uint8, channels, height, width) can be shown."
            )
        if data.x.shape[1] not in (1, 3):
            raise FedloomError(
                f"{data.name}: only images of 1 or 3 channels can be shown, "
                f"these have {data.x.shape[1]}."
            )
        if self.per_domain < 1:
            raise FedloomError(f"per_domain must be at least 1, got {self.per_domain}.")
        size = max(data.x.shape[2:])
        self.factor = min(1.0, 128 / size)
        if size <= 48:
            self.factor = 2.0
        self.names = [shorten(name, 150) for name in data.domains]
        self.left = 22 + CHARACTER * max(map(len, self.names))
        self.mosaics = self._mosaics()
        self.sizes: list[tuple[float, float]] = []
        widest = 0.0
        self.height = 0.0
        for mosaic in self.mosaics:
            high, wide = self.factor * mosaic.shape[0], self.factor * mosaic.shape[1]
            self.sizes.append((wide, high))
            widest = max(widest, wide)
            self.height += high + 11
        self.width = self.left + widest

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        """Draw it with its upper left corner at this place."""
        how = "antialiased"
        if self.factor >= 1:
            how = "nearest"
        for d, (wide, high) in enumerate(self.sizes):
            sheet.axes(left, top, 5, high).set_facecolor(domain_colour(d))
            sheet.text(left + 14, top + high / 2 - 7, self.names[d], size=12)
            axes = sheet.axes(left + self.left, top, wide, high)
            axes.imshow(self.mosaics[d], aspect="auto", interpolation=how)
            top += high + 11

    def _mosaics(self) -> list[np.ndarray]:
        """One image for each domain, in lines of about the same length."""
        chosen = []
        longest = 1
        for domain in range(len(self.data.domains)):
            chosen.append(turns(self.data, domain, self.per_domain))
            longest = max(longest, len(chosen[-1]))
        wide = self.factor * self.data.x.shape[3] + GAP
        fitting = max(1, int((WIDTH - self.left) // wide))
        across = math.ceil(longest / math.ceil(longest / fitting))
        return [self._mosaic(rows, across) for rows in chosen]

    def _mosaic(self, rows: Tensor, across: int) -> np.ndarray:
        """Samples side by side on white."""
        high, wide = self.data.x.shape[2:]
        gap = max(1, round(GAP / self.factor))
        lines = max(1, math.ceil(len(rows) / across))
        size = (lines * (high + gap) - gap, across * (wide + gap) - gap, 3)
        mosaic = np.full(size, 255, dtype=np.uint8)
        for i, row in enumerate(rows.tolist()):
            top, left = i // across * (high + gap), i % across * (wide + gap)
            mosaic[top : top + high, left : left + wide] = self._sample(row)
        return mosaic

    def _sample(self, row: int) -> np.ndarray:
        (image,) = self.data.x[torch.tensor([row])]
        pixels = image.expand(3, -1, -1).permute(1, 2, 0).numpy().copy()
        if self.data.y.ndim == 3:
            pixels[outline(self.data.y[row].numpy())] = OUTLINE
        return pixels


def turns(data: Dataset, domain: int, most: int) -> Tensor:
    """Up to `most` training samples of a domain (any samples if it has none), class after class."""
    belongs = data.domain == domain
    rows = (belongs & ~data.test).nonzero().view(-1)
    if not len(rows):
        rows = belongs.nonzero().view(-1)
    labels = data.labels[rows]
    order = torch.sort(labels, stable=True).indices
    first = torch.searchsorted(labels[order], labels[order])  # where each sample's class begins
    turn = torch.arange(len(rows)) - first
    return rows[order[torch.argsort(turn, stable=True)][:most]]


def outline(mask: np.ndarray) -> np.ndarray:
    """Foreground pixels with a neighbour of another class."""
    around = np.pad(mask, 1, mode="edge")
    differs = np.zeros(mask.shape, dtype=bool)
    for side in (around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2], around[1:-1, 2:]):
        differs |= side != mask
    edge: np.ndarray = (mask > 0) & differs
    return edge

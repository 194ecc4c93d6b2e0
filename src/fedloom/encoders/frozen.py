"""Frozen encoders with their preprocessing as one module, for models that leave the engine.

`Preprocess` asks torch to scale bytes, in whole numbers. No other runtime rounds as torch does, so
here scaling is a product with the weights that torch uses. It gives torch's bytes; bicubic scaling
to a fraction of the size may be off by one level in one pixel of fifty thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Preprocess
from .encoder import Encoder

BITS = 15  # torch keeps the weights of scaled bytes in this many bits, and a sign
MOST_SHIFT = 22


def _triangle(x: Tensor) -> Tensor:
    """The bilinear filter."""
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    """The bicubic filter, with the free parameter -1/2."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = -0.5 * (((x - 5) * x + 8) * x - 4)
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


# By kind of scaling: the filter, and how far it reaches.
FILTERS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "bilinear": (_triangle, 1),
    "bicubic": (_cubic, 2),
}


def weights(before: int, after: int, kind: str) -> tuple[Tensor, int]:
    """The whole numbers (after x before) that scale a row of bytes; rows sum up to 2^shift.

    A filter is stretched over all pixels that a smaller image sums up (antialiasing).
    """
    shape, reach = FILTERS[kind]
    scale = before / after
    stretch = max(scale, 1.0)
    centre = scale * (torch.arange(after, dtype=torch.float64)[:, None] + 0.5)
    pixel = torch.arange(before, dtype=torch.float64)
    first = (centre - reach * stretch + 0.5).trunc().clamp(min=0)
    stop = (centre + reach * stretch + 0.5).trunc().clamp(max=before)
    exact = shape((pixel - centre + 0.5) * (1 / stretch)) * ((pixel >= first) & (pixel < stop))
    exact = exact * (1 / exact.sum(1, keepdim=True))
    largest = float(exact.max())
    shift = 0
    while shift < MOST_SHIFT and int(0.5 + largest * 2 ** (shift + 1)) < 2**BITS:
        shift += 1
    scaled = exact * 2**shift
    whole = torch.where(scaled < 0, (scaled - 0.5).ceil(), (scaled + 0.5).floor())
    return whole.float(), shift  # sums stay below 2^24, so floats hold them exactly


class Scaled(nn.Module):
    """Images of bytes, as floats, at another height and width: first across, then down."""

    across: Tensor | None
    down: Tensor | None

    def __init__(self, before: tuple[int, int], after: tuple[int, int], kind: str) -> None:
        super().__init__()
        across = down = None
        self.across_shift = self.down_shift = 0
        if before[1] != after[1]:
            across, self.across_shift = weights(before[1], after[1], kind)
        if before[0] != after[0]:
            down, self.down_shift = weights(before[0], after[0], kind)
        self.register_buffer("across", across, persistent=False)
        self.register_buffer("down", down, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.across is not None:
            x = _shifted(x @ self.across.T, self.across_shift)
        if self.down is not None:
            x = _shifted(self.down @ x, self.down_shift)
        return x


def _shifted(sums: Tensor, shift: int) -> Tensor:
    """Bytes again, rounded."""
    return torch.floor((sums + 2 ** (shift - 1)) / 2**shift).clamp(0, 255)


class Picked(nn.Module):
    """Images at another height and width, each pixel that of the nearest place."""

    rows: Tensor
    columns: Tensor

    def __init__(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        super().__init__()
        for name, old, new in zip(("rows", "columns"), before, after, strict=True):
            line = torch.arange(old, dtype=torch.float32)[None, None]
            chosen = F.interpolate(line, new, mode="nearest")[0, 0].long()
            self.register_buffer(name, chosen, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(2, self.rows).index_select(3, self.columns)


class Prepared(nn.Module):
    """`Preprocess` for images of one shape (channels, height, width)."""

    mean: Tensor
    std: Tensor

    def __init__(self, how: Preprocess, shape: tuple[int, int, int]) -> None:
        super().__init__()
        # Refuses what cannot be prepared; that needs no numbers.
        how(torch.zeros(1, *shape, dtype=torch.uint8, device="meta"))
        self.grey = shape[0] == 1
        before = (shape[1], shape[2])
        after = (how.size, how.size)
        if how.edge is not None:
            scale = how.edge / min(before)
            after = (round(before[0] * scale), round(before[1] * scale))
        self.size = how.size
        self.top, self.left = (after[0] - how.size) // 2, (after[1] - how.size) // 2
        self.scale: nn.Module = nn.Identity()
        if after != before and how.resample == "nearest":
            self.scale = Picked(before, after)
        elif after != before:
            self.scale = Scaled(before, after, how.resample)
        self.register_buffer("mean", torch.tensor(how.mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(how.std)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        x = images.to(torch.float32)
        if self.grey:
            x = x.repeat(1, 3, 1, 1)
        x = self.scale(x)
        x = x[:, :, self.top : self.top + self.size, self.left : self.left + self.size]
        return (x / 255 - self.mean) / self.std


class Frozen(nn.Module):
    """Images of bytes -> the features of encoders, side by side.

    With `pixels` an encoder's preprocessed image stands in front of its features, as in
    `data.views.WithPixels`.
    """

    def __init__(
        self, encoders: Sequence[Encoder], shape: tuple[int, int, int], pixels: bool = False
    ) -> None:
        super().__init__()
        self.pixels = pixels
        self.shape = shape
        self.prepare = nn.ModuleList()
        self.networks = nn.ModuleList()
        for encoder in encoders:
            chain = [encoder.module]
            while encoder.base is not None:
                encoder = encoder.base
                chain.insert(0, encoder.module)
            self.prepare.append(Prepared(encoder.preprocess, shape))
            self.networks.append(nn.Sequential(*chain))

    def forward(self, images: Tensor) -> Tensor:
        rows = []
        for prepare, network in zip(self.prepare, self.networks, strict=True):
            pixels = prepare(images)
            if self.pixels:
                rows.append(pixels.flatten(1))
            rows.append(network(pixels))
        return torch.cat(rows, dim=1)

"""How images get one size: scaled as a whole, or as a frozen encoder wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from PIL import Image

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


@dataclass(frozen=True)
class Cut:
    """An encoder's own way to a square: `side` x `side` pixels.

    With `crop` the shorter side is scaled to that many and the centre kept; without it both sides
    are scaled.
    """

    side: int
    crop: bool
    resample: Literal["nearest", "bilinear", "bicubic"]

    def __call__(self, image: Image.Image) -> Image.Image:
        """The image as a square."""
        if not self.crop:
            return image.resize((self.side, self.side), RESAMPLING[self.resample])
        scale = self.side / min(image.size)
        width, height = (max(self.side, round(length * scale)) for length in image.size)
        left, top = (width - self.side) // 2, (height - self.side) // 2
        scaled = image.resize((width, height), RESAMPLING[self.resample])
        return scaled.crop((left, top, left + self.side, top + self.side))


# What becomes of images: a number of pixels scales all of them to a square, None leaves them as
# they are (then they need one size), and a function gives the cut for those that have several.
Fit = int | Callable[[], Cut] | None


def fitted(image: Image.Image, size: int | Cut | None) -> Image.Image:
    """The image at the size that is asked for."""
    if isinstance(size, Cut):
        return size(image)
    if size is not None and image.size != (size, size):
        return image.resize((size, size), Image.Resampling.BILINEAR)
    return image

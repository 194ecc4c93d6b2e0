"""Changes to whole batches of images, N x channels x height x width, of bytes or floats.

The type of the numbers is kept. Random changes draw from the generator that they receive, which is
the CPU's, once per sample, whatever the images show and wherever they are. They move images only:
class maps that belong to them stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import FedloomError, unknown


def crop(x: Tensor, g: torch.Generator, padding: int = 4) -> Tensor:
    """Each image cut out at a random place after `padding` zeros were added on every side."""
    _images(x)
    if padding < 0:
        raise FedloomError(f"padding must not be negative, got {padding}.")
    n, _, height, width = x.shape
    down, right = torch.randint(0, 2 * padding + 1, (2, n), generator=g).to(x.device)
    padded = F.pad(x, (padding,) * 4)
    # A view of every window there is; only the chosen ones are copied.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(n, device=x.device), :, down, right]


def flip(x: Tensor, g: torch.Generator) -> Tensor:
    """Each image mirrored left to right with probability 0.5."""
    _images(x)
    chosen = (torch.rand(len(x), generator=g) < 0.5).to(x.device)
    return torch.where(chosen[:, None, None, None], x.flip(3), x)


def rotate(x: Tensor, g: torch.Generator, degrees: float = 30) -> Tensor:
    """Each image turned about its centre by an angle drawn evenly from `-degrees` to `degrees`."""
    _images(x)
    angle = (torch.rand(len(x), generator=g) * 2 - 1) * math.radians(degrees)
    angle = angle.to(x.device)
    if x.numel() == 0:
        return x
    _, _, height, width = x.shape
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # The grid's coordinates run from -1 to 1 along either side: the ratio keeps squares square.
    turn = torch.stack(
        [cos, -sin * (height / width), zero, sin * (width / height), cos, zero], 1
    ).view(-1, 2, 3)
    floats = x
    if x.dtype != torch.float64:
        floats = x.to(torch.float32)
    grid = F.affine_grid(turn.to(floats.dtype), list(x.shape), align_corners=False)
    turned = F.grid_sample(floats, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    if x.dtype == torch.uint8:
        turned = turned.round_().clamp_(0, 255)
    return turned.to(x.dtype)


def resize(x: Tensor, size: int | tuple[int, int]) -> Tensor:
    """The images at `size`, bilinear and antialiased; one number stands for height and width."""
    _images(x)
    if isinstance(size, int):
        size = (size, size)
    height, width = size
    if height < 1 or width < 1:
        raise FedloomError(f"images cannot be resized to {height} x {width} pixels.")
    if x.shape[2:] == (height, width):
        return x
    return F.interpolate(x, (height, width), mode="bilinear", align_corners=False, antialias=True)


def to_rgb(x: Tensor) -> Tensor:
    """The images with three channels: grey ones are repeated, coloured ones stay as they are."""
    _images(x)
    if x.shape[1] not in (1, 3):
        raise FedloomError(
            f"only images of 1 or 3 channels can become RGB, these have {x.shape[1]}."
        )
    if x.shape[1] == 1:
        x = x.repeat(1, 3, 1, 1)
    return x


AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "crop": crop,
    "flip": flip,
    "rotate": rotate,
}


def augment(x: Tensor, names: Sequence[str], g: torch.Generator) -> Tensor:
    """The batch after the augmentations called `names` (crop, flip, rotate), in that order."""
    for name in names:
        if name not in AUGMENTATIONS:
            raise unknown("augmentation", name, AUGMENTATIONS)
    _images(x)
    for name in names:
        x = AUGMENTATIONS[name](x, g)
    return x


def _images(x: Tensor) -> None:
    if x.ndim != 4 or not (x.dtype == torch.uint8 or x.is_floating_point()):
        kind = str(x.dtype).removeprefix("torch.")
        raise FedloomError(
            "this needs images (samples, channels, height, width) of uint8 or floats, "
            f"but the batch is {kind} of shape {tuple(x.shape)}."
        )

"""A small U-Net: features for every pixel, from what lies around it at several scales."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Split, Task, image, positive, register


def _conv(inputs: int, outputs: int, norm: bool) -> list[nn.Module]:
    # Without a norm, which would cancel it, the convolution has a bias.
    between: list[nn.Module] = [nn.BatchNorm2d(outputs)] if norm else []
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=not norm), *between, nn.ReLU()]


class UNet(nn.Module):
    """The body: `depth` times down by two, and up again, joined on the way with what was seen on the way down.

    The full resolution has `width` channels, every other one twice as many.
    """

    def __init__(self, channels: int, width: int, depth: int, norm: bool) -> None:
        super().__init__()
        sizes = [width] + [2 * width] * depth
        self.down = nn.ModuleList(
            nn.Sequential(*_conv(inputs, outputs, norm), *_conv(outputs, outputs, norm))
            for inputs, outputs in zip([channels, *sizes], sizes, strict=False)
        )
        self.up = nn.ModuleList(
            nn.Sequential(*_conv(sizes[level + 1] + sizes[level], sizes[level], norm))
            for level in reversed(range(depth))
        )
        self.multiple = 2**depth

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        # The last row and column are repeated, and cut off at the end, where the sides do not halve evenly.
        if height % self.multiple or width % self.multiple:
            x = F.pad(x, (0, -width % self.multiple, 0, -height % self.multiple), mode="replicate")
        seen: list[Tensor] = []
        for stage in self.down:
            x = stage(F.max_pool2d(x, 2) if seen else x)
            seen.append(x)
        seen.pop()
        for stage in self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = stage(torch.cat([x, seen.pop()], 1))
        return x[:, :, :height, :width]


@register("unet")
def unet(task: Task, *, width: int = 16, depth: int = 3, norm: bool = True) -> Split:
    """A U-Net of `depth` halvings and `width` features per pixel; the head is a 1x1 convolution to class scores."""
    positive("unet", width=width, depth=depth)
    channels, *_ = image("unet", task, least=2**depth)
    return Split(UNet(channels, width, depth, norm), nn.Conv2d(width, task.classes, 1), width)

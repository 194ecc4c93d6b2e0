"""A small U-Net: features for every pixel, from what lies around it at several scales."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Split, Task, image, positive, register
from .norms import Norm, chosen, normalised


def _conv(inputs: int, outputs: int, norm: Norm) -> list[nn.Module]:
    # BatchNorm would cancel the bias of the convolution in front of it; the others bring their own.
    bias = norm == "none"
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias)]
    if norm != "none":
        layers.append(normalised(norm, outputs))
    return [*layers, nn.ReLU()]


class UNet(nn.Module):
    """The body: the image is halved `depth` times and enlarged again.

    On the way up every resolution is joined with its map from the way down. The full resolution has
    `width` channels, every other one twice as many.
    """

    def __init__(self, channels: int, width: int, depth: int, norm: Norm) -> None:
        super().__init__()
        sizes = [width] + [2 * width] * depth
        self.down = nn.ModuleList()
        inputs = channels
        for size in sizes:
            self.down.append(nn.Sequential(*_conv(inputs, size, norm), *_conv(size, size, norm)))
            inputs = size
        self.up = nn.ModuleList()
        for level in reversed(range(depth)):
            joined = sizes[level + 1] + sizes[level]
            self.up.append(nn.Sequential(*_conv(joined, sizes[level], norm)))
        self.multiple = 2**depth

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        # Where the sides do not halve evenly, the last row and column are repeated, and cut off at
        # the end.
        if height % self.multiple or width % self.multiple:
            x = F.pad(x, (0, -width % self.multiple, 0, -height % self.multiple), mode="replicate")
        seen: list[Tensor] = []
        for stage in self.down:
            if seen:
                x = F.max_pool2d(x, 2)
            x = stage(x)
            seen.append(x)
        seen.pop()
        for stage in self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = stage(torch.cat([x, seen.pop()], 1))
        return x[:, :, :height, :width]


@register("unet")
def unet(
    task: Task,
    *,
    width: Annotated[int, "Features per pixel at full resolution."] = 16,
    depth: Annotated[int, "How many times the image is halved."] = 3,
    norm: Annotated[
        bool | Norm,
        "What stands behind each convolution: none (false), batch (true), group, layer.",
    ] = True,
) -> Split:
    """A small U-Net for segmentation; the head is a 1x1 convolution to class scores."""
    positive("unet", width=width, depth=depth)
    channels, *_ = image("unet", task, least=2**depth)
    body = UNet(channels, width, depth, chosen("unet", norm))
    return Split(body, nn.Conv2d(width, task.classes, 1), width)

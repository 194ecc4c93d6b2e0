"""Residual networks of basic blocks: a small one of 10 layers and the usual one of 18."""

from typing import Annotated, Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import unknown
from .base import Split, Task, image, positive, register
from .norms import Norm, chosen, normalised

Stem = Literal["imagenet", "small"]


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    # No bias: the batch norm that follows every convolution would cancel it, and without one a
    # residual network does well without biases too.
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class _Sampled(nn.Conv2d):
    """A 1x1 convolution with a stride, which looks only at the pixels that the stride selects.

    It computes what `nn.Conv2d` does. With fewer than eight channels, the CPU kernel behind the
    backward pass of `nn.Conv2d` (torch 2.13, channels-last order) writes past its buffer and
    corrupts memory.
    """

    def forward(self, x: Tensor) -> Tensor:
        down, right = self.stride
        return F.conv2d(x[:, :, ::down, ::right], self.weight)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    if stride > 1 and inputs < 8:
        return _Sampled(inputs, outputs, 1, stride, bias=False)
    return _conv(inputs, outputs, 1, stride)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm = "batch") -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.bn1 = normalised(norm, outputs)
        self.conv2 = _conv(outputs, outputs, 3, 1)
        self.bn2 = normalised(norm, outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                _shortcut(inputs, outputs, stride), normalised(norm, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        result: Tensor = self.relu(inner + self.shortcut(x))
        return result


class MeanOfMap(nn.AdaptiveAvgPool2d):
    """The mean of each channel's map, as a vector.

    The layer it replaces sets strides by hand, which stacked clients (client/fast/stacked.py)
    cannot.
    """

    def __init__(self) -> None:
        super().__init__(1)

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class ResNet(nn.Module):
    """The body of a residual network.

    `features` gives the last feature map, `pool` makes it a vector. `blocks` counts the basic
    blocks of each stage; every stage after the first doubles `width` and halves the map. The
    "imagenet" stem quarters the image before the first stage, the "small" one keeps its size.
    """

    def __init__(
        self,
        channels: int,
        blocks: tuple[int, ...],
        width: int = 64,
        stem: Stem = "imagenet",
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        self.features = nn.Sequential()
        if stem == "imagenet":
            self.features.add_module("conv", _conv(channels, width, kernel=7, stride=2))
        else:
            self.features.add_module("conv", _conv(channels, width, kernel=3, stride=1))
        self.features.add_module("bn", normalised(norm, width))
        self.features.add_module("relu", nn.ReLU())
        if stem == "imagenet":
            self.features.add_module("maxpool", nn.MaxPool2d(3, stride=2, padding=1))
        inputs = width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            layers = nn.Sequential()
            for block in range(count):
                stride = 1
                if stage > 0 and block == 0:
                    stride = 2
                layers.append(BasicBlock(inputs, outputs, stride, norm))
                inputs = outputs
            self.features.add_module(f"stage{stage + 1}", layers)
        self.pool = MeanOfMap()
        self.width = inputs
        for layer in self.modules():  # norms already start at weight 1, bias 0
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        vector: Tensor = self.pool(self.features(x))
        return vector


@register("resnet10")
def resnet10(
    task: Task,
    *,
    width: Annotated[int, "Channels of the first of the four stages."] = 64,
    norm: Annotated[
        bool | Norm,
        "What stands behind each convolution: batch (true), group, layer, none (false).",
    ] = "batch",
) -> Split:
    """A residual network with one block in each of four stages, behind the small stem."""
    positive("resnet10", width=width)
    body = ResNet(
        image("resnet10", task)[0], (1, 1, 1, 1), width, "small", chosen("resnet10", norm)
    )
    return Split(body, nn.Linear(body.width, task.classes), body.width)


@register("resnet18")
def resnet18(
    task: Task,
    *,
    width: Annotated[int, "Channels of the first of the four stages."] = 64,
    stem: Annotated[Stem, "First layers: imagenet, or small for 32-pixel images."] = "imagenet",
    norm: Annotated[
        bool | Norm,
        "What stands behind each convolution: batch (true), group, layer, none (false).",
    ] = "batch",
) -> Split:
    """A residual network with two blocks in each of four stages."""
    positive("resnet18", width=width)
    if stem not in get_args(Stem):
        raise unknown("stem of model 'resnet18'", str(stem), get_args(Stem))
    body = ResNet(image("resnet18", task)[0], (2, 2, 2, 2), width, stem, chosen("resnet18", norm))
    return Split(body, nn.Linear(body.width, task.classes), body.width)

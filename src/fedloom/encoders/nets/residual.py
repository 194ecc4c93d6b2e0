"""Residual networks with the names of torchvision's weight files, without the last layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

STAGES = ("layer1", "layer2", "layer3", "layer4")


@dataclass(frozen=True)
class Stem:
    """The first convolution, and the side of the images that it is for."""

    kernel: int
    padding: int
    size: int


IMAGENET_STEM = Stem(7, 3, 224)  # torchvision's
URT_STEM = Stem(5, 1, 84)  # that of SUR and URT on Meta-Dataset, whose networks FedPCL uses


class Basic(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        result: Tensor = self.relu(inner + self.downsample(x))
        return result


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, and a shortcut; the stride is in the middle."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu(self.bn1(self.conv1(x)))
        inner = self.relu(self.bn2(self.conv2(inner)))
        result: Tensor = self.relu(self.bn3(self.conv3(inner)) + self.downsample(x))
        return result


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A residual network up to the mean of its last map; the tensors say how wide it is."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        blocks: tuple[int, ...],
        block: type[Basic] | type[Bottleneck],
        stem: Stem = IMAGENET_STEM,
        size: int | None = None,
    ) -> None:
        super().__init__()
        self.size = size or stem.size
        width = tensors["conv1.weight"].shape[0]
        self.conv1 = nn.Conv2d(3, width, stem.kernel, 2, stem.padding, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        inputs = width
        for stage, count in enumerate(blocks):
            layers = nn.Sequential()
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                layers.append(block(inputs, width * 2**stage, stride))
                inputs = block.expansion * width * 2**stage
            self.add_module(STAGES[stage], layers)
        self.dim = inputs

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in STAGES:
            x = getattr(self, stage)(x)
        return x.mean((2, 3))

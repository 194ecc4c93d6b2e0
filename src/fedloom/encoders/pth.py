"""Encoders from weight files of named networks: `pth:resnet18:FILE`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError, unknown
from .base import Preprocess, fitted, remembered
from .encoder import IMAGE, Encoder
from .nets.attention import ViT
from .nets.names import mlp_names, vit_names
from .nets.plain import Mlp, alexnet, vgg11
from .nets.residual import IMAGENET_STEM, URT_STEM, Basic, Bottleneck, ResNet, Stem
from .vision import Tokens, Vision
from .weights import read_weights

Tensors = Mapping[str, Tensor]
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


class TokenVision(Vision):
    """A ViT of this package."""

    model: ViT

    @property
    def size(self) -> int:
        """The side of the images it takes."""
        return self.model.size

    @property
    def width(self) -> int:
        """How many numbers a token has."""
        return self.model.width

    @property
    def dim(self) -> int:
        """How many features it gives."""
        return self.width

    def forward(self, pixels: Tensor) -> Tensor:
        self.check(pixels)
        features: Tensor = self.model(pixels)
        return features

    def tokens(self, pixels: Tensor, extra: Tensor | None = None) -> Tokens:
        self.check(pixels)
        appended = self.expanded(pixels.shape[0], extra)
        tokens = self.model.tokens(pixels, appended)
        end = tokens.shape[1] - appended.shape[1]
        return Tokens(tokens[:, 0], tokens[:, 1:end], tokens[:, end:])


@dataclass(frozen=True)
class Architecture:
    """A network by name: how it is built for tensors, and what images it was trained on.

    `build` gets the tensors and, if the user names one, the side of images; it gives a module with
    `dim` and `size`. `crop` is the share of a scaled image's shorter side that is kept.
    """

    build: Callable[[Tensors, int | None], Any]
    heads: tuple[str, ...]  # how the names of tensors begin that the features do not need
    renamed: Callable[[Tensors], dict[str, Tensor]] = dict
    normal: tuple[tuple[float, float, float], tuple[float, float, float]] = IMAGENET
    resample: Literal["bilinear", "bicubic"] = "bilinear"
    crop: float | None = 0.875

    def preprocess(self, size: int, whole: bool) -> Preprocess:
        """What becomes of images; `whole` ones are scaled and not cropped."""
        edge = None
        if self.crop is not None and not whole:
            edge = int(size / self.crop)
        return Preprocess(size, *self.normal, self.resample, edge)


def _vit(tensors: Tensors, _size: int | None) -> TokenVision:
    width, _, patch, _ = tensors["conv1.weight"].shape
    side = round((len(tensors["positional_embedding"]) - 1) ** 0.5)
    blocks = {name.split(".")[2] for name in tensors if name.startswith("transformer.")}
    hidden = tensors["transformer.resblocks.0.mlp.c_fc.weight"].shape[0]
    return TokenVision(ViT(side * patch, patch, width, len(blocks), hidden))


def _residual(
    blocks: tuple[int, ...], block: type[Basic] | type[Bottleneck], stem: Stem = IMAGENET_STEM
) -> Callable[[Tensors, int | None], ResNet]:
    return lambda tensors, size: ResNet(tensors, blocks, block, stem, size)


def _mlp(tensors: Tensors, _size: int | None) -> Mlp:
    return Mlp(tensors)


_TORCHVISION_VIT = Architecture(_vit, ("heads.",), vit_names)
_TIMM_VIT = Architecture(
    _vit, ("head.", "head_dist.", "pre_logits.", "fc_norm."), vit_names, HALVES, "bicubic", 0.9
)
ARCHITECTURES = {
    "resnet18": Architecture(_residual((2, 2, 2, 2), Basic), ("fc.",)),
    "resnet34": Architecture(_residual((3, 4, 6, 3), Basic), ("fc.",)),
    "resnet50": Architecture(_residual((3, 4, 6, 3), Bottleneck), ("fc.",)),
    "resnet18_urt": Architecture(
        _residual((2, 2, 2, 2), Basic, URT_STEM), ("fc.", "cls_fn."), normal=HALVES, crop=None
    ),
    "alexnet": Architecture(alexnet, ("classifier.6.",)),
    "vgg11": Architecture(vgg11, ("classifier.6.",)),
    "mlp": Architecture(_mlp, (), mlp_names, HALVES, crop=None),
    "vit_b_16": _TORCHVISION_VIT,
    "vit_b_32": _TORCHVISION_VIT,
    "vit_tiny_patch16_224": _TIMM_VIT,
    "vit_small_patch16_224": _TIMM_VIT,
    "vit_base_patch16_224": _TIMM_VIT,
    "vit_base_patch32_224": _TIMM_VIT,
}
NAME = re.compile(r"(?P<name>[^@:]+)(@(?P<size>[1-9][0-9]{0,3}))?:(?P<file>.+)", re.DOTALL)


class WeightFile:
    """The weights of a named network in a file; `size` is the side of images that a user wants."""

    def __init__(self, name: str, size: int | None, file: Path) -> None:
        if name not in ARCHITECTURES:
            raise unknown("network", name, ARCHITECTURES)
        self.architecture = ARCHITECTURES[name]
        self.name, self.size, self.file = name, size, file

    def network(self) -> tuple[Any, dict[str, Tensor]]:
        """The network without numbers, and the file's tensors for it."""
        try:
            named = self.architecture.renamed(read_weights(self.file))
            with torch.device("meta"):  # a file may lie about sizes
                network = self.architecture.build(named, self.size)
        except (KeyError, ValueError, RuntimeError) as error:
            raise FedloomError(
                f"the tensors in {self.file} are not those of a {self.name} ({error})."
            ) from None
        if self.size not in (None, network.size):
            raise FedloomError(
                f"the {self.name} in {self.file} takes images of {network.size} pixels, not of "
                f"{self.size}."
            )
        unused = (*self.architecture.heads, *getattr(network, "unused", ()))
        kept = {name: tensor for name, tensor in named.items() if not name.startswith(unused)}
        return network, kept

    def load(self) -> nn.Module:
        """The network with its weights."""
        network, tensors = self.network()
        inner = network.model if isinstance(network, Vision) else network
        fitted(inner, tensors, str(self.file))
        module: nn.Module = network
        return module


@IMAGE.register("pth:")
def pth(rest: str) -> Encoder:
    """AlexNet, VGG-11, ResNet-18/34/50, ViT or MLP with a weight file: `pth:resnet18:FILE`."""
    parts = NAME.fullmatch(rest)
    if parts is None:
        raise FedloomError(
            f"pth:{rest} should name a network and a file of weights, as in pth:resnet18:FILE."
        )
    asked = int(parts["size"]) if parts["size"] else None
    weights = WeightFile(parts["name"], asked, Path(parts["file"]))
    dim, size = _dim_and_size(weights.file, weights.name, asked)
    return Encoder(
        name=f"pth:{rest}",
        dim=dim,
        preprocess=weights.architecture.preprocess(size, whole=asked is not None),
        load=weights.load,
        files=(weights.file,),
        settings=f"{weights.name} {size}",
    )


@remembered
def _dim_and_size(file: Path, name: str, asked: int | None) -> tuple[int, int]:
    """How many features a network in a file gives, and the side of the images that it takes."""
    network, _ = WeightFile(name, asked, file).network()
    return network.dim, network.size

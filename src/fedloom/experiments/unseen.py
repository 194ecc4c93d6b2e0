"""What frozen networks cost that nobody has brought yet: built from their published sizes alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..encoders.nets import clip
from ..encoders.nets.attention import ViT
from ..encoders.nets.residual import URT_STEM, Basic, ResNet


@dataclass(frozen=True)
class Unseen:
    """A published network; tensors without numbers suffice to count what it computes."""

    build: Callable[[], nn.Module]
    side: int  # of the images that it takes
    dim: int  # features that it gives

    def made(self) -> tuple[nn.Module, Tensor]:
        """The network, and an image for it."""
        with torch.device("meta"):
            return self.build(), torch.zeros(1, 3, self.side, self.side)


def _urt() -> ResNet:
    return ResNet({"conv1.weight": torch.zeros(64, 3, 5, 5)}, (2, 2, 2, 2), Basic, URT_STEM, 64)


# By the names under which the recipes ask for their files.
UNSEEN = {
    "clip:RN50.pt": Unseen(lambda: clip.ResNet((3, 4, 6, 3), 64, 7, 1024), 224, 1024),
    "clip:ViT-B-16.pt": Unseen(lambda: ViT(224, 16, 768, 12, 3072, joint=512), 224, 512),
    "pth:vit_b_16:FILE": Unseen(lambda: ViT(224, 16, 768, 12, 3072), 224, 768),
    "pth:vit_tiny_patch16_224:FILE": Unseen(lambda: ViT(224, 16, 192, 12, 768), 224, 192),
    "pth:vit_small_patch16_224:FILE": Unseen(lambda: ViT(224, 16, 384, 12, 1536), 224, 384),
    "pth:vit_base_patch16_224:FILE": Unseen(lambda: ViT(224, 16, 768, 12, 3072), 224, 768),
    "pth:resnet18_urt@64:FILE": Unseen(_urt, 64, 512),
}

"""Stand-ins for timm and torchvision, which follow what is published of their interfaces."""

from __future__ import annotations

import enum
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

SIDE = 32  # of the images that the networks below take


class TimmNet(nn.Module):
    """As networks of timm: `get_classifier` and `reset_classifier`, and a config of their weights.

    Without a classifier, `forward` gives pooled features.
    """

    def __init__(self, num_classes: int = 1000, pretrained: bool = False) -> None:
        super().__init__()
        self.conv_stem = nn.Conv2d(3, 8, 3, stride=4, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.num_features, self.num_classes = 8, num_classes
        self.fc = nn.Linear(8, num_classes)
        self.sizes: list[tuple[int, ...]] = []
        if pretrained:
            nn.init.constant_(self.conv_stem.weight, 0.5)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        self.fc = nn.Linear(8, num_classes) if num_classes else nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        self.sizes.append(tuple(x.shape))
        maps: Tensor = torch.relu(self.bn1(self.conv_stem(x)))
        return maps

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        pooled = x.mean((2, 3))
        logits: Tensor = pooled if pre_logits else self.fc(pooled)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def timm() -> dict[str, ModuleType]:
    """The modules `timm` and `timm.data`."""
    package: Any = ModuleType("timm")
    data: Any = ModuleType("timm.data")

    def create_model(
        model_name: str, pretrained: bool = False, checkpoint_path: str = "", **kwargs: Any
    ) -> TimmNet:
        if model_name != "tiny":
            raise RuntimeError(f"Unknown model ({model_name})")
        net = TimmNet(pretrained=pretrained, **kwargs)
        if checkpoint_path:
            net.load_state_dict(torch.load(checkpoint_path, weights_only=True))
        return net

    def resolve_model_data_config(model: nn.Module) -> dict[str, Any]:
        return {
            "input_size": (3, SIDE, SIDE),
            "interpolation": "bicubic",
            "mean": (0.1, 0.2, 0.3),
            "std": (0.5, 0.6, 0.7),
            "crop_pct": 0.8,
            "crop_mode": "center",
        }

    package.create_model = create_model
    data.resolve_model_data_config = resolve_model_data_config
    package.data = data
    return {"timm": package, "timm.data": data}


class Interpolation(enum.Enum):
    """As torchvision's enum: names of Pillow's filters."""

    BILINEAR = "bilinear"


class ResNetLike(nn.Module):
    """Its head is `fc`, and it has a classifier beside the way that only training uses."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=4)
        self.aux_logits = True
        self.aux1: nn.Module | None = nn.Linear(8, 1000)
        self.fc = nn.Linear(8, 1000)

    def forward(self, x: Tensor) -> Any:
        pooled = self.conv1(x).mean((2, 3))
        if self.training and self.aux_logits:
            return self.fc(pooled), self.aux1 and self.aux1(pooled)
        return self.fc(pooled)


class EfficientNetLike(nn.Module):
    """Its head is the last layer of `classifier`."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 8, 3, stride=4)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 1000))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


class ViTLike(nn.Module):
    """Its head is `heads.head`, and it takes images of one size only."""

    def __init__(self) -> None:
        super().__init__()
        self.image_size = SIDE
        self.conv_proj = nn.Conv2d(3, 8, 8, stride=8)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(8, 1000))

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[2:] == (SIDE, SIDE)
        logits: Tensor = self.heads(self.conv_proj(x).mean((2, 3)))
        return logits


class SqueezeNetLike(nn.Module):
    """Its head is a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Conv2d(3, 1000, 1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(x).mean((2, 3))
        return logits


NETS = {
    "resnet_like": ResNetLike,
    "efficientnet_like": EfficientNetLike,
    "vit_like": ViTLike,
    "squeezenet_like": SqueezeNetLike,
}


def torchvision() -> dict[str, ModuleType]:
    """The modules `torchvision` and `torchvision.models`."""
    package: Any = ModuleType("torchvision")
    models: Any = ModuleType("torchvision.models")
    transforms = SimpleNamespace(
        crop_size=[SIDE],
        resize_size=[40],
        mean=[0.485, 0.456, 0.406],
        std=[0.229, 0.224, 0.225],
        interpolation=Interpolation.BILINEAR,
    )
    default = SimpleNamespace(transforms=lambda: transforms)

    def get_model(name: str, **config: Any) -> nn.Module:
        net = NETS[name]()
        if config.get("weights") is default:
            with torch.no_grad():
                next(net.parameters()).fill_(0.5)
        return net

    models.list_models = lambda: sorted(NETS)
    models.get_model_weights = lambda name: SimpleNamespace(DEFAULT=default)
    models.get_model = get_model
    package.models = models
    return {"torchvision": package, "torchvision.models": models}


def inject(monkeypatch: pytest.MonkeyPatch, modules: dict[str, ModuleType]) -> None:
    """Let `import` find these modules."""
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)

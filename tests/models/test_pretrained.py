"""Networks that start from published weights and are trained on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.encoders import image
from fedloom.models import Task, build
from fedloom.testing.weights import make

TASK = Task((3, 20, 20), 4, mean=(0.5,), std=(0.5,))


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> str:
    name = make("resnet18", Path(tmp_path_factory.mktemp("w")) / "resnet18")
    return name.replace("resnet18:", "resnet18@32:", 1)


def test_it_starts_where_the_weights_are_and_all_of_it_is_trained(resnet) -> None:
    model = build("pretrained", TASK, weights=resnet)
    pixels = torch.randint(0, 256, (3, 3, 20, 20), dtype=torch.uint8)
    model.eval()
    found = model.body((pixels / 255 - 0.5) / 0.5)
    wanted = image(resnet).encode(pixels)
    # The encoder scales bytes, which are rounded; a model scales fractions.
    assert torch.allclose(found, wanted, atol=0.02 * float(wanted.abs().max()))
    assert all(p.requires_grad for p in model.parameters())
    model.train()
    model((pixels / 255 - 0.5) / 0.5).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert not any(p.requires_grad for p in image(resnet).module.parameters())


def test_what_it_cannot_take(resnet) -> None:
    with pytest.raises(FedloomError, match="model 'pretrained' needs images"):
        build("pretrained", Task((7,), 4), weights=resnet)
    with pytest.raises(FedloomError, match="there is no file of weights"):
        build("pretrained", TASK, weights="pth:resnet18:nowhere.pth")

"""A network that starts from published weights and is trained on."""

from __future__ import annotations

import copy
from typing import Annotated

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError
from ..encoders import image as image_encoder
from .base import Split, Task, image, register


class Pretrained(nn.Module):
    """An encoder's network as a body: it sees images as the encoder prepares them."""

    mean: Tensor
    std: Tensor

    def __init__(self, weights: str, task: Task) -> None:
        super().__init__()
        encoder = image_encoder(weights)
        if encoder.base is not None:
            raise FedloomError(
                f"{weights} stands on the features of {encoder.base.name}; train that one."
            )
        self.width = encoder.dim
        self.preprocess = encoder.preprocess
        self.network = copy.deepcopy(encoder.module).requires_grad_(True)
        self.register_buffer("mean", torch.tensor(task.mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(task.std)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.network(self.preprocess.from_floats(x * self.std + self.mean))
        return features


@register("pretrained")
def pretrained(
    task: Task,
    *,
    weights: Annotated[
        str, "The encoder whose network and weights are the start, such as pth:resnet18:FILE."
    ] = "vit-mini",
) -> Split:
    """The network of an image encoder with its weights, all of it trained, under a new head."""
    image("pretrained", task)
    body = Pretrained(weights, task)
    return Split(body, nn.Linear(body.width, task.classes), body.width)

"""A network that starts from published weights and is trained on."""

from __future__ import annotations

import copy
from typing import Annotated

from ..core.errors import FedloomError
from ..encoders import image as image_encoder
from .base import Split, Task, image, register
from .seen import Images, Projection, headed


@register("pretrained")
def pretrained(
    task: Task,
    *,
    weights: Annotated[
        str, "The encoder whose network and weights are the start, such as pth:resnet18:FILE."
    ] = "vit-mini",
    frozen: Annotated[bool, "Whether only what is new, such as the head, is trained."] = False,
    projection: Projection = None,
) -> Split:
    """The network of an image encoder with its weights, trained or frozen, under a new head."""
    image("pretrained", task)
    encoder = image_encoder(weights)
    if encoder.base is not None:
        raise FedloomError(
            f"{weights} stands on the features of {encoder.base.name}; train that one."
        )
    network = copy.deepcopy(encoder.module).requires_grad_(not frozen)
    return headed(Images(network, encoder.preprocess, task), encoder.dim, task, projection)

"""The four-layer convolutional network common in personalised federated learning."""

from typing import Annotated

from torch import nn

from .base import Split, Task, image, positive, register
from .norms import Norm, chosen, normalised


def _stage(inputs: int, outputs: int, norm: Norm) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 5)]
    if norm != "none":
        layers.append(normalised(norm, outputs))
    return [*layers, nn.ReLU(), nn.MaxPool2d(2)]


def _side_after(side: int) -> int:
    """The side of an image after two stages of an unpadded 5x5 convolution and a halving."""
    return ((side - 4) // 2 - 4) // 2


@register("cnn")
def cnn(
    task: Task,
    *,
    width: Annotated[int, "Channels of the first convolution; the second has twice as many."] = 32,
    features: Annotated[int, "Width of the feature vector in front of the head."] = 512,
    norm: Annotated[
        bool | Norm,
        "What stands behind each convolution: none (false), batch (true), group, layer.",
    ] = False,
) -> Split:
    """Two 5x5 convolutions (`width`, then twice as many channels), pooled, and one dense layer."""
    positive("cnn", width=width, features=features)
    # Below 16 pixels two unpadded convolutions and poolings leave nothing.
    channels, height, breadth = image("cnn", task, least=16)
    kind = chosen("cnn", norm)
    body = nn.Sequential(
        *_stage(channels, width, kind),
        *_stage(width, 2 * width, kind),
        nn.Flatten(),
        nn.Linear(2 * width * _side_after(height) * _side_after(breadth), features),
        nn.ReLU(),
    )
    return Split(body, nn.Linear(features, task.classes), features)

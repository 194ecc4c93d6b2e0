"""The four-layer convolutional network common in personalised federated learning."""

from torch import nn

from .base import Split, Task, image, positive, register


def _stage(inputs: int, outputs: int, norm: bool) -> list[nn.Module]:
    between: list[nn.Module] = [nn.BatchNorm2d(outputs)] if norm else []
    return [nn.Conv2d(inputs, outputs, 5), *between, nn.ReLU(), nn.MaxPool2d(2)]


@register("cnn")
def cnn(task: Task, *, width: int = 32, features: int = 512, norm: bool = False) -> Split:
    """Two 5x5 convolutions (`width`, then twice that many channels) with pooling, and a layer of `features`."""
    positive("cnn", width=width, features=features)
    # Below 16 pixels two unpadded convolutions and poolings leave nothing.
    channels, *sides = image("cnn", task, least=16)
    height, breadth = (((side - 4) // 2 - 4) // 2 for side in sides)
    body = nn.Sequential(
        *_stage(channels, width, norm),
        *_stage(width, 2 * width, norm),
        nn.Flatten(),
        nn.Linear(2 * width * height * breadth, features),
        nn.ReLU(),
    )
    return Split(body, nn.Linear(features, task.classes), features)

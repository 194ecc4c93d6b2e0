"""A network from elsewhere as a body: it sees samples as it wants them, under a head of our own."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError
from .base import Split, Task, positive
from .projection import Unit

if TYPE_CHECKING:
    from ..encoders import Preprocess


Projection = Annotated[
    int | None,
    "Width to which a layer that is trained projects the features, whatever their own number.",
]


class Images(nn.Module):
    """A network that sees images as `preprocess` makes them of those that were normalised here."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, preprocess: Preprocess, task: Task) -> None:
        super().__init__()
        self.network, self.preprocess = network, preprocess
        self.register_buffer("mean", torch.tensor(task.mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(task.std)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.network(self.preprocess.from_floats(x * self.std + self.mean))
        return features


def headed(
    body: nn.Module, width: int, task: Task, projection: int | None = None, **again: Any
) -> Split:
    """The body under a new head for the task's classes.

    With a `projection`, so many numbers are made of its features before, as FedPCL does it: a
    linear layer without bias, a ReLU and scaling to length 1.
    """
    if projection is not None:
        positive("projection", projection=projection)
        linear = nn.Linear(width, projection, bias=False)
        body, width = nn.Sequential(body, linear, nn.ReLU(), Unit()), projection
    return Split(body, nn.Linear(width, task.classes), width, again=again)


def freeze(network: nn.Module, new: Collection[str] = ()) -> None:
    """Freeze a network, but for tensors that are `new`: random weights have to be trained."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in new)


@torch.no_grad()
def width_of(name: str, body: nn.Module, task: Task) -> int:
    """How many features a body gives for one of the task's samples."""
    body.eval()
    features = body(torch.zeros(1, *task.shape))
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = getattr(features, "shape", type(features).__name__)
        raise FedloomError(f"the body of {name} gives no vector of features but {shape}.")
    return features.shape[1]


def side(name: str, size: int | None, usual: Any) -> int:
    """The side of the images that a network sees: the one that is wanted, or its own."""
    if size is None:
        size = usual
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise FedloomError(f"option 'size' of model '{name}' must be at least 1, not {size!r}.")
    return size

"""What FedPCL and its baselines train: a projection of frozen features to the unit sphere."""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import unknown
from .base import Split, Task, numbers, positive, register

HEADS = ("linear", "official")


class Unit(nn.Module):
    """Rows scaled to length 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


@register("projection")
def projection(
    task: Task,
    *,
    features: Annotated[int, "Width of the projected feature vector."] = 256,
    head: Annotated[str, "A linear head, or the official one of FedPCL's code."] = "linear",
) -> Split:
    """A linear layer without bias, a ReLU and scaling to length 1; a linear head without bias.

    With `head="official"` class scores pass through a ReLU and are scaled to length 1 too, as in
    FedPCL's published code: they lie between 0 and 1, so no sample can be given more than
    1 / (1 + (classes - 1) / e) of certainty.
    """
    positive("projection", features=features)
    if head not in HEADS:
        raise unknown("head of projection", head, HEADS)
    linear = nn.Linear(numbers("projection", task), features, bias=False)
    body = nn.Sequential(nn.Flatten(), linear, nn.ReLU(), Unit())
    top: nn.Module = nn.Linear(features, task.classes, bias=False)
    if head == "official":
        top = nn.Sequential(top, nn.ReLU(), Unit())
    return Split(body, top, features)

"""A projection of frozen features to the unit sphere, and a head on it: what FedPCL and its baselines train."""

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
def projection(task: Task, *, features: int = 256, head: str = "linear") -> Split:
    """One linear layer without bias to `features` numbers, a ReLU, scaled to length 1; a linear head without bias.

    With `head="official"` class scores go through a ReLU and are scaled to length 1 too, as in FedPCL's published code:
    they lie between 0 and 1, so that no sample can be given more than 1 / (1 + (classes - 1) / e) of certainty.
    """
    positive("projection", features=features)
    if head not in HEADS:
        raise unknown("head of projection", head, HEADS)
    linear = nn.Linear(numbers("projection", task), features, bias=False)
    body = nn.Sequential(nn.Flatten(), linear, nn.ReLU(), Unit())
    top = nn.Linear(features, task.classes, bias=False)
    return Split(body, top if head == "linear" else nn.Sequential(top, nn.ReLU(), Unit()), features)

"""A projection of frozen features to the unit sphere, and a linear head on it: what FedPCL and its baselines train."""

import torch.nn.functional as F
from torch import Tensor, nn

from .base import Split, Task, numbers, positive, register


class Unit(nn.Module):
    """Rows scaled to length 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1)


@register("projection")
def projection(task: Task, *, features: int = 256) -> Split:
    """One linear layer without bias to `features` numbers, a ReLU, scaled to length 1; a linear head without bias."""
    positive("projection", features=features)
    linear = nn.Linear(numbers("projection", task), features, bias=False)
    body = nn.Sequential(nn.Flatten(), linear, nn.ReLU(), Unit())
    return Split(body, nn.Linear(features, task.classes, bias=False), features)

"""The levels of a network, for losses that look inside it."""

from __future__ import annotations

from torch import Tensor, nn

from ..core.local import Seen
from ..models.base import Added, layers


def levels(body: nn.Module) -> list[nn.Module]:
    """The last ReLU of every stage of a body, in order; their inputs are the levels' features.

    Stages are the children of the body or, where all parameters are in one child, of that child,
    and so on. For our residual networks these are the stem and the four residual stages.
    """
    stages = _stages(body)
    while len(holders := [m for m in stages if any(True for _ in m.parameters())]) == 1 and _stages(
        holders[0]
    ):
        stages = _stages(holders[0])
    found = [[m for m in layers(stage) if isinstance(m, nn.ReLU)] for stage in stages]
    return [relus[-1] for relus in found if relus]


def _stages(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.children() if not isinstance(m, Added)]


def vectors(seen: Seen) -> Tensor:
    """What went into a module as one vector per sample: maps are averaged over their places."""
    return seen.input.flatten(2).mean(2) if seen.input.ndim > 2 else seen.input

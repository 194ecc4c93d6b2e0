"""The layers of a network, for methods that look inside it."""

from __future__ import annotations

from torch import Tensor, nn

from ..models.base import Added, layers


def levels(body: nn.Module) -> list[nn.Module]:
    """The last ReLU of every stage of a body, in order; their inputs are the levels' features.

    Stages are the children of the body or, where all parameters are in one child, of that child,
    and so on. For our residual networks these are the stem and the four residual stages.
    """
    last_relus: list[nn.Module] = []
    for stage in _stages(body):
        relus = [m for m in layers(stage) if isinstance(m, nn.ReLU)]
        if relus:
            last_relus.append(relus[-1])
    return last_relus


def _stages(module: nn.Module) -> list[nn.Module]:
    stages = [m for m in module.children() if not isinstance(m, Added)]
    trained = [m for m in stages if next(m.parameters(), None) is not None]
    if len(trained) == 1:
        return _stages(trained[0]) or stages
    return stages


def leaves(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that have no modules inside them, with their names, in order."""
    return [(name, m) for name, m in module.named_modules() if not list(m.children())]


def with_parameters(module: nn.Module) -> list[nn.Module]:
    """The modules that have parameters of their own, in order."""
    return [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None]


def vectors(features: Tensor) -> Tensor:
    """One vector per sample: maps are averaged over their places."""
    if features.ndim == 2:
        return features
    return features.flatten(2).mean(2)

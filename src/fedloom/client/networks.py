"""The networks of a federation whose clients do not all have the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..core.errors import FedloomError
from ..core.lookup import methods_with

Shapes = Mapping[str, tuple[int, ...]]  # of tensors, by name


@dataclass(frozen=True)
class Named:
    """A network by the name of its model and the model's options."""

    model: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Networks:
    """Several networks, how they are named, and which of them each client has."""

    modules: tuple[nn.Module, ...]
    named: tuple[Named, ...]
    owned: tuple[int, ...]  # by client, those outside last


def refuse_one_network(name: str, accepted: str) -> None:
    """Refuse networks that differ for a method whose clients all need the same one."""
    if accepted != "same":
        return
    others = methods_with(lambda traits: traits.networks != "same")
    raise FedloomError(
        f"clients of {name} all need the same network; another one for each client is possible "
        f"with {', '.join(others)}."
    )


def refuse_other_weights(name: str, named: Sequence[Named], shapes: Sequence[Shapes]) -> None:
    """Refuse networks of which a method sends weights that do not fit each other."""
    if all(one == shapes[0] for one in shapes):
        return
    models = ", ".join(one.model for one in named)
    raise FedloomError(
        f"with these settings clients of {name} send weights, and those of {models} do not fit "
        "each other: all clients need the same network."
    )


def refuse_other_widths(name: str, named: Sequence[Named], widths: Sequence[int]) -> None:
    """Refuse networks whose features do not fit together."""
    if len(set(widths)) == 1:
        return
    told = [f"{one.model} has {width}" for one, width in zip(named, widths, strict=True)]
    raise FedloomError(
        f"with {name} the networks of all clients need equally many features: {', '.join(told)}; "
        "options of the models set their number (`fedloom settings`)."
    )

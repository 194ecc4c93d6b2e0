"""What an adapter is, and the registry of adapters.

An adapter is a function of a network with a `body` and a `head`. It says what is trained, by
`requires_grad`, and may add modules; a parameter that is not trained never travels. It is applied
once, when the network has been built and before a method extends it:

    @register("name")
    def name(model, *, option: Annotated[int, "What it does."] = 1) -> nn.Module: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from ..core.device import CPU
from ..core.errors import FedloomError, unknown
from ..core.registry import Registry
from ..core.rng import key
from ..core.settings import keyword_options, refuse_nameless

Adapter = Callable[..., nn.Module]
Function = TypeVar("Function", bound=Adapter)
ADAPTERS: Registry[Adapter] = Registry(
    "adapter", "fedloom.adapters", "fedloom.adapters", decorator="register"
)


def register(name: str) -> Callable[[Function], Function]:
    """Make a function `(model, *, option=default, ...) -> model` available as `name`."""

    def add(adapter: Function) -> Function:
        refuse_nameless(name, adapter)
        ADAPTERS.add(name, adapter)
        return adapter

    return add


def options(name: str) -> dict[str, Any]:
    """The options of an adapter with their defaults."""
    return {key: option.default for key, option in keyword_options(ADAPTERS.find(name)).items()}


def doc(name: str) -> str:
    """The first paragraph of an adapter's docstring, on one line."""
    return " ".join((inspect.getdoc(ADAPTERS.find(name)) or "").split("\n\n")[0].split())


def adapt(model: nn.Module, name: str, seed: int = 0, **given: Any) -> nn.Module:
    """The network, itself, with the adapter called `name`; new weights depend on the seed only."""
    for option in given:
        if option not in options(name):
            raise unknown(f"option of adapter '{name}'", option, options(name))
    if not (hasattr(model, "body") and hasattr(model, "head")):
        raise FedloomError(
            "an adapter needs a network with a body and a head; fedloom.models.split makes them."
        )
    with CPU.seeded(key(seed, "adapter")):
        return ADAPTERS.find(name)(model, **given)


def freeze_body(model: Any) -> None:
    """Leave only the head to be trained."""
    model.requires_grad_(False)
    model.head.requires_grad_(True)

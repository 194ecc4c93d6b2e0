"""Low-rank factors in a network, whoever put them there, and how they become part of its weights.

`lora` makes layers of class `LowRank`. Those of the package `peft` are recognised by their
attributes, so a network that arrives with them needs no import of it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core.errors import FedloomError
from ..core.tree import Tree


@dataclass(frozen=True)
class Pair:
    """The two factors of one layer: what is added to its weight is `scale * B A`."""

    a: str  # the name of A's tensor in the model
    b: str
    scale: float
    moved: str | None = None  # the name of what else is added to the weight, see `movable`

    def product(self, tensors: Tree) -> Tensor:
        """What these factors add to the weight, as a matrix with a row for each output."""
        return self.scale * tensors[self.b].flatten(1) @ tensors[self.a].flatten(1)


class Moved(nn.Module):
    """What a server has added to a frozen weight. It is no parameter: nothing trains it."""

    delta: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("delta", torch.zeros_like(weight))


class LowRank(nn.Module):
    """A layer that stays as it is, and beside it two factors: `down` is A, `up` is B."""

    def __init__(
        self, layer: nn.Module, down: nn.Module, up: nn.Module, scale: float, dropout: float
    ) -> None:
        super().__init__()
        self.layer, self.down, self.up = layer, down, up
        self.scale = scale
        self.dropout = nn.Dropout(dropout)
        self.moved: Moved | None = None

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(self.down(self.dropout(x)))
        if self.moved is None:
            result: Tensor = self.layer(x)
        else:
            result = functional_call(self.layer, {"weight": self.own}, (x,))
        return result + self.scale * added

    @property
    def own(self) -> Tensor:
        """The layer's weight without the factors."""
        weight: Any = self.layer.weight
        return weight if self.moved is None else weight + self.moved.delta

    @property
    def weight(self) -> Tensor:
        """The weight that the layer and its factors amount to.

        Modules of torch read it where they compute with a layer's weight and never call the layer.
        """
        return self.own + self.added()

    @property
    def bias(self) -> Any:
        """The layer's own bias."""
        return self.layer.bias

    def added(self) -> Tensor:
        """`scale * B A`, in the shape of the weight."""
        up, down, own = self.up.weight, self.down.weight, self.layer.weight
        assert isinstance(up, Tensor) and isinstance(down, Tensor) and isinstance(own, Tensor)
        return (self.scale * up.flatten(1) @ down.flatten(1)).view_as(own)

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """The layer with its factors in its weight."""
        weight: Any = self.layer.weight
        weight.copy_(self.weight)
        return self.layer


def factors(model: nn.Module) -> list[Pair]:
    """The low-rank factors in a network, in its order."""
    return [pair for name, module in model.named_modules() for pair in _pairs(name, module)]


def movable(model: nn.Module) -> nn.Module:
    """The network, itself, with room beside each frozen weight for what a server adds to it."""
    for module in list(model.modules()):
        if isinstance(module, LowRank):
            module.moved = Moved(module.own)
        elif of_peft(module):
            raise FedloomError("layers of peft have no room for that: say --set by=fedloom.")
    return model


def _pairs(name: str, module: Any) -> Iterator[Pair]:
    if isinstance(module, LowRank):
        moved = f"{name}.moved.delta" if module.moved is not None else None
        yield Pair(f"{name}.down.weight", f"{name}.up.weight", module.scale, moved)
    elif of_peft(module):
        for adapter in module.lora_A:
            a, b = f"{name}.lora_A.{adapter}.weight", f"{name}.lora_B.{adapter}.weight"
            yield Pair(a, b, float(module.scaling[adapter]))


def of_peft(module: Any) -> bool:
    """Whether this is a layer of peft's with low-rank factors."""
    return hasattr(module, "lora_A") and hasattr(module, "get_base_layer")


def merge(module: nn.Module) -> nn.Module:
    """Put all low-rank factors inside a module into the weights; what is left is a plain network.

    It gives the same predictions, up to rounding. Prompts are no weights and stay where they are.
    """
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LowRank):
                setattr(parent, name, child.merged())
            elif of_peft(child):
                setattr(parent, name, _merged_by_peft(child))
    return module


def _merged_by_peft(layer: Any) -> nn.Module:
    layer.merge(safe_merge=True)
    merged: nn.Module = layer.get_base_layer()
    return merged

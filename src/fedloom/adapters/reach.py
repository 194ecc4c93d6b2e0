"""Whether a network calls the layers that have factors, or computes with their weights itself.

Torch's transformer reads the weights of its layers in evaluation and calls the layers in training;
torchvision's Swin reads them always. Our layers show a weight with the factors in it. Those of peft
show the weight without them, so what is read is as if there were no factors.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.device import CPU
from ..core.errors import FedloomError
from ..core.roles import twin
from .factors import LowRank, of_peft


def refuse_uncalled(model: nn.Module, x: Tensor) -> None:
    """Refuse a network that does not call the layers whose factors only count if it does.

    These are all layers of peft, and ours in training if they have dropout. `x` are a few samples
    as the network wants them. It stays as it is.
    """
    if not len(x):
        return
    network: Any = twin(model)
    for training in (True, False):
        wanted = {}
        for name, module in network.named_modules():
            if _has_to_be_called(module, training):
                wanted[name] = module
        if not wanted:
            continue
        called = _called(network.train(training), wanted.values(), torch.cat([x, x]))
        for name, layer in wanted.items():
            if id(layer) not in called:
                raise _passed_by(name.removeprefix("body."), layer, training)


def _has_to_be_called(module: Any, training: bool) -> bool:
    if isinstance(module, LowRank):
        return training and module.dropout.p > 0
    return of_peft(module)


@torch.no_grad()
def _called(network: Any, layers: Iterable[nn.Module], x: Tensor) -> set[int]:
    """Which of the layers the network calls for these samples.

    A hook would not do: torch's transformer calls its layers as soon as one of them has any.
    """
    called: set[int] = set()

    def noting(layer: Any, *given: Any, **named: Any) -> Any:
        called.add(id(layer))
        return type(layer).forward(layer, *given, **named)

    for layer in layers:
        layer.forward = partial(noting, layer)
    with CPU.seeded(0):
        network.head(network.body(x))
    return called


def _passed_by(name: str, layer: nn.Module, training: bool) -> FedloomError:
    when = "training" if training else "evaluation"
    what, remedy = "layers of peft count", "say --set by=fedloom"
    if isinstance(layer, LowRank):
        what, remedy = "the dropout of layers with factors counts", "set dropout to 0"
    return FedloomError(
        f"{what} only where a network calls these, and in {when} this one computes with the weight "
        f"of '{name}' itself: {remedy}, or name other layers with targets."
    )

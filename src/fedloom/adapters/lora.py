"""`lora`: low-rank factors beside frozen layers.

Hu et al., "LoRA: Low-rank adaptation of large language models", ICLR 2022. A starts at random and B
at zero, so that the network starts as it was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import nn

from ..core.errors import FedloomError, unknown
from ..core.settings import listed
from .base import freeze_body, register
from .factors import LowRank

# What libraries call the layers of query and value in an attention, which the paper adapts. Where
# one layer makes query, key and value, it is that one.
ATTENTION = ("query", "value", "q_proj", "v_proj", "q_lin", "v_lin", "qkv")
# Layers inside these are not called: the module computes with their weights itself.
UNCALLED = (nn.MultiheadAttention,)


@register("lora")
def lora(
    model: Any,
    *,
    rank: Annotated[int, "The rank of what is added to each weight."] = 8,
    alpha: Annotated[float, "What is added counts alpha / rank."] = 16.0,
    dropout: Annotated[float, "Share of a layer's inputs that its factors do not see."] = 0.0,
    targets: Annotated[
        Sequence[str],
        "The layers, by the last parts of their names, or `all`; by default the queries and values "
        "of attention, or all layers if none is called so.",
    ] = (),
    by: Annotated[
        Literal["fedloom", "peft"],
        "Whose layers: fedloom's, or the package peft's (extra `peft`), which knows more kinds.",
    ] = "fedloom",
) -> Any:
    """Low-rank factors beside linear layers and convolutions; they and the head are trained."""
    if not isinstance(rank, int) or rank < 1:
        raise FedloomError(f"option 'rank' of adapter 'lora' must be at least 1, not {rank!r}.")
    if not 0 <= dropout < 1:
        raise FedloomError(
            f"option 'dropout' of adapter 'lora' must be at least 0 and below 1, not {dropout!r}."
        )
    if by not in ("fedloom", "peft"):
        raise unknown("option 'by' of adapter 'lora'", str(by), ("fedloom", "peft"))
    freeze_body(model)
    names = chosen(model.body, listed(targets), everything=by == "peft")
    if by == "peft":
        return _by_peft(model, names, rank, alpha, dropout)
    for name in names:
        path, _, leaf = name.rpartition(".")
        parent = model.body.get_submodule(path)
        wrapped = low_rank(model.body.get_submodule(name), rank, alpha / rank, dropout)
        if name:
            setattr(parent, leaf, wrapped)
        else:
            model.body = wrapped
    return model


def chosen(body: nn.Module, targets: Sequence[str], everything: bool = False) -> list[str]:
    """The names of the layers that get factors; `everything`: those of any kind, if named."""
    known = dict(_layers(body))
    if not known and not everything:
        raise FedloomError(
            "adapter lora needs a linear layer or a convolution in the network's body, and this "
            "one has none."
        )
    if tuple(targets) == ("all",):
        return list(known)
    if not targets:
        usual = [name for name in known if name.rpartition(".")[2] in ATTENTION]
        return usual or list(known)
    names = known
    if everything:
        names = dict(body.named_modules())
    found = []
    for target in targets:
        fitting = [name for name in names if f".{name}".endswith(f".{target}")]
        if not fitting:
            raise unknown("layer for adapter lora", target, {n.rpartition(".")[2] for n in names})
        found += fitting
    return [name for name in names if name in found]


def _layers(body: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers that can have factors, by name."""
    uncalled: list[str] = []
    layers = []
    for name, module in body.named_modules():
        if isinstance(module, UNCALLED):
            uncalled.append(f"{name}.")
        fits = isinstance(module, nn.Linear) or (
            isinstance(module, nn.Conv2d) and module.groups == 1
        )
        if fits and not name.startswith(tuple(uncalled)):
            layers.append((name, module))
    return layers


def low_rank(layer: Any, rank: int, scale: float, dropout: float) -> LowRank:
    """The layer with factors beside it."""
    down: nn.Linear | nn.Conv2d
    up: nn.Linear | nn.Conv2d
    if isinstance(layer, nn.Conv2d):
        down = nn.Conv2d(
            layer.in_channels,
            rank,
            layer.kernel_size,  # type: ignore[arg-type]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            bias=False,
            padding_mode=layer.padding_mode,
        )
        up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
    else:
        down = nn.Linear(layer.in_features, rank, bias=False)
        up = nn.Linear(rank, layer.out_features, bias=False)
    nn.init.kaiming_uniform_(down.weight, a=math.sqrt(5))
    nn.init.zeros_(up.weight)
    # Only now, so that the numbers drawn do not depend on the order in memory.
    if isinstance(layer, nn.Conv2d) and not layer.weight.is_contiguous():
        down.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return LowRank(layer, down, up, scale, dropout)


def _by_peft(model: Any, names: Sequence[str], rank: int, alpha: float, dropout: float) -> Any:
    """The same with layers of peft, which start from the same numbers."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise FedloomError(
            "layers of peft need the package: pip install 'fedloom[peft]'."
        ) from None
    for name in names:
        _refuse_for_peft(name, model.body.get_submodule(name))
    # peft takes a list for the ends of names, and a string for a pattern of whole ones.
    wanted = "|".join(re.escape(name) for name in names)
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=wanted)
    try:
        inject_adapter_in_model(config, model.body)
    except ValueError as error:  # a kind of layer that it does not know
        reason = str(error).partition(". ")[0]
        raise FedloomError(f"peft gives one of these layers no factors: {reason}.") from error
    model.head.requires_grad_(True)
    return model


def _refuse_for_peft(name: str, layer: Any) -> None:
    """Refuse a layer beside which peft's factors are no part of the weight, or cannot be put."""
    if not name:
        what = "a network whose body is a single layer"
    elif isinstance(layer, nn.Conv2d) and set(layer.dilation) != {1}:
        what = f"the dilated convolution '{name}'"
    elif isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros":
        what = f"the convolution '{name}', which pads with other numbers than zero"
    else:
        return
    raise FedloomError(f"layers of peft do not fit {what}: say --set by=fedloom.")

"""Whether a user's own network can be used: its type of numbers, and its body and head together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.device import CPU
from ..core.errors import FedloomError
from ..core.roles import twin
from .base import Split

TOLERANCE = 1e-4  # relative to the largest output


def refuse_unfit(model: Any, x: Tensor) -> None:
    """Refuse a network that is not of float32, or whose own `forward` is not head after body.

    `x` are a few samples as the model wants them. Methods call body and head one after the other,
    so whatever `forward` does besides, such as a softmax at its end, would go wrong unnoticed. A
    network that fails on these samples would fail in training: it is refused at once.
    """
    for name, p in model.named_parameters():
        if p.is_floating_point() and p.dtype != torch.float32:
            raise FedloomError(
                f"parameter {name!r} of the network is {p.dtype}, but networks are float32 here: "
                "call its .float(); the setting precision makes it compute with 16 bits."
            )
    if not len(x):
        return
    if not (hasattr(model, "body") and hasattr(model, "head")):
        return  # what a method makes of it may have both
    network: Any = twin(model).eval()
    in_turn = _output(Split(network.body, network.head, 0), x, "head after its body")
    whole = _rejoined(network)
    if type(whole).forward is nn.Module.forward:
        return  # it has no forward of its own
    at_once = _output(whole, x, "own forward")
    if in_turn.shape == at_once.shape:
        difference = float((in_turn - at_once).abs().max())
        if difference <= TOLERANCE * max(1.0, float(at_once.abs().max())):
            return
        what = f"differ by up to {difference:.2g}"
    else:
        what = f"have the shapes {tuple(in_turn.shape)} and {tuple(at_once.shape)}"
    raise FedloomError(
        f"the network's head after its body and its own forward {what}: its head must be the last "
        "thing that forward does, without a softmax or anything else behind it."
    )


def _rejoined(network: Any) -> nn.Module:
    """The network as it was before `split`, if that made it."""
    place = getattr(network, "place", "")
    if not place:
        whole: nn.Module = network
        return whole
    path, _, leaf = place.rpartition(".")
    setattr(network.body.get_submodule(path), leaf, network.head)
    rejoined: nn.Module = network.body
    return rejoined


def _output(module: nn.Module, x: Tensor, what: str) -> Tensor:
    """What a module gives, the same whenever it is called, though it draws at random."""
    with torch.no_grad(), CPU.seeded(0):
        try:
            output = module(x)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".rstrip(".")
            raise FedloomError(
                f"the network's {what} cannot take {len(x)} samples of shape {tuple(x.shape[1:])} "
                f"and {x.dtype}: {reason}."
            ) from error
    if not isinstance(output, Tensor):
        raise FedloomError(
            f"the network's {what} gives a {type(output).__name__}, not a tensor of logits."
        )
    return output

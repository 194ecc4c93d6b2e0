"""Whether a user's own network can be used: its type of numbers, and its body and head together."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError
from .base import Split

TOLERANCE = 1e-4  # relative to the largest output


def refuse_unfit(model: Any, x: Tensor) -> None:
    """Refuse a network that is not of float32, or whose own `forward` is not head after body.

    `x` are a few samples as the model wants them. Methods call body and head one after the other,
    so whatever `forward` does besides, such as a softmax at its end, would go wrong unnoticed.
    """
    for name, p in model.named_parameters():
        if p.is_floating_point() and p.dtype != torch.float32:
            raise FedloomError(
                f"parameter {name!r} of the network is {p.dtype}, but networks are float32 here: "
                "call its .float(); the setting precision makes it compute with 16 bits."
            )
    if not len(x):
        return
    network = copy.deepcopy(model).eval()
    try:
        in_turn = _output(Split(network.body, network.head, 0), x)
        own = _output(_rejoined(network), x)
    except Exception:  # training fails in the same way, and its error names client and step
        return
    if in_turn.shape == own.shape:
        difference = float((in_turn - own).abs().max())
        if difference <= TOLERANCE * max(1.0, float(own.abs().max())):
            return
        what = f"differ by up to {difference:.2g}"
    else:
        what = f"have the shapes {tuple(in_turn.shape)} and {tuple(own.shape)}"
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


def _output(module: nn.Module, x: Tensor) -> Tensor:
    """What a module gives, the same whenever it is called, though it draws at random."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        output: Tensor = module(x)
        return output

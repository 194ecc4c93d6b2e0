"""`LossScaler`: for fp16, whose smallest numbers would swallow small gradients.

The loss is multiplied by a scale before gradients are computed, and the gradients are divided by it
afterwards. A step whose gradients overflow is not taken and halves the scale; after many steps
without an overflow it doubles. The scale belongs to what a client remembers, so that it survives
rounds, a resume and a move to another machine. Nothing here makes the host wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core import private_torch
from ..core.payload import Payload

FIRST = 2.0**16
GROWTH, BACKOFF, PATIENCE = 2.0, 0.5, 200  # the factor after this many steps without an overflow
GROUP = "fp16"  # under this name the scale lies in a client's state


class LossScaler:
    """The scale of one client's losses."""

    def __init__(self, device: torch.device, state: Payload | None = None) -> None:
        scale, calm = FIRST, 0
        if state is not None and f"{GROUP}/scale" in state:
            scale = state.number(f"{GROUP}/scale")
            calm = int(state.number(f"{GROUP}/calm"))
        self.scale = torch.full((), scale, device=device)
        self._calm = torch.full((), calm, dtype=torch.int32, device=device)  # steps since then
        self._overflow = torch.zeros((), device=device)

    def state(self) -> Payload:
        """What has to be remembered."""
        return Payload(scale=float(self.scale), calm=int(self._calm))

    def unscale(self, params: Sequence[nn.Parameter]) -> None:
        """Divide the gradients by the scale; those of a step that overflowed become 0."""
        grads = [p.grad for p in params if p.grad is not None]
        self._overflow.zero_()
        private_torch.unscale_(grads, self._overflow, self.scale.reciprocal())
        for grad in grads:
            grad.copy_(torch.where(self._overflow > 0, 0.0, grad))

    @torch.no_grad()
    def step(self, optimizer: Any, params: Sequence[Tensor]) -> None:
        """Let the optimiser take its step, and take it back if gradients overflowed."""
        before = [p.detach().clone() for p in params]
        optimizer.step()
        for p, old in zip(params, before, strict=True):
            p.copy_(torch.where(self._overflow > 0, old, p))
        private_torch.update_scale_(
            self.scale, self._calm, self._overflow, GROWTH, BACKOFF, PATIENCE
        )


def without_scale(state: Payload) -> Payload:
    """A client's state as its method knows it."""
    if f"{GROUP}/scale" not in state:
        return state
    kept = {}
    for name, value in state.items():
        if not name.startswith(f"{GROUP}/"):
            kept[name] = value
    return Payload(kept)

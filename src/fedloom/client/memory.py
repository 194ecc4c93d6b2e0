"""`Memory`: what optimisers remember, for clients whose optimisers go on in their next round.

It belongs to what a client remembers, so that it survives rounds in which the client is absent, a
resume and a move to another machine. Methods never see it. A method may train several times in a
round (a common and a personal model, say): each of these calls of `local.fit` has a memory of its
own, told apart by their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.payload import Payload
from .optim import Optimizer

GROUP = "optimizer"  # under this name it lies in a client's state


class Memory:
    """What one client's optimisers remember, by call, parameter and part."""

    def __init__(self, state: Payload) -> None:
        self._kept: dict[str, Tensor] = dict(state.tree(GROUP).items())

    def recall(self, call: int, names: Sequence[str], optimizer: Optimizer) -> None:
        """Give an optimiser what it knew of the parameters with these names."""
        for place, name in enumerate(names):
            parts = {}
            for part in optimizer.parts:
                key = f"{call}/{name}/{part}"
                if key in self._kept:
                    parts[part] = self._kept[key]
            if parts:
                optimizer.recall(place, parts)

    def keep(self, call: int, names: Sequence[str], optimizer: Optimizer) -> None:
        """Note what an optimiser knows of the parameters with these names."""
        for place, parts in optimizer.memory().items():
            for part, tensor in parts.items():
                # In contiguous order, as if read from a file: the next round's bits do not depend
                # on whether it was.
                plain = tensor.detach().clone(memory_format=torch.contiguous_format)
                self._kept[f"{call}/{names[place]}/{part}"] = plain

    def state(self) -> Payload:
        """What has to be remembered."""
        return Payload(self._kept)


def without_memory(state: Payload) -> Payload:
    """A client's state as its method knows it."""
    kept = {name: value for name, value in state.items() if not name.startswith(f"{GROUP}/")}
    return Payload(kept) if len(kept) < len(state) else state

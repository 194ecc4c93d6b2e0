"""`Losses`: what the parts of the loss were in each step of a fit.

They stay on the device until the end and are then read in one go: to read a loss in every step
would make the host wait for the device in every step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

PACKED = 1024  # steps whose losses become one tensor: on an accelerator each one takes a block


class _Part:
    """One part of the loss, in the steps that had it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []  # of the batches
        self._steps: list[Tensor] = []
        self._packed: list[Tensor] = []

    def add(self, value: Tensor, size: int) -> None:
        self.sizes.append(size)
        self._steps.append(value.detach())
        if len(self._steps) == PACKED:
            self._pack()

    def values(self) -> Tensor:
        """The values of all steps, on the device."""
        self._pack()
        return torch.cat(self._packed)

    def _pack(self) -> None:
        if self._steps:
            self._packed.append(torch.stack([value.reshape(()) for value in self._steps]))
            self._steps = []


class Losses:
    """The parts of the loss by name, and the samples seen so far in all steps."""

    def __init__(self) -> None:
        self.seen = 0
        self._parts: dict[str, _Part] = {}

    def add(self, parts: Mapping[str, Tensor], size: int) -> None:
        """Note a step on a batch of that size."""
        self.seen += size
        for name, value in parts.items():
            if name not in self._parts:
                self._parts[name] = _Part()
            self._parts[name].add(value, size)

    def means(self, label: str = "") -> dict[str, float]:
        """Each part's mean over all samples; `label/` stands before its name."""
        if not self._parts:
            return {}
        columns = [part.values() for part in self._parts.values()]
        # The only time that the host waits for the device.
        together = torch.cat(columns).cpu().numpy()
        prefix = f"{label}/" if label else ""
        means, start = {}, 0
        for (name, part), column in zip(self._parts.items(), columns, strict=True):
            end = start + len(column)
            kind = torch.empty(0, dtype=column.dtype).numpy().dtype
            weighted = together[start:end].astype(kind) * np.array(part.sizes, dtype=kind)
            # Added one by one, as the steps came: a sum in another order rounds differently.
            means[f"{prefix}{name}"] = float(np.add.accumulate(weighted)[-1]) / self.seen
            start = end
        return means

"""What frozen first layers make of every sample, computed once.

A tensor of samples knows their numbers in the data set for as long as nobody changes it. What
enters a network as such a tensor need not pass the layers that are frozen and come first: their
outputs are at hand. Augmented samples, inputs that a method makes and the like have no numbers, so
nothing needs to be told when the layers have to compute after all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.clients import every_row
from .large import eval_batch

MOST = 1 << 28  # bytes of outputs that are kept
# Layers without tensors that may follow a frozen one and belong to what is computed once.
PLAIN = (nn.Identity, nn.Flatten, nn.ReLU, nn.GELU, nn.MaxPool2d, nn.AvgPool2d)


def noted(x: Tensor, rows: Tensor | None) -> Tensor:
    """The tensor, which from now on knows that it holds the samples with these numbers."""
    if rows is not None:
        known: Any = x
        known.fedloom_rows = rows, x._version
    return x


def rows_of(x: Tensor) -> Tensor | None:
    """The numbers of the samples in a tensor; None if it has none, or others by now."""
    rows, version = getattr(x, "fedloom_rows", (None, 0))
    if rows is None or version != x._version or x.requires_grad:
        return None
    found: Tensor = rows
    return found


def in_turn(body: nn.Module) -> list[nn.Module]:
    """The layers of a body that follow each other."""
    if type(body) is not nn.Sequential:
        return [body]
    return [layer for part in body for layer in in_turn(part)]


def frozen_first(body: nn.Module, resting: Sequence[nn.Module]) -> list[nn.Module]:
    """The layers of a body that come first and are frozen; none if there are no such layers."""
    frozen = {id(layer) for module in resting for layer in module.modules()}
    first: list[nn.Module] = []
    last_frozen = 0
    for layer in in_turn(body):
        if id(layer) not in frozen and not isinstance(layer, PLAIN):
            break
        first.append(layer)
        if id(layer) in frozen:
            last_frozen = len(first)
    return first if last_frozen else []


class Remembered:
    """The outputs of a worker's frozen first layers for the samples of all clients."""

    def __init__(self, worker: Any, outputs: Tensor | None = None) -> None:
        self._worker = worker
        self.layers: list[nn.Module] = []
        if worker.training.frozen_once and not worker.training.compiled:
            self.layers = frozen_first(worker.model.body, worker.resting)
        self._outputs = outputs

    def shortened(self, body: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
        """What is left of a body, and what enters it, where the outputs for `x` are at hand."""
        rows = rows_of(x) if self.layers and self._worker.standard is None else None
        if rows is None or not self._worker.has(body):
            return body, x
        outputs = self.outputs
        if outputs is None:
            return body, x
        x = outputs[self._places[rows.to(self._places.device)]]
        if x.ndim == 4:
            x = x.contiguous(memory_format=self._worker.order)
        return nn.Sequential(*in_turn(body)[len(self.layers) :]), x

    @property
    def outputs(self) -> Tensor | None:
        """A row for each sample that some client has; None if they are too large to be kept.

        Samples always pass in the same order and number at a time, so that a row has the same bits
        wherever it is computed.
        """
        if self.layers and self._outputs is None:
            self._outputs = self._computed()
        return self._outputs

    @cached_property
    def _rows(self) -> Tensor:
        """The numbers of all samples that some client has."""
        federation = self._worker.federation
        rows = [every_row(federation.clients), every_row(federation.outside)]
        return torch.from_numpy(np.union1d(*rows))

    @cached_property
    def _places(self) -> Tensor:
        """By number of a sample, in which row its output is."""
        places = torch.full((len(self._worker.federation.data.y),), -1)
        places[self._rows] = torch.arange(len(self._rows))
        here: Tensor = self._worker.here(places)
        return here

    @torch.no_grad()
    def _computed(self) -> Tensor | None:
        worker, rows = self._worker, self._rows
        start = 0
        outputs: Tensor | None = None
        layers = nn.Sequential(*self.layers).eval()  # the rest may be in training
        for some in rows.split(eval_batch(worker.federation.data.x.shape)):
            x = worker.prepare(worker.samples(some))
            part = worker.through(layers, nn.Identity(), x)[0]
            if outputs is None:
                if len(rows) * part[0].nbytes > MOST:
                    self.layers = []
                    return None
                outputs = part.new_empty(len(rows), *part.shape[1:])
            outputs[start : start + len(some)] = part
            start += len(some)
        return outputs

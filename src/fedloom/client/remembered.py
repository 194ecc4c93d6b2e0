"""What frozen first layers make of every sample, computed once.

A tensor of samples knows their numbers in the data set for as long as nobody changes it. What
enters a network as such a tensor need not pass the layers that are frozen and come first: their
outputs are at hand. Augmented samples, inputs that a method makes and the like have no numbers, so
nothing needs to be told when the layers have to compute after all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.device import CPU
from ..core.roles import twin
from ..data.clients import every_row
from .cut import Before, Behind, Cut
from .cutting import find
from .large import at_once
from .training import Training

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


class Known(NamedTuple):
    """What somebody has found of a network and computed: where it is cut, and the outputs."""

    cut: Cut | None
    outputs: Tensor | None


class Remembered:
    """The outputs of a worker's frozen first layers for the samples of all clients.

    `layers` are those of a body whose layers follow each other. Any other body is looked through
    for a place where it can be cut; see client/cutting.py.
    """

    def __init__(self, worker: Any, known: Known | None = None) -> None:
        self._worker = worker
        wanted = worker.training.frozen_once and not worker.training.compiled
        self.layers: list[nn.Module] = []
        self.cut: Cut | None = None
        self._outputs: Tensor | None = None
        if wanted:
            self.layers = frozen_first(worker.model.body, worker.resting)
        self._unsearched = wanted and bool(worker.resting) and not self.layers
        if known is not None:
            self._unsearched = False
            self.cut, self._outputs = known
            if self._outputs is None:
                self.layers = []

    @property
    def any(self) -> bool:
        """Whether there is something to remember, as far as is known."""
        return bool(self.layers) or self.cut is not None or self._unsearched

    def ready(self, training: Training) -> None:
        """Compute the outputs if training will read them: it should not wait for a device.

        Nor should somebody watch the network meanwhile, or have lent it other layers.
        """
        if self._worker.standard is None and not training.augment:
            _ = self.outputs

    def search(self) -> None:
        """Find out where the body can be cut, unless that is known."""
        if not self._unsearched:
            return
        self._unsearched = False
        worker, two = self._worker, self._rows[:2]
        if len(two) < 2:
            return
        # On the CPU, so that the answer is the same whatever the device.
        with CPU.seeded(0):
            model = worker.method.extend(twin(worker.given), worker.federation.data.classes)
        data = worker.federation.data
        self.cut = find(model, worker.frozen, data.prepare(data.take(two)), CPU)

    def shortened(self, body: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
        """What is left of a body, and what enters it, where the outputs for `x` are at hand."""
        rows = rows_of(x) if self.any and self._worker.standard is None else None
        if rows is None or not self._worker.has(body):
            return body, x
        outputs = self.outputs
        if outputs is None:
            return body, x
        kept = outputs[self._places[rows.to(self._places.device)]]
        if kept.ndim == 4:
            kept = kept.contiguous(memory_format=self._worker.order)
        if self.cut is not None:
            return Behind(body, self.cut, kept), x
        return nn.Sequential(*in_turn(body)[len(self.layers) :]), kept

    def known(self) -> Known:
        """What others need not find out and compute again."""
        outputs = self.outputs  # which is when a cut is found
        return Known(self.cut, outputs)

    @property
    def outputs(self) -> Tensor | None:
        """A row for each sample that some client has; None if they are too large to be kept.

        Samples always pass in the same order and number at a time, so that a row has the same bits
        wherever it is computed.
        """
        self.search()
        if self._outputs is None and self.any:
            self._outputs = self._computed()
            if self._outputs is None:
                self.layers, self.cut = [], None
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
        """The outputs; None if they are too large, or not a sample's own."""
        worker, rows = self._worker, self._rows
        start = 0
        outputs: Tensor | None = None
        for some in rows.split(at_once(worker.model.body, worker.federation.data.x.shape)):
            part = self._before(some)
            if outputs is None:
                if len(rows) * part[0].nbytes > MOST or not self._alone(some, part):
                    return None
                outputs = part.new_empty(len(rows), *part.shape[1:])
            if part.shape[1:] != outputs.shape[1:]:  # texts that are longer together
                return None
            outputs[start : start + len(some)] = part
            start += len(some)
        return outputs

    def _before(self, rows: Tensor) -> Tensor:
        """What comes out of the frozen first layers for these samples."""
        worker = self._worker
        x = worker.prepare(worker.samples(rows))
        for module in worker.resting:  # nobody may have used the network yet
            module.eval()
        if self.cut is not None:
            before: nn.Module = Before(worker.model.body, self.cut)
        else:
            before = nn.Sequential(*self.layers).eval()  # the rest may be in training
        found: Tensor = worker.through(before, nn.Identity(), x)[0]
        return found

    def _alone(self, rows: Tensor, together: Tensor) -> bool:
        """Whether a sample's output does not depend on those that pass with it.

        It does behind a BatchNorm without statistics of its own, for one.
        """
        first = self._before(rows[:1])[0]
        if first.shape != together[0].shape:  # of a text that is padded, if longer ones are there
            return False
        exact = self._worker.training.precision == "fp32"
        bound = (1e-3 if exact else 0.05) * max(1.0, float(first.abs().max()))
        return bool((first - together[0]).abs().max() <= bound)

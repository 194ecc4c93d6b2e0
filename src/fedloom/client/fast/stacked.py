"""Heads or whole models of several clients, trained side by side.

On a CPU this pays for small heads and for models of linear layers, and only those are stacked. An
accelerator spends most of a small model's step on starting kernels, so there any network is stacked
whose layers draw no random numbers (dropout does).

Clients that take more steps come first in the stack, which grows shorter as others finish. Batches
that are not full are padded, and the padding does not count; where BatchNorm would notice it, only
clients with equal batches are stacked. The numbers agree with those of one client after another to
about 1e-6, because sums are taken in another order.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ...core.local import Fit, cross_entropy
from ...core.method import Plugin
from ...core.private_torch import NORMS, NormBase
from ...data.dataset import chosen
from ...models.base import Split
from ...models.projection import Unit
from ..batches import PREPARED, batch_rows
from ..job import Job
from .dense import layers, touched

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


class Entry:
    """One client's place in a stack: its head or model as it is when training would begin."""

    def __init__(self, job: Job, part: nn.Module) -> None:
        self.job, self.part = job, part
        # Copied: the model is resident, and the next client overwrites it. Never channels-last, for
        # the reason that `_Stack` has for its samples.
        self.weights: dict[str, Tensor] = {}
        for name, p in part.named_parameters():
            self.weights[name] = p.detach().clone(memory_format=torch.contiguous_format)
        self.buffers = {n: b.clone() for n, b in part.named_buffers()}

    @property
    def kind(self) -> Hashable:
        """Entries of one kind can be stacked."""
        shapes = tuple((n, t.shape) for n, t in {**self.weights, **self.buffers}.items())
        job = self.job
        # A cosine depends on the number of steps, and a stack has one step size for all.
        steps = None
        if job.training.cosine:
            steps = job.planned
        # BatchNorm would count padding, so all clients need the same batches.
        batches = None
        if norms(self.part):
            batches = len(job.samples), job.work
        return id(job.worker), shapes, job.training, steps, batches, type(self.part)


@dataclass(frozen=True)
class Trained:
    """What a stack made of one entry."""

    weights: dict[str, Tensor]
    buffers: dict[str, Tensor]
    steps: int
    seen: int  # samples, over all steps
    loss: float

    @torch.no_grad()
    def hand_over(self, job: Job) -> Fit:
        """Give the weights to the head or model of the job, as if it had been trained there."""
        part: nn.Module = job.head or job.worker.model
        for name, parameter in part.named_parameters():
            parameter.copy_(self.weights[name])
        for name, buffer in part.named_buffers():
            buffer.copy_(self.buffers[name])
        job.seen = self.seen
        return Fit(self.steps, job.training.step_size(job.round), {"ce": self.loss})


def entry(job: Job) -> Entry | None:
    """The job as an entry of a stack; None if it has to be trained on its own."""
    method, training = job.worker.method, job.training
    if job.loss is not cross_entropy or job.stream is not None or job.earlier or not job.planned:
        return None
    if job.pull or job.gradient or job.refs or job.inputs or job.watch or job.label:
        return None
    if job.class_weights is not None or job.worker.standardise == "own":
        return None
    if training.remembers:  # clients that were absent are not as far as others
        return None
    if training.augment or training.clip or (isinstance(method, Plugin) and method.adds):
        return None
    part = job.head or job.model
    if job.head is None and (job.only is not None or not _stackable(job)):
        return None
    if not all(p.requires_grad for p in part.parameters()):
        return None
    return Entry(job, part)


def _stackable(job: Job) -> bool:
    """Whether the clients' models can be stacked, and whether that pays."""
    model, worker = job.model, job.worker
    if worker.frozen:
        return False
    if _linear(job):
        return True
    return worker.device.accelerated and all(map(_can_be_stacked, model.modules()))


def _linear(job: Job) -> bool:
    """Whether the model has only layers for vectors."""
    model, ndim = job.model, len(job.worker.data.x.shape)
    if type(model) is not Split:
        return False
    return layers(model.body, model.head, ndim=ndim, also=[Unit]) is not None


def _can_be_stacked(module: nn.Module) -> bool:
    """Whether a layer draws no random numbers and shows nobody what it does.

    It may keep statistics: the stack has them for each client.
    """
    if touched(module) or isinstance(module, nn.RNNBase):
        return False
    return not (isinstance(module, DROPOUT) and module.p > 0)


def norms(part: nn.Module) -> list[NormBase]:
    """The layers of a head or model that keep statistics of their batches."""
    return [module for module in part.modules() if isinstance(module, NORMS)]


def train(entries: Sequence[Entry]) -> list[Trained]:
    """Train entries of one kind, each on its own client's samples and batches, as one stack.

    They come in the order of their planned steps, those that take most first; so do the results.
    """
    stack = _Stack(entries)
    done: list[Trained] = []
    try:
        for step in range(entries[0].job.planned + 1):
            done = [*stack.finished(step), *done]
            if stack.size:
                stack.step(step)
    finally:
        for norm in norms(entries[0].part):
            norm.eval()
    return done


class _Stack:
    """Entries that are under way; those that take more steps come first."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        first = entries[0]
        self.size = len(entries)  # of those that are under way
        self._entries, self._part = entries, first.part
        self._worker, self._training = first.job.worker, first.job.training
        worker = self._worker
        self._places = torch.cat([e.job.samples for e in entries])
        self._labels = worker.labels(self._places)
        self._whole = self._part is worker.model
        self._by_hand = self._whole and _linear(first.job)
        self._norms = norms(self._part)
        self._inputs = self._prepared()
        rows = _rows(entries)
        there = rows >= 0
        self._longest = there.sum(2).max(0).values.tolist()  # the largest batch of each step
        self._rows = worker.here(rows.clamp(min=0))
        self._there = worker.here(there)
        self._sizes = worker.here(there.sum(2))
        if worker.resident:
            self._places = worker.here(self._places)
        self._weights: dict[str, Tensor] = {}
        for name in first.weights:
            self._weights[name] = torch.stack([e.weights[name] for e in entries]).requires_grad_()
        self._buffers: dict[str, Tensor] = {}
        for name in first.buffers:
            self._buffers[name] = torch.stack([e.buffers[name] for e in entries])
        self._lr = self._training.step_size(first.job.round)
        self._optimizer = self._training.make(list(self._weights.values()), first.job.round)
        self._sums = torch.zeros(len(entries), device=self._rows.device)

    def _prepared(self) -> Tensor | None:
        """What all clients' samples are to the part that is trained; None: too much to keep.

        A head sees features. A whole model's samples are prepared beforehand on an accelerator, as
        `Batches` does.
        """
        worker = self._worker
        if not self._whole:
            return worker.outputs(worker.samples(self._places)).features
        size = 4 * len(self._places) * math.prod(worker.data.x.shape[1:])
        if worker.device.accelerated and size <= PREPARED:
            return self._plain(self._places)
        return None

    def _plain(self, places: Tensor) -> Tensor:
        """Samples as the model wants them, but never channels-last.

        With one sample per batch, a client's part of a channels-last stack has a stride with which
        torch 2.13 computes wrong gradients of BatchNorm on a CPU. `contiguous` would leave images
        of one channel as they are.
        """
        x = self._worker.prepare(self._worker.samples(places))
        if self._by_hand:
            return x
        return x.clone(memory_format=torch.contiguous_format)

    def finished(self, step: int) -> list[Trained]:
        """Take out the last entries, those that have no more steps to take."""
        left = sum(e.job.planned > step for e in self._entries)
        if left == self.size:
            return []
        seen = self._sizes[left : self.size].sum(1)
        means = (self._sums[left : self.size] / seen).tolist()
        ended = {n: t[left:].detach() for n, t in self._weights.items()}
        kept = {n: t[left:] for n, t in self._buffers.items()}
        done = []
        for i, (number, mean) in enumerate(zip(seen.tolist(), means, strict=True)):
            weights = {n: t[i] for n, t in ended.items()}
            buffers = {n: t[i] for n, t in kept.items()}
            done.append(Trained(weights, buffers, step, number, mean))
        # Copied: those that go on must not write to what those that have ended hand over.
        for name, tensor in self._weights.items():
            self._weights[name] = tensor[:left].detach().clone().requires_grad_()
        self._buffers = {n: t[:left].clone() for n, t in self._buffers.items()}
        self._optimizer = self._optimizer.narrowed(self._weights.values(), left)
        self.size = left
        return done

    def step(self, step: int) -> None:
        """Take one step with every entry that is under way."""
        rows = self._rows[: self.size, step, : self._longest[step]]
        there = self._there[: self.size, step, : self._longest[step]]
        sizes = self._sizes[: self.size, step]
        logits = self._logits(rows).flatten(0, 1)
        losses = F.cross_entropy(logits, self._labels[rows].flatten(), reduction="none")
        means = (losses.view(there.shape) * there).sum(1) / sizes
        self._optimizer.zero_grad()
        means.sum().backward()
        self._optimizer.lr = self._training.rate(self._lr, step, self._entries[0].job.planned)
        self._optimizer.step()
        self._sums[: self.size] += means.detach() * sizes

    def _logits(self, rows: Tensor) -> Tensor:
        if self._inputs is None:
            wanted = self._places[rows.to(self._places.device)]
            x = self._plain(wanted.flatten())
        else:
            x = chosen(self._inputs, rows.flatten())
        x = x.unflatten(0, rows.shape)
        if self._by_hand:
            by_id = {id(p): self._weights[n] for n, p in self._part.named_parameters()}
            return through(self._part, by_id, x)
        for norm in self._norms:  # statistics of a single sample are undefined
            norm.train(rows.shape[1] > 1)
        logits: Tensor = vmap(self._one)(self._weights, self._buffers, x)
        return logits

    def _one(self, weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self._part, {**weights, **buffers}, (x,))
        return logits


class _Linear(torch.autograd.Function):
    """x W^T + b for every client.

    The backward pass computes g^T x, which has the layout of W. Torch's own choice, (x^T g)^T, is
    five times as slow and has to be transposed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        if bias is None:
            return x @ weight.mT
        return torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        x_wanted, _, bias_wanted = ctx.needs_input_grad
        x_slope, bias_slope = None, None
        if x_wanted:
            x_slope = g @ weight
        if bias_wanted:
            bias_slope = g.sum(1)
        return x_slope, g.mT @ x, bias_slope


def through(module: nn.Module, weights: Mapping[int, Tensor], x: Tensor) -> Tensor:
    """The outputs of a stack of models for samples (clients, samples, ...).

    `weights` holds the clients' weights by the id of the parameter that they stand for. For a
    linear head `torch.func.vmap` takes twice as long.
    """
    if isinstance(module, nn.Linear):
        weight, bias = weights[id(module.weight)], weights.get(id(module.bias))
        y: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y
    if isinstance(module, Split):
        return through(module.head, weights, through(module.body, weights, x))
    if isinstance(module, nn.Sequential):
        for part in module:
            x = through(part, weights, x)
        return x
    if isinstance(module, nn.Flatten):
        return x.flatten(2)
    y = module(x)
    return y


def _rows(entries: Sequence[Entry]) -> Tensor:
    """Which samples are in each client's batch of each step; -1 pads a batch to the longest one.

    The clients' samples are counted one after another.
    """
    starts = accumulate((len(e.job.samples) for e in entries), initial=0)
    lengths = torch.zeros(len(entries), entries[0].job.planned, dtype=torch.int64)
    every = []
    for i, (e, start) in enumerate(zip(entries, starts, strict=False)):
        job = e.job
        batches = list(batch_rows(len(job.samples), job.training, job.planned, job.rng("batches")))
        lengths[i, : len(batches)] = torch.tensor([len(rows) for rows in batches])
        every.append(torch.cat(batches) + start)
    there = torch.arange(int(lengths.max())) < lengths[..., None]
    padded = torch.full(there.shape, -1)
    padded[there] = torch.cat(every)
    return padded

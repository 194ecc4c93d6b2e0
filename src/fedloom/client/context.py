"""`ClientContext`: one client in one round. A method sees it as `local`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from ..core.local import Batch, Fit, Local, Loss, Outputs, cross_entropy
from ..core.private_torch import BATCHNORMS, BatchNorm
from ..core.rng import torch_rng
from .fit import fit
from .job import Job
from .large import eval_batch
from .memory import Memory
from .scaling import LossScaler
from .worker import ClientWorker

Trainer = Callable[[Job], Fit]
# What `local.fit` is asked to do, beside the loss; every other keyword is a setting of training.
ASKED = {
    name
    for name, parameter in signature(Local.fit).parameters.items()
    if parameter.kind is Parameter.KEYWORD_ONLY
}


@dataclass
class ClientContext(Local):
    """A client's data, the resident model and the client's random keys.

    `trainer` does the training of every `local.fit`; an executor may hand in its own.
    """

    worker: ClientWorker
    id: int
    round: int
    work: float = 1.0  # the share of the planned steps that the client manages
    trainer: Trainer = fit
    scaler: LossScaler | None = None  # of losses that are computed in fp16
    memory: Memory | None = None  # of optimisers that go on in the next round
    _jobs: list[Job] = field(default_factory=list)
    _losses: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.scaler is None and self.training.precision == "fp16":
            self.scaler = LossScaler(self.worker.device.torch)

    @property
    def step(self) -> int:
        return self._jobs[-1].step if self._jobs else 0

    @property
    def size(self) -> int:
        return len(self.worker.rows(self.id))

    @property
    def counts(self) -> Tensor:
        return self.worker.here(self.worker.federation.counts(self.id))

    def rng(self, purpose: str) -> torch.Generator:
        return torch_rng(self.worker.seed, self.round, self.id, purpose)

    def chunks(self, part: str = "train") -> Iterator[tuple[Tensor, Tensor]]:
        data, index = self.worker.data, torch.from_numpy(self.worker.rows(self.id, part))
        if not len(index):
            return
        for rows in index.split(eval_batch(data.x.shape)):
            yield self.worker.prepare(self.worker.samples(rows)), self.worker.labels(rows)

    def losses(self) -> dict[str, float]:
        """The mean of each part of the loss over the steps that had it."""
        return weighted(self._losses)

    @property
    def trained(self) -> bool:
        """Whether anything has been trained."""
        return bool(self._losses)

    def fit(self, loss: Loss = cross_entropy, **options: Any) -> Fit:
        asked, changes = {}, {}
        for name, value in options.items():
            if name in ASKED:
                asked[name] = value
            else:
                changes[name] = value
        training = self.training
        if changes:
            training = training.changed(**changes)
        job = Job(
            self.worker,
            self.id,
            self.round,
            training,
            work=self.work,
            earlier=len(self._losses),
            loss=loss,
            scaler=self.scaler,
            memory=self.memory,
            **asked,
        )
        self._jobs.append(job)
        self.worker.remembered.ready(training)
        outcome = self.trainer(job)
        self._losses.append((job.seen, outcome.losses))
        return outcome

    def outputs(self, part: str = "train") -> tuple[Outputs, Tensor]:
        rows = torch.from_numpy(self.worker.rows(self.id, part))
        return self.worker.outputs(self.worker.samples(rows)), self.worker.labels(rows)

    @torch.no_grad()
    def renormalise(self) -> None:
        worker, data = self.worker, self.worker.data
        norms = self._running_norms()
        chunks = torch.from_numpy(worker.rows(self.id)).split(eval_batch(data.x.shape))
        chunks = [rows for rows in chunks if len(rows) > 1]  # a single sample has no variance
        if not norms or not chunks:
            return
        worker.model.eval()
        momenta = [m.momentum for m in norms]
        for m in norms:
            m.reset_running_stats()
            m.momentum = None  # the mean over chunks
            m.train()
        for rows in chunks:
            x = data.prepare(worker.samples(rows))
            if worker.standard is not None:
                x = worker.standard(x)
            worker.through(worker.model.body, nn.Identity(), x)
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
        worker.model.eval()

    def settle_statistics(self) -> None:
        """Give the resident model the statistics of BatchNorm with which this client uses it.

        Whoever scores, serves or exports a client's model does this between the hook that makes
        the predictor and the first prediction.
        """
        if self.worker.training.eval_stats == "own":
            self.renormalise()

    def _running_norms(self) -> list[BatchNorm]:
        """The BatchNorm layers that keep running statistics which are not frozen."""
        norms = []
        for name, m in self.worker.model.named_modules():
            frozen = f"{name}.running_mean" in self.worker.frozen
            if isinstance(m, BATCHNORMS) and m.track_running_stats and not frozen:
                norms.append(m)
        return norms

    @torch.no_grad()
    def evaluate(self, loss: Loss = cross_entropy, part: str = "train") -> dict[str, float]:
        model = self.worker.model.eval()
        sizes: list[int] = []
        values: dict[str, list[Tensor]] = {}
        for x, y in self.chunks(part):
            parts = loss(Batch(*self.worker.through(model.body, model.head, x), x, y, {}))
            if not isinstance(parts, dict):
                parts = {"loss": parts}
            for name, value in parts.items():
                values.setdefault(name, []).append(value)
            sizes.append(len(y))
        means = {}
        for name, column in values.items():
            total = 0.0
            # Read in one go: the host waits once, not for every chunk.
            for value, size in zip(torch.stack(column).tolist(), sizes, strict=True):
                total += value * size
            means[name] = total / sum(sizes)
        return means


def weighted(parts: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Means by name of (weight, {name: value}), each over those that have the name."""
    sums: dict[str, list[float]] = {}
    for weight, values in parts:
        for name, value in values.items():
            total = sums.setdefault(name, [0.0, 0.0])
            total[0] += weight * value
            total[1] += weight
    return {name: total / weight for name, (total, weight) in sorted(sums.items())}

"""`ClientContext`: one client in one round. A method sees it as `local`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.local import Batch, Fit, GradientHook, Inputs, Loss, Outputs, cross_entropy
from ..core.rng import torch_rng
from ..core.roles import Role
from ..core.tree import Tree
from .fit import fit
from .job import Job
from .scaling import LossScaler
from .training import Training
from .worker import ClientWorker, Network, eval_batch

Trainer = Callable[[Job], Fit]


@dataclass
class ClientContext:
    """A client's data, the resident model and the client's random keys.

    `trainer` does the training of every `local.fit`; an executor may hand in its own.
    """

    worker: ClientWorker
    id: int
    round: int
    work: float = 1.0  # the share of the planned steps that the client manages
    trainer: Trainer = fit
    scaler: LossScaler | None = None  # of losses that are computed in fp16
    _jobs: list[Job] = field(default_factory=list)
    _losses: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.scaler is None and self.training.precision == "fp16":
            self.scaler = LossScaler(self.worker.device.torch)

    @property
    def step(self) -> int:
        """The number of the training step that is under way; 0 before any training."""
        return self._jobs[-1].step if self._jobs else 0

    @property
    def size(self) -> int:
        """How many training samples the client has."""
        return len(self.worker.rows(self.id))

    @property
    def classes(self) -> int:
        """How many classes there are in the federation."""
        return self.worker.classes

    @property
    def counts(self) -> Tensor:
        """The client's training samples of each class."""
        return self.worker.here(self.worker.federation.counts(self.id))

    @property
    def model(self) -> Any:
        """The resident model (with `body` and `head`)."""
        return self.worker.model

    @property
    def training(self) -> Training:
        """The run's settings of local training."""
        return self.worker.training

    def rng(self, purpose: str) -> torch.Generator:
        """A generator that belongs to (seed, round, client, purpose)."""
        return torch_rng(self.worker.seed, self.round, self.id, purpose)

    def load(self, *trees: Tree) -> None:
        """Install weights in the resident model; see `ClientWorker.load`."""
        self.worker.load(*trees)

    def tree(self, role: Role = "shared") -> Tree:
        """A copy of the resident model's tensors that have this role."""
        return self.worker.tree(role)

    def parameters(self, only: Iterable[nn.Module] | None = None) -> Tree:
        """A copy of the resident model's trainable parameters, of all modules or `only` some."""
        return self.worker.parameters(only)

    def predictor(
        self,
        inputs: nn.Module | None = None,
        head: nn.Module | None = None,
        rule: nn.Module | None = None,
    ) -> Network:
        """The resident model as it is now, as a predictor; see `ClientWorker.predictor`."""
        return self.worker.predictor(inputs, head, rule)

    def chunks(self, part: str = "train") -> Iterator[tuple[Tensor, Tensor]]:
        """The client's samples as the model wants them, and their labels, in order, in chunks."""
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

    def fit(
        self,
        loss: Loss = cross_entropy,
        *,
        pull: tuple[Tree, float] | None = None,
        gradient: GradientHook | None = None,
        only: Iterable[nn.Module] | None = None,
        head: nn.Module | None = None,
        refs: Mapping[str, Tree] | None = None,
        inputs: Inputs | None = None,
        watch: Iterable[nn.Module] = (),
        stream: int | None = None,
        label: str = "",
        **changes: Any,
    ) -> Fit:
        """Train the resident model on the client's data.

        `Job` in client/job.py explains each argument. Other keywords change the run's `Training`.
        Every call adds to the loss what a plug-in wants there (`Plugin.terms`).
        """
        training = self.training
        if changes:
            training = training.changed(**changes)
        if only is not None:
            only = list(only)
        job = Job(
            self.worker,
            self.id,
            self.round,
            training,
            work=self.work,
            earlier=len(self._losses),
            loss=loss,
            pull=pull,
            gradient=gradient,
            only=only,
            head=head,
            refs=refs or {},
            inputs=inputs,
            watch=list(watch),
            stream=stream,
            label=label,
            scaler=self.scaler,
        )
        self._jobs.append(job)
        outcome = self.trainer(job)
        self._losses.append((job.seen, outcome.losses))
        return outcome

    def outputs(self, part: str = "train") -> tuple[Outputs, Tensor]:
        """Features and logits of all the client's samples, in evaluation mode, and their labels."""
        rows = torch.from_numpy(self.worker.rows(self.id, part))
        return self.worker.outputs(self.worker.samples(rows)), self.worker.labels(rows)

    @torch.no_grad()
    def renormalise(self) -> None:
        """Estimate the statistics of BatchNorm anew, on all training samples.

        It is for weights that were never trained as they are, such as mixtures of models.
        """
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

    def _running_norms(self) -> list[_BatchNorm]:
        """The BatchNorm layers that keep running statistics which are not frozen."""
        norms = []
        for name, m in self.worker.model.named_modules():
            frozen = f"{name}.running_mean" in self.worker.frozen
            if isinstance(m, _BatchNorm) and m.track_running_stats and not frozen:
                norms.append(m)
        return norms

    @torch.no_grad()
    def evaluate(self, loss: Loss = cross_entropy, part: str = "train") -> dict[str, float]:
        """The mean loss of the resident model on all the client's samples, by part of the loss.

        It is empty if there are no samples. Nothing is trained.
        """
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

"""`Job`: one call of `local.fit`, written down, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from ..core.errors import FedloomError
from ..core.local import GradientHook, Inputs, Loss, cross_entropy
from ..core.rng import torch_rng
from ..core.tree import Tree
from .headed import Headed
from .memory import Memory
from .scaling import LossScaler
from .training import Training
from .worker import ClientWorker


@dataclass
class Job:
    """What a client is to train, on which data, by which loss and by which rule."""

    worker: ClientWorker
    client: int
    round: int
    training: Training
    # The share of the planned steps that the client manages; a straggler manages less than 1.
    work: float = 1.0
    # How many calls of `local.fit` came before this one in the round.
    earlier: int = 0
    # Maps a `Batch` to a scalar, or to named parts that are summed.
    loss: Loss = cross_entropy
    # (anchor, mu) adds the gradient of `mu/2 * |w - anchor|^2`. Private tensors that the anchor
    # lacks are not pulled.
    pull: tuple[Tree, float] | None = None
    # Replaces the gradient `step.g` at the weights `step.w`. It may ask for the gradient at other
    # weights or on further batches: `step.at(w, batch)`.
    gradient: GradientHook | None = None
    # The modules that are trained; all others stay as they are, in evaluation mode. None: all.
    only: Sequence[nn.Module] | None = None
    # A module of the client's own that is trained on the resident body's features, in place of the
    # model's head. Nothing else is trained then.
    head: nn.Module | None = None
    # Weights of models that see each batch too, in evaluation mode and without gradient.
    refs: Mapping[str, Tree] = field(default_factory=dict)
    # The models see `inputs(x)` in place of a batch `x`.
    inputs: Inputs | None = None
    # Modules of the model; `batch.seen` holds what goes into each and what comes out.
    watch: Sequence[nn.Module] = ()
    # The number of the stream of batches. By default it is `earlier`, so two calls see different
    # orders; `stream=0` twice gives both the same one.
    stream: int | None = None
    # Stands before the names of the reported parts, to tell the loss of a second model apart.
    label: str = ""
    # Scales losses that are computed in fp16.
    scaler: LossScaler | None = None
    # What optimisers remember of earlier rounds, where they are kept.
    memory: Memory | None = None
    # Progress: the number of the step that is under way, and the samples seen so far in all steps.
    step: int = 0
    seen: int = 0

    def __post_init__(self) -> None:
        self.refs = self.refs or {}
        self.watch = list(self.watch)
        if self.only is not None:
            self.only = list(self.only)
        if self.head is not None:
            if self.only is not None:
                raise FedloomError("`head` is trained alone: it goes without `only`.")
            self.only = [self.head]
        elif self.only and not {id(m) for m in self.only} <= {id(m) for m in self.model.modules()}:
            raise FedloomError("`only` names a module that is not part of the model.")

    @cached_property
    def model(self) -> Any:
        """The network that is trained, with a `body` and a `head`."""
        if self.head is None:
            return self.worker.model
        return Headed(self.worker.model.body, self.head)

    @cached_property
    def named(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that are trained, by name."""
        if self.head is None:
            return self.worker.trainable(self.only)
        return [(n, p) for n, p in self.head.named_parameters() if p.requires_grad]

    @cached_property
    def params(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return [p for _, p in self.named]

    @cached_property
    def samples(self) -> torch.Tensor:
        """The rows of the data set that are the client's training samples."""
        return torch.from_numpy(self.worker.rows(self.client))

    @cached_property
    def class_weights(self) -> torch.Tensor | None:
        """What each class counts in the loss; 1 on average over the client's samples."""
        if self.training.class_weights == "none":
            return None
        counts = self.worker.federation.counts(self.client)
        present = counts > 0
        weights = counts.sum() / (present.sum() * counts.clamp(min=1))
        return self.worker.here(torch.where(present, weights, 0.0))

    @cached_property
    def planned(self) -> int:
        """How many steps the client takes."""
        return self.training.planned(len(self.samples), self.work)

    def rng(self, purpose: str) -> torch.Generator:
        """A generator that belongs to the client, the round, the stream and a purpose."""
        stream = self.earlier if self.stream is None else self.stream
        return torch_rng(self.worker.seed, self.round, self.client, f"{purpose} {stream}")

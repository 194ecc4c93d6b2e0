"""What a method sees of a client: values, and what it may ask of `local` and of a worker.

The room `client` implements `Local` and the protocol `Worker`; methods, parts and plug-ins are
written against this page alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .roles import Role, Roles
from .tree import Tree

# All stored samples of a split at once -> one row of scores each. What `local.predictor` gives can
# be exported; a function cannot.
Predictor = Callable[[Tensor], Tensor]
# Samples as the model wants them -> what it is shown instead.
Inputs = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class Outputs:
    """What a model makes of a batch."""

    features: Tensor
    logits: Tensor


@dataclass(slots=True)
class Seen:
    """What went into a module of the model and what came out, in its last call on a batch."""

    input: Tensor
    output: Tensor


@dataclass(slots=True)
class Batch(Outputs):
    """A mini-batch as a loss sees it.

    Beside inputs, targets and the model's outputs it has those of reference models, by name, and
    what the watched modules saw, in the order of `watch`.
    """

    x: Tensor
    y: Tensor
    refs: Mapping[str, Outputs]
    seen: Sequence[Seen] = ()
    # What each class counts in the loss, if the run weighs classes, and whether a loss used it.
    class_weights: Tensor | None = None
    weighed: bool = False


@dataclass(slots=True)
class Step:
    """One training step as a gradient hook sees it: the gradient `g` at the weights `w`."""

    g: Tree
    w: Tree
    lr: float
    _at: Callable[[Tree, int], Tree]

    def at(self, w: Tree, batch: int = 0) -> Tree:
        """The gradient of the loss at other weights; the model stays as it is.

        `batch` 0 is the batch of this step. 1, 2 ... are further ones, each drawn independently and
        kept until the step is over.
        """
        return self._at(w, batch)


Loss = Callable[[Batch], Tensor | dict[str, Tensor]]
GradientHook = Callable[[Step], Tree]


def cross_entropy(batch: Batch) -> dict[str, Tensor]:
    """The mean softmax cross-entropy of a batch, weighted by class if the run says so."""
    batch.weighed = True
    return {"ce": F.cross_entropy(batch.logits, batch.y, batch.class_weights)}


@dataclass(frozen=True)
class Fit:
    """What a call of `local.fit` did."""

    steps: int  # executed, not planned
    lr: float
    losses: dict[str, float]  # mean over samples, by part of the loss


class Samples(Protocol):
    """The data set behind a federation, as far as a method may know it."""

    @property
    def name(self) -> str:
        """The name of the data set."""
        ...

    @property
    def kind(self) -> str:
        """What its samples are: image, vector, text or segmentation."""
        ...

    @property
    def scale(self) -> tuple[Tensor, Tensor]:
        """The mean and deviation by which a model sees its images standardised."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        ...

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains."""
        ...

    @property
    def encoder(self) -> str | None:
        """The frozen encoder whose features the samples are; None: they are not features."""
        ...

    @property
    def y(self) -> Tensor:
        """All labels."""
        ...

    @property
    def x(self) -> Any:
        """All stored samples."""
        ...


class Worker(Protocol):
    """What stays in a process between clients: the resident model, its first weights, the data."""

    @property
    def seed(self) -> int:
        """The run's seed."""
        ...

    @property
    def model(self) -> Any:
        """The resident model (with `body` and `head`)."""
        ...

    @property
    def roles(self) -> Roles:
        """The role of each of its tensors."""
        ...

    @property
    def first(self) -> Tree:
        """The model's first weights."""
        ...

    @property
    def clients(self) -> int:
        """How many clients the federation has."""
        ...

    @property
    def classes(self) -> int:
        """How many classes there are."""
        ...

    @property
    def width(self) -> int:
        """How many features the body gives for one sample."""
        ...

    @property
    def method_name(self) -> str:
        """The name of the method that runs, for error messages."""
        ...

    @property
    def training(self) -> Any:
        """The run's settings of local training; see `Training` in client/training.py."""
        ...

    @property
    def data(self) -> Samples:
        """The data set behind the federation."""
        ...

    def sizes(self, part: str = "train") -> list[int]:
        """How many samples of a part of its data (train, validation or test) each client has."""
        ...

    def load(self, *trees: Tree) -> None:
        """Set every tensor of the resident model, from the last tree that names it or else at
        first.
        """
        ...

    def tree(self, role: Role = "shared") -> Tree:
        """A copy of the resident model's tensors that have this role."""
        ...

    def parameters(self, only: Iterable[nn.Module] | None = None) -> Tree:
        """A copy of the resident model's trainable parameters, of all modules or `only` some."""
        ...

    def outputs(
        self, x: Tensor, inputs: Inputs | None = None, head: nn.Module | None = None
    ) -> Outputs:
        """Features and logits of stored samples, in evaluation mode, in large batches."""
        ...

    def predictor(
        self,
        inputs: nn.Module | None = None,
        head: nn.Module | None = None,
        rule: nn.Module | None = None,
    ) -> Predictor:
        """The resident model as it is now, as a predictor. Valid until the next `load`.

        It sees `inputs(x)` in place of samples, `head` takes the place of the model's head, and
        `rule(features, logits)` makes the scores. All three are modules (of `parts/`, where one
        fits), so that whatever predicts can also be exported.
        """
        ...

    def tests(self) -> tuple[Tensor, Tensor]:
        """The body's features of all clients' test samples, each sample once, and their labels."""
        ...


class Local:
    """What a client works with in one round: its data, the resident model, its random keys.

    Whatever the worker has is the worker's; the room `client` fills in the rest.
    """

    worker: Worker  # the worker that executes the client
    id: int  # the number of the client
    round: int  # the number of the round, counted from 1

    @property
    def classes(self) -> int:
        """How many classes there are in the federation."""
        return self.worker.classes

    @property
    def model(self) -> Any:
        """The resident model (with `body` and `head`)."""
        return self.worker.model

    @property
    def training(self) -> Any:
        """The run's settings of local training; see `Training` in client/training.py."""
        return self.worker.training

    def load(self, *trees: Tree) -> None:
        """Install weights in the resident model; see `Worker.load`."""
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
    ) -> Predictor:
        """The resident model as it is now, as a predictor; see `Worker.predictor`."""
        return self.worker.predictor(inputs, head, rule)

    @property
    def step(self) -> int:
        """The number of the training step that is under way, counted from 1; 0 before any."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """How many training samples the client has."""
        raise NotImplementedError

    @property
    def counts(self) -> Tensor:
        """The client's training samples of each class."""
        raise NotImplementedError

    def rng(self, purpose: str) -> torch.Generator:
        """A generator that belongs to (seed, round, client, purpose)."""
        raise NotImplementedError

    def chunks(self, part: str = "train") -> Iterator[tuple[Tensor, Tensor]]:
        """The client's samples as the model wants them, and labels, in order, many at a time."""
        raise NotImplementedError

    def outputs(self, part: str = "train") -> tuple[Outputs, Tensor]:
        """Features and logits of all the client's samples, in evaluation mode, and their labels."""
        raise NotImplementedError

    def evaluate(self, loss: Loss = cross_entropy, part: str = "train") -> dict[str, float]:
        """The mean loss of the resident model on all the client's samples, by part of the loss.

        It is empty if there are no samples. Nothing is trained.
        """
        raise NotImplementedError

    def renormalise(self) -> None:
        """Estimate the statistics of BatchNorm anew, on all training samples.

        It is for weights that were never trained as they are, such as mixtures of models.
        """
        raise NotImplementedError

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
        raise NotImplementedError

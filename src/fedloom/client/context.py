"""`ClientWorker` and `Local`: what a client works with, and `local.fit`, the library's only training loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.errors import FedloomError
from ..core.local import (
    Batch,
    Fit,
    GradientHook,
    Inputs,
    Loss,
    Outputs,
    Seen,
    Step,
    cross_entropy,
)
from ..core.rng import key, torch_rng
from ..core.roles import Role
from ..core.settings import part_of
from ..core.tree import Tree
from ..data.federation import Dataset, Federation
from ..data.transforms import augment
from ..data.views import Views
from ..models.base import Split, unhooked
from ..models.projection import Unit
from .fast.dense import Chain, layers
from .fast.lowrank import descend, products
from .training import Training

if TYPE_CHECKING:
    from ..core.method import Method

AHEAD = 64  # samples whose batches a chain is given together
EVAL_BATCH = 512
EVAL_VALUES = (
    512 * 3 * 32 * 32
)  # large images go in smaller batches, or their feature maps would fill the memory


class Headed(nn.Module):
    """A body with another head than its own; as a model is, but put together for the moment."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


@dataclass(frozen=True)
class Network:
    """A predictor that is a network: the resident body, with the model's head or another, shown `inputs(x)`."""

    worker: ClientWorker
    head: nn.Module | None = None
    inputs: Inputs | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self.worker.outputs(x, self.inputs, self.head).logits

    @property
    def module(self) -> nn.Module:
        """From samples as the model wants them to logits."""
        return self.worker.model if self.head is None else Headed(self.worker.model.body, self.head)


class ClientWorker:
    """What stays in a worker between clients: the resident model, its first weights, the data, the method."""

    def __init__(
        self,
        method: Method,
        federation: Federation,
        model: nn.Module,
        training: Training,
        seed: int,
        strict: bool = False,
    ) -> None:
        self.method, self.federation, self.training, self.seed, self.strict = (
            method,
            federation,
            training,
            seed,
            strict,
        )
        unhooked(model)
        self.given = model  # as it was given, for other workers to start from
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(seed, "extend"))
            self.model: Any = method.extend(
                copy.deepcopy(model), federation.data.classes
            )  # has a body and a head
        if not (hasattr(self.model, "body") and hasattr(self.model, "head")):
            raise FedloomError(
                "a model needs a body and a head; fedloom.models.split(network) makes them."
            )
        # Our networks are in channels-last order and want their images so: convolutions are up to 1.6 times as fast.
        last = any(p.ndim == 4 and not p.is_contiguous() for p in self.model.parameters())
        self._order = torch.channels_last if last else torch.contiguous_format
        self.roles = method.roles(self.model)
        self.tensors: dict[str, Tensor] = (
            self.model.state_dict()
        )  # live views of the resident model
        self.first = Tree(self.tensors).map(_plain)
        saved = {id(b) for b in self.model.state_dict(keep_vars=True).values()}
        # Buffers that a module keeps out of its state still must not leak from one client to the next.
        self._unsaved = [(b, b.clone()) for b in self.model.buffers() if id(b) not in saved]
        # An executor that trains ahead of `fit`: given the client, the head or model and its training, what came of it.
        self.ahead: Callable[[ClientContext, nn.Module, Training], Any] | None = None
        self._frozen = set(self.roles.names("frozen"))
        self._references: list[nn.Module] = []

    @property
    def method_name(self) -> str:
        """The name of the method that runs."""
        return self.method.name

    @property
    def data(self) -> Dataset:
        """The data set behind the federation."""
        return self.federation.data

    @property
    def clients(self) -> int:
        """How many clients the federation has."""
        return len(self.federation)

    def sizes(self, part: str = "train") -> list[int]:
        """How many samples of a part of its data (train, validation or test) each client has."""
        return [len(getattr(client, part)) for client in self.federation.clients]

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.federation.data.classes)

    @property
    def width(self) -> int:
        """How many features the body gives for one sample."""
        data = self.federation.data
        blank = torch.zeros_like(data.take(torch.arange(1)))
        features = self.outputs(blank).features
        if features.ndim != 2:
            raise FedloomError(
                f"{self.method.name} needs one vector of features per sample, the model gives maps."
            )
        return features.shape[1]

    @cached_property
    def stackable(self) -> bool:
        """Whether models like this one can be trained as a stack: layers for vectors that neither draw nor remember."""
        model, ndim = self.model, len(self.federation.data.x.shape)
        plain = type(model) is Split and not self._frozen
        return plain and layers(model.body, model.head, ndim=ndim, also=[Unit]) is not None

    @torch.no_grad()
    def load(self, *trees: Tree, into: nn.Module | None = None) -> None:
        """Set every tensor of the resident model: from the last tree that names it, else to its first value.

        All are set, so nothing of the client before is left over.
        """
        tensors = self.tensors if into is None else into.state_dict()
        source = dict(self.first)
        for tree in trees:
            for name, tensor in tree.items():
                if name not in source:
                    raise FedloomError(f"the model has no tensor {name!r}.")
                if tensor.shape != source[name].shape:
                    raise FedloomError(
                        f"tensor {name!r} has shape {tuple(tensor.shape)}, the model wants {tuple(source[name].shape)}."
                    )
                source[name] = tensor
        torch._foreach_copy_(list(tensors.values()), [source[n] for n in tensors])
        for buffer, first in self._unsaved if into is None else ():
            buffer.copy_(first)

    def tree(self, role: Role = "shared") -> Tree:
        """A copy of the resident model's tensors that have this role."""
        return Tree(self.tensors).only(self.roles.names(role)).map(_plain)

    def parameters(self, only: Iterable[nn.Module] | None = None) -> Tree:
        """A copy of the resident model's trainable parameters (no buffers), of all modules or `only` some."""
        return Tree((n, p) for n, p in self._trainable(only)).map(_plain)

    def prepare(self, x: Tensor) -> Tensor:
        """Stored samples as the resident model wants them."""
        x = self.federation.data.prepare(x)
        return x.contiguous(memory_format=self._order) if x.ndim == 4 else x

    def predictor(self, inputs: Inputs | None = None, head: nn.Module | None = None) -> Network:
        """The resident model as it is now, as a predictor; it is shown `inputs(x)`. Valid until the next `load`.

        With `head`, that module takes the place of the model's own head.
        """
        return Network(self, head, inputs)

    @torch.no_grad()
    def outputs(
        self, x: Tensor, inputs: Inputs | None = None, head: nn.Module | None = None
    ) -> Outputs:
        """Features and logits of stored samples, in evaluation mode, in large batches."""
        for module in (self.model, head):
            if (
                module is not None and module.training
            ):  # outside of `fit` all parts of a model are in one mode
                module.eval()
        head = head or self.model.head
        parts = []
        size = eval_batch(x.shape)
        for start in range(0, max(len(x), 1), size):
            part = self.prepare(x[start : start + size])
            parts.append(self.through(self.model.body, head, inputs(part) if inputs else part))
        if len(parts) == 1:  # the most frequent case, and a copy less
            return Outputs(*parts[0])
        features, logits = zip(*parts, strict=True)
        return Outputs(torch.cat(features), torch.cat(logits))

    def through(self, body: nn.Module, head: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits, computed in the precision of the run; what comes out is fp32 in any case."""
        if self.training.precision == "fp32":
            features = body(x)
            return features, head(features)
        with torch.autocast(x.device.type, torch.bfloat16):
            features = body(x)
            logits = head(features)
        return features.float(), logits.float()

    def tests(self) -> tuple[Tensor, Tensor]:
        """The resident body's features of all clients' test samples, each sample once, and their labels."""
        index = torch.from_numpy(
            np.unique(np.concatenate([c.test for c in self.federation.clients]))
        )
        return self.outputs(self.federation.data.take(index)).features, self.federation.data.y[
            index
        ]

    def _trainable(self, only: Iterable[nn.Module] | None) -> list[tuple[str, nn.Parameter]]:
        """Named parameters that may be trained: not frozen and, if `only` is given, inside one of its modules."""
        wanted = None if only is None else {id(p) for module in only for p in module.parameters()}
        return [
            (n, p)
            for n, p in self.model.named_parameters()
            if p.requires_grad and n not in self._frozen and (wanted is None or id(p) in wanted)
        ]

    def reference(self, i: int, weights: Tree) -> nn.Module:
        """The i-th spare model, loaded with `weights`, in evaluation mode."""
        while len(self._references) <= i:
            self._references.append(copy.deepcopy(self.model).eval().requires_grad_(False))
        self.load(weights, into=self._references[i])
        return self._references[i]


@dataclass
class ClientContext:
    """One client in one round: its data, the resident model, its random keys."""

    worker: ClientWorker
    id: int
    round: int
    work: float = 1.0  # share of the planned steps a straggler manages
    step: int = 0  # where training is, for error messages
    _fits: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many training samples the client has."""
        return len(self.worker.federation.clients[self.id].train)

    @property
    def classes(self) -> int:
        """How many classes there are in the federation."""
        return self.worker.classes

    @property
    def counts(self) -> Tensor:
        """The client's training samples of each class."""
        return self.worker.federation.counts(self.id)

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
        """A copy of the resident model's trainable parameters (no buffers), of all modules or `only` some."""
        return self.worker.parameters(only)

    def predictor(self, inputs: Inputs | None = None, head: nn.Module | None = None) -> Network:
        """The resident model as it is now, as a predictor, or its body with another head; it is shown `inputs(x)`."""
        return self.worker.predictor(inputs, head)

    def chunks(self, part: str = "train") -> Iterator[tuple[Tensor, Tensor]]:
        """The client's samples of that part as the model wants them, and their labels, in order, many at a time."""
        data, index = (
            self.worker.federation.data,
            torch.from_numpy(getattr(self.worker.federation.clients[self.id], part)),
        )
        for rows in index.split(eval_batch(data.x.shape)) if len(index) else ():
            yield self.worker.prepare(data.take(rows)), data.y[rows]

    def losses(self) -> dict[str, float]:
        """The mean of each loss part over the steps that had it."""
        return weighted(self._fits)

    @property
    def trained(self) -> bool:
        """Whether anything has been trained."""
        return bool(self._fits)

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

        `loss` maps a `Batch` to a scalar or to named parts that are summed. `pull=(anchor, mu)` adds the gradient of
        `mu/2 * |w - anchor|^2`. `gradient(step)` replaces the gradient `step.g` at weights `step.w`; it may ask for the
        gradient at other weights or on further batches, `step.at(w, batch)`. `only` restricts training to some modules;
        the others stay as they are, in evaluation mode. `head` is a module of the client's own that is trained on the
        resident body's features, in place of the model's head; nothing else is trained then. `refs` names weights of
        models that see each batch too, in evaluation mode and without gradient. The models are shown `inputs(x)` in
        place of a batch `x`. `watch` lists modules of the model; `batch.seen` holds what went into each and what came
        out. `stream` is the number of the stream of batches: by default how many calls came before it in this round, so
        two calls see different orders; `stream=0` twice gives both the same. A `label` is put before the reported
        parts, so that the loss of a second model stands apart. Other keywords change the run's `Training`. What a
        plug-in adds to the loss (`Method.terms`) is added in every call. Private tensors that an anchor lacks are not
        pulled.
        """
        training = self.training.changed(**changes) if changes else self.training
        worker, data = self.worker, self.worker.federation.data
        model = worker.model if head is None else Headed(worker.model.body, head)
        only, watched, also = (
            None if only is None else list(only),
            list(watch),
            list(worker.method.watched(worker.model)),
        )
        if head is not None:
            if only is not None:
                raise FedloomError("`head` is trained alone: it goes without `only`.")
            only = [head]
        if worker.ahead and (
            part := head or (worker.model if only is None and worker.stackable else None)
        ):
            special = (
                pull
                or gradient
                or refs
                or inputs
                or watched
                or training.augment
                or training.clip
                or label
            )
            special = special or not all(p.requires_grad for p in part.parameters())
            plain = (
                loss is cross_entropy
                and stream is None
                and not (special or self._fits or worker.method.adds)
            )
            if plain and not also:
                return self._handed(part, worker.ahead(self, part, training), training)
        own = (
            None
            if head is None
            else [(n, p) for n, p in head.named_parameters() if p.requires_grad]
        )
        named = worker._trainable(only) if own is None else own
        params = [p for _, p in named]
        references = {
            name: worker.reference(i, w) for i, (name, w) in enumerate((refs or {}).items())
        }
        if pull and (
            missing := [n for n, _ in named if n not in pull[0] and worker.roles.of[n] != "private"]
        ):
            raise FedloomError(f"the pull's anchor has no tensor {missing[0]!r}, which is trained.")
        if only and not {id(m) for m in only} <= {id(m) for m in model.modules()}:
            raise FedloomError("`only` names a module that is not part of the model.")
        anchor, mu = (
            ([(p, pull[0][n]) for n, p in named if n in pull[0]], pull[1]) if pull else ([], 0.0)
        )
        modules = [*watched, *also]
        index = torch.from_numpy(worker.federation.clients[self.id].train)
        number = len(self._fits) if stream is None else stream
        rng, shaken, further = (
            self.rng(f"{purpose} {number}") for purpose in ("batches", "augment", "further")
        )
        optimizer, lr = (
            training.make(params, self.round) if params else None,
            training.step_size(self.round),
        )
        planned = _planned(len(index), training, self.work)
        sums: dict[str, Tensor] = {}
        drawn: list[
            tuple[Tensor, Tensor, Tensor]
        ] = []  # batches of this step, and the noise they met
        seen = steps = 0
        if training.augment and data.y.ndim > 1:
            raise FedloomError(
                "augment would move images but not their masks; it is for classification."
            )

        def take(rows: Tensor) -> tuple[Tensor, Tensor]:
            if training.augment and isinstance(
                data.x, Views
            ):  # before a frozen encoder: augmented beforehand
                return worker.prepare(data.x.drawn(rows, shaken)), data.y[rows]
            x, y = data.take(rows), data.y.index_select(0, rows)
            return worker.prepare(
                augment(x, training.augment, shaken) if training.augment else x
            ), y

        def measure(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            # Statistics of a single sample are undefined: such a batch uses the running ones.
            for norm in norms:
                norm.train(len(y) > 1)
            x = inputs(x) if inputs else x
            noted: list[Seen] = []
            with _watched(modules, noted) if modules else _NOTHING:
                features, logits = worker.through(model.body, model.head, x)
            batch = Batch(
                features,
                logits,
                x,
                y,
                _see(worker, references, x) if references else {},
                noted[: len(watched)],
            )
            parts = loss(batch)
            parts = parts if isinstance(parts, dict) else {"loss": parts}
            parts |= worker.method.terms(
                replace(batch, seen=noted[len(watched) :]) if noted else batch, model
            )
            if not parts:
                raise FedloomError("the loss has no parts.")
            return torch.stack(list(parts.values())).sum() if len(parts) > 1 else next(
                iter(parts.values())
            ), parts

        def elsewhere(weights: Tree, number: int) -> Tree:
            now = torch.get_rng_state()
            while len(drawn) <= number:
                drawn.append(
                    (
                        *take(
                            index[torch.randperm(len(index), generator=further)[: training.batch]]
                        ),
                        now,
                    )
                )
            x, y, noise = drawn[number]
            kept = [(t, t.clone()) for t in (*params, *(b for m in norms for b in m.buffers()))]
            with torch.no_grad():
                torch._foreach_copy_([p for _, p in named], [weights[n] for n, _ in named])
            # A batch meets the same dropout at all weights, else differences of gradients would be noise; and nothing
            # is drawn from the generator of the steps themselves.
            torch.set_rng_state(noise)
            with torch.enable_grad():
                found = torch.autograd.grad(measure(x, y)[0], params, materialize_grads=True)
            torch.set_rng_state(now)
            with torch.no_grad():
                for tensor, before in kept:
                    tensor.copy_(before)
            return Tree((n, g) for (n, _), g in zip(named, found, strict=True))

        # Where nobody wants to see gradients, large ones need not be written out.
        unseen = (
            optimizer is not None
            and optimizer.plain
            and not (gradient or (anchor and mu) or training.clip)
        )
        chain = (
            self._chain(model, params)
            if loss is cross_entropy and not (inputs or modules or references)
            else None
        )
        large = products(
            model, params if unseen and not chain and training.precision == "fp32" else ()
        )

        def rate(step: int) -> float:
            return lr * 0.5 * (1 + math.cos(math.pi * step / planned)) if training.cosine else lr

        def at_once(chain: Chain) -> Iterator[tuple[int, dict[str, Tensor]]]:
            batches = _batches(len(index), training, planned, rng)
            while few := list(
                islice(batches, 1 if training.augment else max(1, AHEAD // training.batch))
            ):
                self.step, sizes = steps + 1, [len(rows) for rows in few]
                x, y = take(index.index_select(0, torch.cat(few)))
                means = chain.descend(x, y.split(sizes), [rate(steps + i) for i in range(len(few))])
                yield from ((size, {"ce": mean}) for size, mean in zip(sizes, means, strict=True))

        def one_by_one() -> Iterator[tuple[int, dict[str, Tensor]]]:
            for rows in _batches(len(index), training, planned, rng):
                self.step = steps + 1
                x, y = take(index.index_select(0, rows))
                drawn[:] = [(x, y, torch.get_rng_state())] if gradient else []
                total, parts = (chain.back(x, y), {}) if chain else measure(x, y)
                if worker.strict and not torch.isfinite(total):
                    raise FedloomError(f"the loss is {total.item()} ({', '.join(parts)}).")
                if optimizer is not None:
                    if not chain:
                        optimizer.zero_grad()
                        noted.clear()  # a loss may have asked for gradients itself
                        total.backward()
                    if gradient or (anchor and mu):
                        self._correct(named, anchor, mu, gradient, lr, elsewhere)
                    if training.clip:
                        nn.utils.clip_grad_norm_(params, training.clip, foreach=True)
                    optimizer.lr = rate(steps)
                    optimizer.step()
                    descend(noted, optimizer.lr)
                yield len(rows), parts or {"ce": total}

        with _trained(model, params, only, worker._frozen) as norms, large as noted:
            for number, parts in at_once(chain) if chain and unseen else one_by_one():
                for name, part in parts.items():
                    value = part.detach() * number
                    sums[name] = sums[name] + value if name in sums else value
                seen, steps = seen + number, steps + 1
        losses = {
            f"{label}/{name}" if label else name: float(value) / seen
            for name, value in sums.items()
        }
        self._fits.append((seen, losses))
        return Fit(steps, lr, losses)

    def _chain(self, model: Any, params: list[nn.Parameter]) -> Chain | None:
        """The model as a chain of layers, if it is one whose cross-entropy is all that is trained."""
        worker, trained = self.worker, {id(p) for p in params}
        plain = worker.training.precision == "fp32" and not (worker.strict or worker.method.adds)
        found = (
            layers(model.body, model.head, ndim=len(worker.federation.data.x.shape))
            if plain
            else None
        )
        return (
            Chain(found, params)
            if found and any(id(p) in trained for m in found for p in m.parameters())
            else None
        )

    @torch.no_grad()
    def _handed(self, part: nn.Module, done: Any, training: Training) -> Fit:
        """A head or model that was trained together with other clients' takes its new weights."""
        for name, parameter in part.named_parameters():
            parameter.copy_(done.weights[name])
        losses = {"ce": done.loss}
        self._fits.append((done.seen, losses))
        return Fit(done.steps, training.step_size(self.round), losses)

    def outputs(self, part: str = "train") -> tuple[Outputs, Tensor]:
        """Features and logits of all the client's samples of that part, in evaluation mode, and their labels."""
        x, y = self.worker.federation.samples(self.id, part)
        return self.worker.outputs(x), y

    @torch.no_grad()
    def renormalise(self) -> None:
        """Estimate the running statistics of BatchNorm anew, on all training samples, for the resident weights.

        For weights that were never trained as they are (mixtures of models), whose statistics nobody has seen.
        """
        worker, data = self.worker, self.worker.federation.data
        norms = [
            m
            for name, m in worker.model.named_modules()
            if isinstance(m, _BatchNorm)
            and m.track_running_stats
            and f"{name}.running_mean" not in worker._frozen
        ]
        index = torch.from_numpy(worker.federation.clients[self.id].train)
        size = eval_batch(data.x.shape)
        chunks = [
            rows for rows in index.split(size) if len(rows) > 1
        ]  # a single sample has no variance
        if not norms or not chunks:
            return
        worker.model.eval()
        momenta = [m.momentum for m in norms]
        for m in norms:
            m.reset_running_stats()
            m.momentum = None  # the mean over chunks
            m.train()
        for rows in chunks:
            worker.through(worker.model.body, nn.Identity(), data.prepare(data.take(rows)))
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
        worker.model.eval()

    @torch.no_grad()
    def evaluate(self, loss: Loss = cross_entropy, part: str = "train") -> dict[str, float]:
        """The mean loss of the resident model, by part of the loss, on all of the client's samples of a part of its
        data (train or validation); nothing is trained. Empty if there are none."""
        model, seen = self.worker.model.eval(), 0
        sums: dict[str, float] = {}
        for x, y in self.chunks(part):
            parts = loss(Batch(*self.worker.through(model.body, model.head, x), x, y, {}))
            for name, value in (parts if isinstance(parts, dict) else {"loss": parts}).items():
                sums[name] = sums.get(name, 0.0) + float(value) * len(y)
            seen += len(y)
        return {name: total / seen for name, total in sums.items()}

    @torch.no_grad()
    def _correct(
        self,
        named: list[tuple[str, nn.Parameter]],
        anchor: list[tuple[nn.Parameter, Tensor]],
        mu: float,
        hook: GradientHook | None,
        lr: float,
        elsewhere: Callable[[Tree, int], Tree],
    ) -> None:
        params = [p for _, p in named]
        for p in params:  # a parameter the loss does not reach still feels a pull
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        grads = [p.grad for p in params if p.grad is not None]
        if anchor and mu:
            pulled = [p.grad for p, _ in anchor if p.grad is not None]
            away = torch._foreach_sub([p.data for p, _ in anchor], [a for _, a in anchor])
            torch._foreach_add_(pulled, away, alpha=mu)
        if hook:
            names = [n for n, _ in named]
            new = hook(
                Step(
                    Tree(zip(names, grads, strict=True)),
                    Tree((n, p.detach()) for n, p in named),
                    lr,
                    elsewhere,
                )
            )
            # Copied, because clipping and optimisers change gradients in place and the hook's tensors are its own.
            torch._foreach_copy_(grads, [new[n] for n in names])


def _plain(tensor: Tensor) -> Tensor:
    """A copy in plain order, as it would come out of a file, so that sums over it do not depend on where it was."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def eval_batch(shape: Sequence[int]) -> int:
    """How many samples of stored data of this shape are evaluated at once."""
    return max(16, min(EVAL_BATCH, EVAL_VALUES // max(1, math.prod(shape[1:]))))


def weighted(parts: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Means by name of (weight, {name: value}), each over those that have the name."""
    sums: dict[str, list[float]] = {}
    for weight, values in parts:
        for name, value in values.items():
            total = sums.setdefault(name, [0.0, 0.0])
            total[0] += weight * value
            total[1] += weight
    return {name: total / weight for name, (total, weight) in sorted(sums.items())}


def _see(worker: ClientWorker, references: Mapping[str, Any], x: Tensor) -> dict[str, Outputs]:
    with torch.no_grad():
        return {
            name: Outputs(*worker.through(model.body, model.head, x))
            for name, model in references.items()
        }


def _per_epoch(n: int, training: Training) -> int:
    """How many steps an epoch has: the incomplete last batch counts unless told otherwise."""
    full, rest = divmod(n, training.batch)
    return full + (1 if rest and not (training.drop_last and full) else 0)


def _planned(n: int, training: Training, work: float) -> int:
    """How many steps a client takes that manages that share of its work."""
    return (
        max(1, part_of(training.steps or training.epochs * _per_epoch(n, training), work))
        if n
        else 0
    )


def _batches(n: int, training: Training, left: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Row numbers of each step's batch: epochs of shuffled data."""
    while left:
        order = torch.randperm(n, generator=rng)
        for rows in order.split(training.batch)[: min(_per_epoch(n, training), left)]:
            yield rows
            left -= 1


def _full(x: Tensor) -> Tensor:
    """Losses are computed in fp32 even where networks are not."""
    return x.float() if x.dtype == torch.bfloat16 else x


_NOTHING: nullcontext[None] = nullcontext()


@contextmanager
def _watched(modules: Sequence[nn.Module], seen: list[Seen]) -> Iterator[None]:
    """Notes what goes into and comes out of modules while it is open: one `Seen` for each, in `seen` when it closes."""
    given: dict[int, Tensor] = {}
    found: dict[int, Seen] = {}

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        # A layer that works in place would overwrite what went in.
        given[id(module)] = args[0].clone() if getattr(module, "inplace", False) else args[0]

    def after(module: nn.Module, _: object, output: Tensor) -> None:
        found[id(module)] = Seen(_full(given[id(module)]), _full(output))

    handles: list[Any] = []
    for module in modules:
        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if idle := [m for m in modules if id(m) not in found]:
        raise FedloomError(
            f"a {type(idle[0]).__name__} that is watched takes no part in what the model computes."
        )
    seen += [found[id(m)] for m in modules]


class _trained:
    """Training mode for the parts that train, for as long as the loop runs; hands out BatchNorm layers in them."""

    def __init__(
        self,
        model: nn.Module,
        params: list[nn.Parameter],
        only: list[nn.Module] | None,
        frozen: set[str],
    ) -> None:
        self.model, self.only, self.frozen = model, only, frozen
        trained = {id(p) for p in params}
        self.idle = [p for p in model.parameters() if id(p) not in trained and p.requires_grad]

    def __enter__(self) -> list[_BatchNorm]:
        for p in self.idle:
            p.requires_grad_(False)
        self.model.train(self.only is None)
        for module in self.only or ():
            module.train()
        for prefix, module in self.model.named_modules() if self.frozen else ():
            names = [f"{prefix}.{n}" if prefix else n for n in module.state_dict()]
            if names and all(n in self.frozen for n in names):
                module.eval()
        return [m for m in self.model.modules() if isinstance(m, _BatchNorm) and m.training]

    def __exit__(self, *_: object) -> None:
        self.model.eval()
        for p in self.idle:
            p.requires_grad_(True)
        for p in self.model.parameters():
            p.grad = None

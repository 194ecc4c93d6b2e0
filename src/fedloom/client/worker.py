"""`ClientWorker`: what stays in a process between clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..core import private_torch
from ..core.device import CPU, Device
from ..core.errors import FedloomError
from ..core.local import Inputs, Outputs
from ..core.method import Method
from ..core.payload import Payload
from ..core.private_torch import BATCHNORMS
from ..core.rng import key
from ..core.roles import Role, at_rest, twin
from ..core.tree import Tree
from ..data.clients import every_row, sizes
from ..data.dataset import Dataset
from ..data.federation import Federation
from ..models.base import unhooked
from ..models.stages import Stages
from .compiling import refuse_uncompiled
from .large import at_once
from .networks import (
    Named,
    Networks,
    Shapes,
    refuse_one_network,
    refuse_other_weights,
    refuse_other_widths,
)
from .remembered import Known, Remembered, noted, rows_of
from .standard import CHUNK, Standard, Standardise, merged, reported, standard_in
from .training import Training

NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}  # precisions of 16 bits


@dataclass(frozen=True)
class Network:
    """A predictor that is a network: the resident body with the model's head or another one.

    It sees `inputs(x)` in place of the samples `x`. A `rule` makes scores of the features and
    logits of all samples; without one, logits are the scores.
    """

    worker: ClientWorker
    head: nn.Module | None = None
    inputs: nn.Module | None = None
    rule: nn.Module | None = None

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        seen = self.worker.outputs(x, self.inputs, self.head)
        if self.rule is None:
            return seen.logits
        if self.rule.training:
            self.rule.eval()
        scores: Tensor = self.rule(seen.features, seen.logits)
        return scores

    @property
    def module(self) -> Stages:
        """The module that turns samples, as the model wants them, into scores."""
        model = self.worker.model
        return Stages(model.body, self.head or model.head, self.inputs, self.rule)


class ClientWorker:
    """The resident model with its first weights, the data and the method.

    All tensors that a worker hands out are on its device.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        model: nn.Module | Networks,
        training: Training,
        seed: int,
        strict: bool = False,
        devices: Sequence[Device] = (CPU,),
        standardise: Standardise = "raw",
        fits: bool | None = None,
        lead: ClientWorker | None = None,
        known: Sequence[Known | None] = (None,),
    ) -> None:
        self.method, self.training = method, training
        # Where clients' networks differ there is a worker for each, and the first of them leads.
        self._lead, self.crew = lead, [self]
        self.named: Named | None = None  # its network, where there are others
        # What standardises the features of the client at hand; see client/standard.py.
        self.standard: Standard | None = None
        self.seed, self.strict = seed, strict
        # This worker computes on the first device; an executor may start others on the rest.
        self.devices, self.device = tuple(devices), devices[0]
        # Whether samples fit on the device, if somebody else has found out.
        self._fits = fits
        self.federation = federation
        self.device.set_precision(tf32=training.precision == "tf32")
        self.device.forget_peak()
        if training.compiled:
            refuse_uncompiled(self.device)
        self.networks = model  # as they came, so that other workers can start from them
        self.given = model.modules[0] if isinstance(model, Networks) else model
        unhooked(self.given)
        with CPU.seeded(key(seed, "extend")):
            self.model: Any = method.extend(twin(self.given), federation.data.classes)
        self.order = self._laid_out()
        if self.device.accelerated:
            self.model.to(self.device.torch)
        if not (hasattr(self.model, "body") and hasattr(self.model, "head")):
            raise FedloomError(
                "a model needs a body and a head; fedloom.models.split(network) makes them."
            )
        if training.eval_stats == "own":
            refuse_without_statistics(self.model)
        self.roles = method.roles(self.model)
        self.frozen = set(self.roles.names("frozen"))
        self.resting = at_rest(self.model, self.frozen)
        self.standardise = standardise
        if method.traits.averages and not self.roles.names("shared") and standardise == "common":
            self.standardise = "own"  # on this network the method shares nothing, as `local` does
        self.tensors: dict[str, Tensor] = self.model.state_dict()  # live views of the model
        # Those that change; what is frozen never does, so it needs no second copy.
        self._moving = self._changing(self.model)
        self.first = Tree(self._moving).map(_plain)
        saved = {id(b) for b in self.model.state_dict(keep_vars=True).values()}
        # A module may keep buffers out of its state; they still must not leak to the next client.
        self._unsaved = [(b, b.clone()) for b in self.model.buffers() if id(b) not in saved]
        self._references: list[Any] = []
        self._compiled: dict[nn.Module, nn.Module] = {}
        # Of each network, what somebody has computed already; see client/remembered.py.
        self.remembered = Remembered(self, known[0])
        if isinstance(model, Networks):
            self._enlist(model, standardise)
            for worker, of_network in zip(self.crew, known, strict=False):
                worker.remembered = Remembered(worker, of_network)

    def _enlist(self, networks: Networks, standardise: Standardise) -> None:
        """Take on a worker for each network but the first, which is this one's own."""
        refuse_one_network(self.method.name, self.method.traits.networks)
        same = (self.training, self.seed, self.strict, self.devices, standardise, self._fits)
        for module in networks.modules[1:]:
            self.crew.append(ClientWorker(self.method, self.federation, module, *same, lead=self))
        for worker, named in zip(self.crew, networks.named, strict=True):
            worker.named = named
        name = self.method.name
        if self.method.traits.networks == "width":
            widths = [worker.blank_features().shape[1] for worker in self.crew]
            refuse_other_widths(name, networks.named, widths)
        refuse_other_weights(name, networks.named, [worker._travelling() for worker in self.crew])

    def _travelling(self) -> Shapes:
        """The shapes of the network's shared tensors."""
        return {name: tuple(self.tensors[name].shape) for name in self.roles.names("shared")}

    def of(self, k: int) -> ClientWorker:
        """The worker that has client `k`'s network: itself, unless clients' networks differ."""
        if isinstance(self.networks, Networks):
            return self.crew[self.networks.owned[k]]
        return self

    def _laid_out(self) -> torch.memory_format:
        """Bring the resident model into the layout that is wanted; images then have it too."""
        wanted = self.training.channels_last
        if wanted is None and self.device.keeps_layouts:
            # Networks whose weights are in channels-last order, as those of fedloom are, want their
            # images so: convolutions are then up to 1.6 times as fast.
            last = any(p.ndim == 4 and not p.is_contiguous() for p in self.model.parameters())
            return torch.channels_last if last else torch.contiguous_format
        order = torch.channels_last if wanted else torch.contiguous_format
        self.model.to(memory_format=order)
        return order

    @property
    def channels_last(self) -> bool:
        """Whether images lie channels-last in memory."""
        return self.order is torch.channels_last

    @property
    def federation(self) -> Federation:
        """The clients' data, as they were dealt out, on the CPU."""
        return self._lead.federation if self._lead else self._federation

    @federation.setter
    def federation(self, federation: Federation) -> None:
        """Take other data, for all of the crew."""
        self._federation = federation
        for worker in self.crew:
            for placed in ("data", "resident"):
                worker.__dict__.pop(placed, None)
            if "remembered" in vars(worker):
                worker.remembered = Remembered(worker)

    @cached_property
    def data(self) -> Dataset:
        """The data set: labels are on the device, and samples too if they fit there.

        It moves when somebody first asks for it, so a process whose clients are computed by others
        keeps no copy on the device.
        """
        if self._lead:
            return self._lead.data
        data = self.federation.data
        if not self.device.accelerated:
            return data
        fits = self._fits
        if fits is None:
            fits = self.device.fits(data.x.nbytes)
        return data.on(self.device.torch, samples=fits)

    @cached_property
    def resident(self) -> bool:
        """Whether samples are on the device; if not, they go there batch by batch."""
        x = self.data.x
        return isinstance(x, Tensor) and x.device.type == self.device.type

    @property
    def method_name(self) -> str:
        """The name of the method that runs."""
        return self.method.name

    @property
    def clients(self) -> int:
        """How many clients the federation has."""
        return len(self.federation)

    def sizes(self, part: str = "train") -> list[int]:
        """How many samples of a part of its data (train, validation or test) each client has."""
        counts: list[int] = sizes(self.federation.clients, part).tolist()
        return counts

    def rows(self, client: int, part: str = "train") -> np.ndarray:
        """Which rows of the data set are a client's samples of a part of its data."""
        return self.federation.rows(client, part)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.federation.data.classes)

    @property
    def width(self) -> int:
        """How many features the body gives for one sample."""
        features = self.blank_features()
        if features.ndim != 2:
            raise FedloomError(
                f"{self.method.name} needs one vector of features per sample, the model gives maps."
            )
        return features.shape[1]

    def blank_features(self) -> Tensor:
        """What the body makes of a blank sample."""
        return self.outputs(torch.zeros_like(self.samples(torch.arange(1)))).features

    @torch.no_grad()
    def load(self, *trees: Tree, into: nn.Module | None = None) -> None:
        """Set every tensor of the resident model that is not frozen.

        Each is set from the last tree that names it, else to its first value, so nothing of the
        previous client is left over.
        """
        source = dict(self.first)
        for tree in trees:
            for name, tensor in tree.items():
                if name in self.frozen:
                    raise FedloomError(f"tensor {name!r} is frozen: nothing is loaded into it.")
                if name not in source:
                    raise FedloomError(f"the model has no tensor {name!r}.")
                if tensor.shape != source[name].shape:
                    raise FedloomError(
                        f"tensor {name!r} has shape {tuple(tensor.shape)}, "
                        f"the model wants {tuple(source[name].shape)}."
                    )
                source[name] = tensor
        tensors = self._moving if into is None else self._changing(into)
        if tensors:
            private_torch.copy_(list(tensors.values()), [source[n] for n in tensors])
        if into is None:
            for buffer, first in self._unsaved:
                buffer.copy_(first)

    def _changing(self, model: nn.Module) -> dict[str, Tensor]:
        """Live views of a model's tensors that are not frozen."""
        return {n: t for n, t in model.state_dict().items() if n not in self.frozen}

    def tree(self, role: Role = "shared") -> Tree:
        """A copy of the resident model's tensors that have this role."""
        return Tree(self.tensors).only(self.roles.names(role)).map(_plain)

    def parameters(self, only: Iterable[nn.Module] | None = None) -> Tree:
        """A copy of the resident model's trainable parameters, of all modules or `only` some."""
        return Tree(self.trainable(only)).map(_plain)

    def trainable(self, only: Iterable[nn.Module] | None) -> list[tuple[str, nn.Parameter]]:
        """The parameters that training may change, by name, of all modules or `only` some."""
        wanted: set[int] | None = None
        if only is not None:
            wanted = set()
            for module in only:
                wanted.update(id(p) for p in module.parameters())
        named = []
        for name, p in self.model.named_parameters():
            if p.requires_grad and name not in self.frozen and (wanted is None or id(p) in wanted):
                named.append((name, p))
        return named

    def here(self, x: Tensor) -> Tensor:
        """A tensor on the worker's device; from pinned memory the copy goes on meanwhile.

        Torch keeps pinned memory until the copy is done. Other memory may be gone by then, so its
        copies are waited for.
        """
        if not self.device.accelerated:
            return x
        if self.device.pins and x.device.type != self.device.type:
            return x.pin_memory().to(self.device.torch, non_blocking=True)
        return x.to(self.device.torch)

    def arrived(self, payload: Payload) -> Payload:
        """What the server sends, or a client remembers, on the worker's device."""
        if not self.device.accelerated:
            return payload
        return Payload.sealed(payload, self.device.torch)

    def leaving(self, payload: Payload) -> Payload:
        """What goes to the server, or is kept for a client's next round, on the CPU."""
        if not self.device.accelerated:
            return payload
        return payload.on(CPU.torch)

    def samples(self, rows: Tensor) -> Tensor:
        """The stored samples with these numbers."""
        if self.resident:
            return noted(self.data.take(self.here(rows)), rows)
        return noted(self.here(self.data.take(rows)), rows)

    def labels(self, rows: Tensor) -> Tensor:
        """The labels of the samples with these numbers."""
        return self.data.y[self.here(rows)]

    def prepare(self, x: Tensor) -> Tensor:
        """Stored samples as the resident model wants them."""
        rows = rows_of(x)
        x = self.data.prepare(self.here(x))
        if self.standard is not None:
            x = self.standard(x)
        if x.ndim == 4:
            x = x.contiguous(memory_format=self.order)
        return noted(x, rows)

    def report(self, k: int) -> Payload:
        """What client `k` says of its features when it first appears."""
        data = self.federation.data
        rows = torch.from_numpy(self.rows(k))
        parts = (data.take(some) for some in rows.split(CHUNK) if len(some))
        return reported(parts, data.x.shape[1])

    def adopt(self, k: int, *payloads: Payload) -> None:
        """Standardise features for client `k` from now on, as one of these payloads says."""
        self.standard = None
        if self.standardise == "own" and len(self.rows(k)):
            statistics = merged([self.report(k)])
            self.standard = Standard(self.here(statistics.mean), self.here(statistics.scale))
        if self.standardise == "common":
            self.standard = standard_in(*payloads)
            if self.standard is None:
                raise FedloomError("nobody has said how features are standardised.")
        if self.standard is not None and self._keeps_head:
            self.standard = self.standard.with_offset()

    @property
    def _keeps_head(self) -> bool:
        """Whether the model's head never leaves its client."""
        names = [name for name in self.tensors if name.startswith("head.")]
        return bool(names) and all(self.roles.of[name] == "private" for name in names)

    def predictor(
        self,
        inputs: nn.Module | None = None,
        head: nn.Module | None = None,
        rule: nn.Module | None = None,
    ) -> Network:
        """The resident model as it is now, as a predictor that sees `inputs(x)`.

        It is valid until the next `load`. `head` takes the place of the model's own head;
        `rule(features, logits)` are the scores.
        """
        return Network(self, head, inputs, rule)

    @torch.no_grad()
    def outputs(
        self, x: Tensor, inputs: Inputs | None = None, head: nn.Module | None = None
    ) -> Outputs:
        """Features and logits of stored samples, in evaluation mode, in large batches."""
        for module in (self.model, head):
            # Outside of training all parts of a model are in one mode, so one flag tells it all.
            if module is not None and module.training:
                module.eval()
        head = head or self.model.head
        parts = []
        size, rows = at_once(self.model.body, x.shape), rows_of(x)
        for start in range(0, max(len(x), 1), size):
            some = slice(start, start + size)
            part = self.prepare(noted(x[some], None if rows is None else rows[some]))
            if inputs:
                part = inputs(part)
            parts.append(self.through(self.model.body, head, part))
        if len(parts) == 1:  # the most frequent case, and it saves a copy
            return Outputs(*parts[0])
        features, logits = zip(*parts, strict=True)
        return Outputs(torch.cat(features), torch.cat(logits))

    def through(self, body: nn.Module, head: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits, computed in the run's precision; the results are always fp32."""
        if self.remembered.any and not _watched(body):
            body, x = self.remembered.shortened(body, x)
        # A compiled module would not call the hooks of those who watch it.
        if self.training.compiled and not (_watched(body) or _watched(head)):
            body, head = self._quicker(body), self._quicker(head)
        narrow = NARROW.get(self.training.precision)
        if narrow is None:
            features = body(x)
            return features, head(features)
        with torch.autocast(self.device.type, narrow):
            features = body(x)
            logits = head(features)
        return features.float(), logits.float()

    def _quicker(self, module: nn.Module) -> nn.Module:
        """The module as `torch.compile` makes it, once.

        Modules that a method makes anew for every client stay as they are: to compile them would
        take longer than they save.
        """
        lasting = [part for model in (self.model, *self._references) for part in model.children()]
        if module not in self._compiled and any(module is part for part in lasting):
            self._compiled[module] = cast(nn.Module, torch.compile(module))
        return self._compiled.get(module, module)

    def tests(self) -> tuple[Tensor, Tensor]:
        """The body's features of all clients' test samples, each sample once, and their labels."""
        index = torch.from_numpy(every_row(self.federation.clients, ["test"]))
        return self.outputs(self.samples(index)).features, self.labels(index)

    def has(self, body: nn.Module) -> bool:
        """Whether a body is the resident model's, or that of a spare one."""
        return any(body is model.body for model in (self.model, *self._references))

    def reference(self, i: int, weights: Tree) -> nn.Module:
        """The i-th spare model, loaded with `weights`, in evaluation mode."""
        while len(self._references) <= i:
            spare = twin(self.model, self.frozen)
            self._references.append(spare.eval().requires_grad_(False))
        self.load(weights, into=self._references[i])
        spare_model: nn.Module = self._references[i]
        return spare_model


def refuse_without_statistics(model: nn.Module) -> None:
    """Refuse own statistics in evaluation where a network keeps none."""
    if not any(isinstance(m, BATCHNORMS) for m in model.modules()):
        raise FedloomError(
            "eval_stats=own needs a network with BatchNorm (--set norm=batch); this one has none."
        )


def _watched(module: nn.Module) -> bool:
    """Whether somebody sees what goes into a module, or into a part of it, or what comes out."""
    return any(private_torch.seen(part) for part in module.modules())


def _plain(tensor: Tensor) -> Tensor:
    """A copy in contiguous order, as if read from a file: sums then do not depend on its origin."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)

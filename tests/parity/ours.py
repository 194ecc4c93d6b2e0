"""Our side of a comparison: a method's hooks in the world of `inputs.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make
from fedloom.core.method import Method
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.data.federation import Federation
from tests.parity.golden import Golden
from tests.parity.inputs import BATCH, SIZES, network, world

EVERYBODY = range(len(SIZES))


@dataclass
class Ours:
    """A method, the server and the clients; `play` takes them through rounds."""

    worker: ClientWorker
    round: int = 0
    server: Payload = field(default_factory=Payload)
    states: list[Payload] = field(default_factory=lambda: [Payload() for _ in EVERYBODY])
    uploads: list[Payload] = field(default_factory=list)
    trained: list[Payload] = field(default_factory=list)  # held right after training
    losses: list[dict[str, float]] = field(default_factory=list)  # means over a round's steps

    @property
    def method(self) -> Method:
        """The method."""
        return self.worker.method

    def client(self, k: int) -> ClientContext:
        """Client k in this round."""
        return ClientContext(self.worker, k, self.round)

    def play(self, rounds: int = 1) -> Ours:
        """Some rounds with all clients."""
        for _ in range(rounds):
            self.play_with(EVERYBODY)
        return self

    def play_with(self, cohort: Sequence[int]) -> None:
        """A round with some clients; all say hello before the first."""
        self.round += 1
        self.server = self.server.replace(round=self.round)
        if self.round == 1:
            hellos = {k: self.method.hello(self.client(k)).copy() for k in EVERYBODY}
            self.server = self.method.join(self.server, hellos)
        self.uploads, self.trained, self.losses = [], [], []
        for k in cohort:
            local = self.client(k)
            update = self.method.client(self.download(k), self.states[k].copy(), local)
            self.states[k] = update.state.copy()
            self.uploads.append(update.upload.copy())
            self.trained.append(update.trained.copy())
            self.losses.append(local.losses())
        self.server = self.method.aggregate(
            self.server, zip(cohort, self.uploads, strict=True)
        ).copy()

    def download(self, k: int) -> Payload:
        """What client k is sent."""
        return self.method.download(self.server, k).copy()

    def scores(self, k: int, stage: str = "before") -> Tensor:
        """What client k predicts for its test samples: with what it would be sent now (`before`
        training) or with what it had right `after` training.
        """
        held = self.download(k)
        if stage == "after":
            held = self.trained[k]
        predict = self.method.personal(held, self.states[k].copy(), self.client(k))
        return predict(self.worker.samples(torch.from_numpy(self.worker.rows(k, "test"))))


def start(
    golden: Golden, model: nn.Module | None = None, federation: Federation | None = None
) -> Ours:
    """Our method with the settings of a golden file, before the first round."""
    method, training = golden.chosen()
    worker = ClientWorker(
        make(golden.method, method),
        federation or world(golden.seed),
        model or network(golden.seed, golden.settings.get("norm", False)),
        Training(**{"batch": BATCH, "lr": 0.1, **training}),
        seed=golden.seed,
    )
    server = worker.method.init(worker).replace(round=0, seed=worker.seed)
    return Ours(worker, server=server)


def as_model(row: Tensor) -> Tree:
    """A row of numbers as the tensors of our network."""
    names = ("body.0.bias", "body.0.weight", "head.bias", "head.weight")
    shapes = ((5,), (5, 6), (4,), (4, 5))
    parts = row.split([5, 30, 4, 20])
    reshaped = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    return Tree(dict(zip(names, reshaped, strict=True)))


def flat(tree: Mapping[str, Tensor]) -> Tensor:
    """All tensors in one row, in the alphabetical order of their names, without counters."""
    named = [tree[name] for name in sorted(tree) if tree[name].is_floating_point()]
    return torch.cat([tensor.reshape(-1) for tensor in named])


def clients(
    payloads: Sequence[Payload], part: str = "model", name: str = "client"
) -> dict[str, Tensor]:
    """A part of each of the payloads, one per client, under a name and the client's number."""
    return {f"{name} {k}": flat(payload.tree(part)) for k, payload in enumerate(payloads)}


def predictions(ours: Ours, stage: str = "before") -> dict[str, Tensor]:
    """The scores of each client's test samples."""
    return {f"scores {k}": ours.scores(k, stage) for k in EVERYBODY}


def losses(ours: Ours, part: str = "ce", name: str = "loss") -> dict[str, Tensor]:
    """A part of the loss, its mean over the steps of the last round."""
    return {f"{name} {k}": torch.tensor(ours.losses[k][part]) for k in EVERYBODY}

"""What methods on a frozen vision-language model share: text rows made once by the server and kept by clients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as validated
from torch import Tensor, nn

from ..core.local import Local, Predictor, Worker
from ..core.method import Method, Traits, Update, Uploads, sizes
from ..core.payload import Payload
from ..core.rng import key
from ..core.settings import Positive, setting
from ..core.tree import Mean, Tree
from .prompts import text_head
from .prototypes import class_means


@validated(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Textual(Method):
    """A method whose server reads the class names once; a client keeps `text` and `scale` after its first answer."""

    traits = Traits(
        world="dual",
        alone=None,
        by_client=("sizes", "told"),
    )
    text: str = setting(
        "encoder",
        "Who reads class names: the encoder's own text side, or a text encoder of the same width.",
    )
    prompts: str | tuple[str, ...] = setting(
        "auto", "Auto, ensemble, templates with {}, or a .json file of class descriptions."
    )
    scale: Positive | None = setting(None, "Of text logits; None: the encoder's own.")

    def init(self, worker: Worker) -> Payload:
        text, scale = text_head(worker, self.text, self.prompts)
        told = torch.zeros(worker.clients, dtype=torch.bool)
        return Payload(sizes=sizes(worker), text=text, scale=self.scale or scale, told=told)

    def download(self, server: Payload, k: int) -> Payload:
        if server.tensor("told")[k]:
            return Payload()
        return Payload(text=server.tensor("text"), scale=server.number("scale"))

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        told = server.tensor("told").clone()
        for k, _ in uploads:
            told[k] = True
        return server.replace(told=told)


@validated(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Averaged(Textual):
    """One head for all on frozen features: clients train it, the server averages its parameters."""

    traits = Textual.traits.but(personalised=False)

    def first(self, worker: Worker, texts: Payload) -> nn.Module:
        """The head before the first round; what is random in it depends on the seed."""
        raise NotImplementedError

    def build(self, weights: Tree, texts: Payload, worker: Worker) -> nn.Module:
        """The head with these parameters."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            head = self.first(worker, texts)
            named = dict(head.named_parameters())
            torch._foreach_copy_([named[n] for n in weights], list(weights.values()))
        return head

    def train_head(self, head: nn.Module, down: Payload, local: Local) -> None:
        """The local objective: plain cross-entropy."""
        local.fit(head=head)

    def weight(self, server: Payload, k: int) -> float:
        """How much client k's upload counts: its sample count."""
        return float(server.tensor("sizes")[k])

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(worker.seed, "head"))
            return server.replace(head=_parameters(self.first(worker, server)))

    def download(self, server: Payload, k: int) -> Payload:
        return super().download(server, k).replace(head=server.tree("head"))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load()
        kept = read(down, state)
        head = self.build(down.tree("head"), kept, local.worker)
        self.train_head(head, down, local)
        up = Payload(head=_parameters(head))
        return Update(up, kept, up)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        mean = Mean()

        def counted() -> Uploads:
            for k, up in uploads:
                mean.add(up.tree("head"), weight=self.weight(server, k))
                yield k, up

        return (
            super()
            .aggregate(server, counted())
            .replace(head=mean.value(default=server.tree("head")))
        )

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load()
        return local.predictor(head=self.build(down.tree("head"), read(down, state), local.worker))

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        worker.load()
        return worker.predictor(head=self.build(server.tree("head"), server, worker))


def _parameters(head: nn.Module) -> Tree:
    return Tree(head.named_parameters()).clone()


def read(down: Payload, state: Payload) -> Payload:
    """`text` and `scale`, as they came or as they were kept."""
    given = down if "text" in down else state
    return Payload(text=given.tensor("text"), scale=given.number("scale"))


def unit_features(local: Local) -> tuple[Tensor, Tensor]:
    """The client's training features, scaled to length one, and their labels."""
    local.load()
    seen, y = local.outputs()
    return F.normalize(seen.features, dim=1), y


def own_means(local: Local) -> Payload:
    """What a client says at first: its class means and how many samples they are of."""
    means, counts = class_means(*unit_features(local), local.classes)
    return Payload(size=local.size, means=means, counts=counts)


def pool_means(server: Payload, hellos: Mapping[int, Payload]) -> Payload:
    """The server with newcomers' class means added to its `sums` and `counts` (Eq. 4: means weighted by counts)."""
    sums, counts = server.tensor("sums").clone(), server.tensor("counts").clone()
    for hello in hellos.values():
        sums += hello.tensor("means") * hello.tensor("counts")[:, None]
        counts += hello.tensor("counts")
    return server.replace(sums=sums, counts=counts)


def no_means(text: Tensor) -> Payload:
    """`sums` and `counts` before anybody has said anything."""
    return Payload(sums=torch.zeros_like(text), counts=torch.zeros(len(text), dtype=torch.int64))


def prototypes(server: Payload) -> Tensor:
    """The global class means; a class that nobody has stands at its text row."""
    counts = server.tensor("counts")[:, None]
    return torch.where(
        counts > 0, server.tensor("sums") / counts.clamp(min=1), server.tensor("text")
    )

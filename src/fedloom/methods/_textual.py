"""What methods on a frozen vision-language model share.

The server reads the class names once; the text rows go to each client once and stay there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from ..core import private_torch
from ..core.claims import COUNTS, VECTORS, WEIGHTS, Claims
from ..core.local import Local, Predictor, Worker
from ..core.lookup import base
from ..core.method import Method, Traits, Update, Uploads, sizes
from ..core.payload import Payload
from ..core.rng import key
from ..core.settings import Positive, setting
from ..core.tree import Mean, Tree
from ..parts.heads import beside
from ..parts.pooling import no_means, own_means, pool_means
from ..parts.prompts import text_head


@base
class Textual(Method):
    """A method whose clients keep `text` and `scale`, which the server sends until they answer."""

    traits = Traits(
        helps=("few",), world="dual", features="raw", alone=None, by_client=("sizes", "told")
    )
    claims = Claims({"means": VECTORS, "counts": COUNTS})
    text: str = setting(
        "encoder",
        "What reads the class names: `encoder`, or the name of a text encoder of the same width.",
    )
    prompts: str | tuple[str, ...] = setting(
        "auto",
        "What the class names are read in: auto, ensemble, templates with {}, a .json file of "
        "class descriptions, or a folder with such a file for every data set.",
    )
    scale: Positive | None = setting(
        None, "Factor of the text logits; by default the encoder's own.", symbol="s"
    )

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


@base
class Pooling(Textual):
    """A method whose clients send class means of their features when they first appear."""

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        return Payload(server, **no_means(server.tensor("text")))

    def hello(self, local: Local) -> Payload:
        return own_means(local)

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        return pool_means(super().join(server, hellos), hellos)


@base
class AveragedHead(Textual):
    """One head for all on frozen features: clients train it, the server averages its parameters."""

    traits = Textual.traits.but(personalised=False)
    claims = Claims({"head/*": WEIGHTS})

    def first(self, worker: Worker, texts: Payload) -> nn.Module:
        """The head before the first round; what is random in it depends on the seed."""
        raise NotImplementedError

    def build(self, weights: Tree, texts: Payload, worker: Worker) -> nn.Module:
        """The head with these parameters."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            head = beside(self.first(worker, texts), weights)
            named = dict(head.named_parameters())
            private_torch.copy_([named[n] for n in weights], list(weights.values()))
        return head

    def train_head(self, head: nn.Module, down: Payload, local: Local) -> None:
        """Local training of the head; by default it minimises the cross-entropy."""
        local.fit(head=head)

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key(worker.seed, "head"))
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

        server = super().aggregate(server, counted())
        return server.replace(head=mean.value(default=server.tree("head")))

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load()
        head = self.build(down.tree("head"), read(down, state), local.worker)
        return local.predictor(head=head)

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        worker.load()
        return worker.predictor(head=self.build(server.tree("head"), server, worker))


def _parameters(head: nn.Module) -> Tree:
    return Tree(head.named_parameters()).clone()


def read(down: Payload, state: Payload) -> Payload:
    """`text`, `scale` and perhaps `owners`, as they came or as they were kept."""
    given = down if "text" in down else state
    kept = Payload(text=given.tensor("text"), scale=given.number("scale"))
    if "owners" in given:
        kept = kept.replace(owners=given.tensor("owners"))
    return kept

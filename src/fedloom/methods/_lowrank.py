"""What the methods on low-rank factors share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..adapters import Pair, factors
from ..core.errors import FedloomError
from ..core.local import Worker
from ..core.method import Uploads
from ..core.payload import Payload
from ..core.tree import Mean, Tree
from .fedavg import FedAvg


class LowRank(FedAvg):
    """FedAvg on a network with low-rank factors."""

    traits = FedAvg.traits.but(helps=(), adapter="lora")

    def init(self, worker: Worker) -> Payload:
        if not factors(worker.model):
            raise FedloomError(
                f"{self.name} works on low-rank factors, and the network has none: say "
                "--adapter lora."
            )
        return super().init(worker)


class Averaging(LowRank):
    """A server that averages A and B apart, and knows the mean of their products as well."""

    traits = LowRank.traits.but(sums=False)

    def init(self, worker: Worker) -> Payload:
        return remembering(super().init(worker), worker.model).replace(averaging_error=0.0)

    def averaged(self, server: Payload, uploads: Uploads) -> tuple[Payload, Tree]:
        """The server with the mean of all factors, and the mean of `scale * B A` of each layer."""
        mean = Mean()

        def heard() -> Uploads:
            for k, up in uploads:
                mean.add(products(server, up.tree("model")), weight=self.weight(server, k))
                yield k, up

        server = super().aggregate(server, heard())
        apart = products(server, server.tree("model"))
        exact = mean.value(default=apart)
        return server.replace(averaging_error=distance(apart, exact)), exact

    def figures(self, server: Payload, worker: Worker) -> Mapping[str, float]:
        """How far mean(B) mean(A) is from mean(B A), all layers together, over its norm."""
        return {"averaging_error": server.number("averaging_error")}


def remembering(server: Payload, model: Any) -> Payload:
    """The server with the names of each layer's factors: `a/NAME`, `b/NAME`, and `moved/NAME`.

    The names sort alike, and the values are the factors' scale.
    """
    a, b, moved = {}, {}, {}
    for pair in factors(model):
        a[pair.a] = b[pair.b] = torch.tensor(pair.scale)
        if pair.moved is not None:
            moved[pair.moved] = a[pair.a]
    return server.replace(a=Tree(a), b=Tree(b), moved=Tree(moved))


def pairs_of(server: Payload) -> list[Pair]:
    """The factors of each layer, as the server remembers them."""
    a, b = server.tree("a"), server.tree("b")
    return [Pair(down, up, float(a[down])) for down, up in zip(a, b, strict=True)]


def products(server: Payload, model: Tree) -> Tree:
    """`scale * B A` of each layer, by the name of its A."""
    return Tree({pair.a: pair.product(model) for pair in pairs_of(server)})


def distance(tree: Tree, wanted: Tree) -> float:
    """How far two trees are apart, over the norm of the wanted one; 0 where that is 0."""
    norm = float(wanted.norm())
    return float((tree - wanted).norm()) / norm if norm else 0.0

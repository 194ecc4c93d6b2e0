"""FLoRA: the clients' products B A are added to the weights exactly; factors start anew each round.

Wang et al., "FLoRA: Federated fine-tuning large language models with heterogeneous low-rank
adaptations", NeurIPS 2024.

Travels: A, B and the head up; the head, and what has been added to each weight, down.
Symbols: p_k -> weights by size; s = alpha / rank; Delta W = sum_k p_k s B_k A_k is what the stacked
factors amount to, if each A is multiplied by p_k; the server adds it to what came before.
Deviations: the paper's server sends the stacked factors, which each client merges into its weights.
Here it sends the sum over all rounds, so a client that was absent misses nothing, and there is no
more to send however many clients take part. All clients have the same rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..adapters import factors, movable
from ..core.local import Local, Worker
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.tree import Mean, Tree
from ._lowrank import LowRank, pairs_of, products, remembering


@method("flora")
class FLoRA(LowRank):
    """Add the mean of the clients' products to the weights."""

    traits = LowRank.traits.but(alone=None, averages=False)

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        return movable(super().extend(model, classes))

    def init(self, worker: Worker) -> Payload:
        server = remembering(super().init(worker), worker.model)
        apart = {*server.tree("a"), *server.tree("b")}
        return server.replace(model=server.tree("model").without(apart))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"), fresh(local))
        self.train(down, state, local)
        held = local.tree("shared")
        moved = [pair.moved for pair in factors(local.model) if pair.moved]
        upload = Payload(model=held.without(moved))
        return Update(upload, state, Payload(model=held))

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        model, rest, added = server.tree("model"), Mean(), Mean()
        pairs = pairs_of(server)
        for k, up in uploads:
            sent, weight = up.tree("model"), self.weight(server, k)
            rest.add(sent.without(name for pair in pairs for name in (pair.a, pair.b)), weight)
            added.add(products(server, sent), weight)
        updates = added.value(default=Tree({}))
        moved = model.only(server.tree("moved"))
        if updates:
            shaped = [u.view_as(m) for u, m in zip(updates.values(), moved.values(), strict=True)]
            moved = moved + Tree(zip(moved, shaped, strict=True))
        return server.replace(model=model | rest.value(default=Tree({})) | moved)


def fresh(local: Local) -> Tree:
    """A drawn anew for this client and round, as at first; B is zero, as it is at first."""
    rng, drawn = local.rng("factors"), {}
    for pair in factors(local.model):
        first = local.worker.first[pair.a]
        bound = 1 / math.sqrt(first[0].numel())
        drawn[pair.a] = bound * (2 * torch.rand(first.shape, generator=rng) - 1).to(first)
    return Tree(drawn)

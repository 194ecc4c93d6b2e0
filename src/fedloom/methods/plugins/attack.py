"""Attacks: some clients lie, to see what a robust mean is worth. For simulations and tests.

The attack comes last in a name (METHOD+median+attack), because the last plug-in sees uploads first.
- `sign`: an attacker sends its update times -`attack_scale`. Li et al., "RSA: Byzantine-robust
  stochastic aggregation methods", AAAI 2019.
- `scaled`: its update times `attack_scale`. Bagdasaryan et al., "How to backdoor federated
  learning", AISTATS 2020.
- `labels`: it trains on label C - 1 - y in place of y. Tolpegin et al., "Data poisoning attacks
  against federated learning systems", ESORICS 2020, among others.
- `alie`: all attackers send mean - z deviation of the honest updates, number by number, with the
  largest z that still hides among them. Baruch, Baruch, Goldberg, "A little is enough", NeurIPS
  2019.

Attackers are drawn by the run's seed, and stay the same. Deviations: for `alie` attackers know all
honest updates (in the paper they know their own, which are honest at first).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any, Literal

import torch

from ...core.local import Batch, Fit, Local, Loss, cross_entropy
from ...core.lookup import plugin
from ...core.method import Traits, Update, Uploads
from ...core.payload import Payload
from ...core.rng import torch_rng
from ...core.settings import Positive, Share, part_of, setting
from ...core.tree import Tree
from ...parts.updates import update, with_update
from .._bases import Averaging, fitting


@plugin("attack")
class Attack(Averaging):
    """Some clients lie."""

    purpose = "attack"
    traits = Traits(neutral=({"attackers": 0.0}, "METHOD"), sums=False)
    attack: Literal["sign", "scaled", "labels", "alie"] = setting(
        "sign", "What attackers do: flip or scale updates, flip labels, or hide in the spread."
    )
    attackers: Share = setting(0.2, "Share of the clients that attack.")
    attack_scale: Positive = setting(4.0, "Factor of the updates of `sign` and `scaled`.")

    def drawn(self, seed: int, clients: int) -> set[int]:
        """The clients that attack."""
        order = torch.randperm(clients, generator=torch_rng(seed, "attackers"))
        return set(order[: part_of(clients, self.attackers)].tolist())

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        worker = local.worker
        if self.attack != "labels" or local.id not in self.drawn(worker.seed, worker.clients):
            return super().client(down, state, local)

        def flipped(loss: Loss = cross_entropy, **named: Any) -> Fit:
            def wrong(batch: Batch) -> Any:
                return loss(replace(batch, y=local.classes - 1 - batch.y))

            return local.fit(wrong, **named)

        return super().client(down, state, fitting(local, flipped))

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        if self.attack == "labels":
            return super().aggregate(server, uploads)
        liars = self.drawn(int(server.number("seed")), len(server.tensor("sizes")))
        if self.attack == "alie":
            return super().aggregate(server, self.hidden(server, dict(uploads), liars))
        factor = self.attack_scale
        if self.attack == "sign":
            factor = -factor

        def changed() -> Uploads:
            for k, up in uploads:
                if k in liars:
                    moved = factor * update(type(self), server, up)
                    up = with_update(type(self), server, up, moved)
                yield k, up

        return super().aggregate(server, changed())

    def hidden(self, server: Payload, arrived: dict[int, Payload], liars: set[int]) -> Uploads:
        """The uploads, in which all attackers send the same lie among the honest updates."""
        honest = [update(type(self), server, up) for k, up in arrived.items() if k not in liars]
        lie = little(honest, len(arrived) - len(honest)) if len(honest) > 1 else None
        for k, up in arrived.items():
            if k in liars and lie is not None:
                up = with_update(type(self), server, up, lie)
            yield k, up


def little(honest: Sequence[Tree], liars: int) -> Tree:
    """Mean - z deviation of the honest updates; enough of them are further out to look worse."""
    n = len(honest) + liars
    needed = n // 2 + 1 - liars  # honest clients that must be further from the mean
    share = min(max((len(honest) - needed) / len(honest), 0.5), 0.99)
    z = NormalDist().inv_cdf(share)
    lie = {}
    for name in honest[0]:
        values = torch.stack([tree[name] for tree in honest])
        lie[name] = values.mean(0) - z * values.std(0)
    return Tree(lie)

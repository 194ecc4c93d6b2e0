"""Robust means of numbers and lengths: a few clients that send lies cannot move the model far.

`+median`, `+trimmed`: Yin et al., "Byzantine-robust distributed learning: towards optimal
statistical rates", ICML 2018. `+normclip`: Sun et al., "Can you really backdoor federated
learning?", 2019. Means that choose among clients are in `krum.py`.

Travels: as the method they are put round.
Symbols: beta -> `trim`, M -> `norm_bound`.
Memory: `+normclip` takes uploads one by one. The others hold every upload of a round, and beside
them one tensor of the model for each client.
Deviations: those who are left after `+trimmed` count as in the method, so by size (in the paper all
clients have equally many samples). With `trim=0` it is the method itself to 1e-6. `+normclip` adds
no noise.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ...core.lookup import base, plugin
from ...core.method import Method, Traits, Uploads
from ...core.payload import Payload
from ...core.settings import BelowHalf, Positive, part_of, setting
from ...parts.robust import median, trimmed_mean
from ...parts.updates import cut, update, weights, with_update
from .._bases import Averaging, Reweighting


@base
class Coordinatewise(Averaging):
    """In place of the mean, `middle` of each number."""

    purpose = "robust"
    traits = Traits(sums=False)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        arrived = dict(uploads)
        if not arrived:
            return super().aggregate(server, iter(()))
        shares = self.counted(server, arrived)
        trees = [weights(type(self), up, statistics=True) for up in arrived.values()]
        middle = {}
        for name in trees[0]:
            middle[name] = self.middle(torch.stack([tree[name] for tree in trees]), shares)
        same = ((k, Payload({**up, **middle})) for k, up in arrived.items())
        return super().aggregate(server, same)

    def counted(self, server: Payload, clients: Iterable[int]) -> Tensor:
        """How much each client counts; here all alike."""
        return torch.ones(len(list(clients)))

    def middle(self, values: Tensor, shares: Tensor) -> Tensor:
        """What takes the place of the clients' mean."""
        raise NotImplementedError


@plugin("median")
class Median(Coordinatewise):
    """The median of each number; all clients count alike."""

    def middle(self, values: Tensor, shares: Tensor) -> Tensor:
        return median(values)


@plugin("trimmed")
class Trimmed(Coordinatewise):
    """The mean of each number without its extremes."""

    traits = Traits(neutral=({"trim": 0.0}, "METHOD"), sums=False)
    trim: BelowHalf = setting(
        0.2, "Share of the clients that is left out at each end of every number.", symbol="beta"
    )

    @classmethod
    def refuses(cls, base: type[Method]) -> str | None:
        if issubclass(base, Reweighting):  # they are set when the uploads have been looked at
            return f"{base.name} sets weights that trimmed needs first: name trimmed before it."
        return super().refuses(base)

    def counted(self, server: Payload, clients: Iterable[int]) -> Tensor:
        return torch.tensor([self.weight(server, k) for k in clients])

    def middle(self, values: Tensor, shares: Tensor) -> Tensor:
        return trimmed_mean(values, shares, part_of(len(values), self.trim))


@plugin("normclip")
class NormClip(Averaging):
    """Long updates are cut to a length."""

    purpose = "robust"
    traits = Traits(neutral=({"norm_bound": 1e9}, "METHOD"), sums=False)
    norm_bound: Positive = setting(
        2.0, "The greatest length of an update; longer ones are scaled down to it.", symbol="M"
    )

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        def clipped() -> Uploads:
            for k, up in uploads:
                moved, short = cut(update(type(self), server, up), self.norm_bound)
                if not short:
                    up = with_update(type(self), server, up, moved)
                yield k, up

        return super().aggregate(server, clipped())

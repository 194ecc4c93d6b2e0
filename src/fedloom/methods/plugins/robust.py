"""Robust means: a few clients that send lies cannot move the common model far.

`+median`, `+trimmed`: Yin et al., "Byzantine-robust distributed learning: towards optimal
statistical rates", ICML 2018. `+krum`, `+multikrum`: Blanchard et al., "Machine learning with
adversaries: Byzantine tolerant gradient descent", NeurIPS 2017. `+geomed`: Pillutla, Kakade,
Harchaoui, "Robust aggregation for federated learning" (RFA), IEEE TSP 2022. `+normclip`: Sun et
al., "Can you really backdoor federated learning?", 2019.

Travels: as the method they are put round.
Symbols: beta -> `trim`, f / n -> `liars`, m -> `selected`, R, nu -> `weiszfeld`, `smooth`, M ->
`norm_bound`.
Memory: `+normclip` takes uploads one by one. All others hold every upload of a round, and beside
them one tensor of the model for each client.
Deviations: those who are left after `+trimmed` and `+multikrum` count as in the method, so by size
(in the papers all clients have equally many samples). With `trim=0` or `liars=0` these two are the
method itself: to 1e-6 and to the last bit. Distances are over weights, not BatchNorm's statistics;
what comes of them holds for both. What a method adds up without weights (SCAFFOLD's c) is protected
by `+median`, `+trimmed` and `+normclip` only. `+normclip` adds no noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from ...core.lookup import base, plugin
from ...core.method import Method, Traits, Uploads
from ...core.payload import Payload
from ...core.settings import Count, Positive, part_of, setting
from ...parts.robust import distances, geometric_median, krum_scores, median, trimmed_mean
from ...parts.updates import update, weights, with_update
from .._bases import Averaging, Reweighting, with_shares

BelowHalf = Annotated[float, Field(ge=0, lt=0.5)]


@base
class Coordinatewise(Averaging):
    """In place of the mean, `middle` of each number."""

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

    traits = Traits(neutral=({"trim": 0.0}, "METHOD"))
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


@base
class ByDistance(Reweighting):
    """Weights of clients by the distances between them."""

    def reweigh(self, server: Payload, uploads: Mapping[int, Payload]) -> Payload:
        usual = self.usual(server, uploads)
        if len(uploads) < 2:
            return with_shares(server, uploads, usual)
        apart = distances([weights(type(self), up) for up in uploads.values()])
        return with_shares(server, uploads, self.chosen(apart, usual))

    def chosen(self, apart: Tensor, usual: Tensor) -> Tensor:
        """The clients' weights, from squared distances and from what they usually are."""
        raise NotImplementedError


@plugin("krum")
class Krum(ByDistance):
    """The one client that is nearest to most others."""

    liars: BelowHalf = setting(0.2, "Share of the clients that may lie.", symbol="f / n")

    def chosen(self, apart: Tensor, usual: Tensor) -> Tensor:
        best = krum_scores(apart, part_of(len(apart), self.liars)).argmin()
        return torch.nn.functional.one_hot(best, len(apart)).to(usual)


@plugin("multikrum")
class MultiKrum(ByDistance):
    """The mean of the clients that are nearest to most others."""

    traits = Traits(neutral=({"liars": 0.0}, "METHOD"))
    liars: BelowHalf = setting(0.2, "Share of the clients that may lie.", symbol="f / n")
    selected: Count | None = setting(
        None, "Number of clients that are averaged; by default all but the liars.", symbol="m"
    )

    def chosen(self, apart: Tensor, usual: Tensor) -> Tensor:
        liars = part_of(len(apart), self.liars)
        most = min(self.selected or len(apart) - liars, len(apart))
        best = krum_scores(apart, liars).argsort(stable=True)[:most]
        return torch.zeros_like(usual).index_copy(0, best, usual[best])


@plugin("geomed")
class GeometricMedian(ByDistance):
    """The geometric median: the point with the least distances, not squared ones, to all."""

    weiszfeld: Count = setting(3, "Number of steps of Weiszfeld's algorithm.", symbol="R")
    smooth: Positive = setting(
        1e-6, "Smallest distance that a step of Weiszfeld's algorithm divides by.", symbol="nu"
    )

    def chosen(self, apart: Tensor, usual: Tensor) -> Tensor:
        return geometric_median(apart, usual, self.weiszfeld, self.smooth)


@plugin("normclip")
class NormClip(Averaging):
    """Long updates are cut to a length."""

    traits = Traits(neutral=({"norm_bound": 1e9}, "METHOD"))
    norm_bound: Positive = setting(
        2.0, "The greatest length of an update; longer ones are scaled down to it.", symbol="M"
    )

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        def cut() -> Uploads:
            for k, up in uploads:
                moved = update(type(self), server, up)
                length = float(moved.norm())
                if length > self.norm_bound:
                    up = with_update(type(self), server, up, moved * (self.norm_bound / length))
                yield k, up

        return super().aggregate(server, cut())

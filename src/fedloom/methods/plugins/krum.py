"""Robust means that choose among clients, by how far their uploads are from each other.

`+krum`, `+multikrum`: Blanchard et al., "Machine learning with adversaries: Byzantine tolerant
gradient descent", NeurIPS 2017. `+geomed`: Pillutla, Kakade, Harchaoui, "Robust aggregation for
federated learning" (RFA), IEEE TSP 2022.

Travels: as the method they are put round.
Symbols: f / n -> `liars`, m -> `selected`, R, nu -> `weiszfeld`, `smooth`.
Memory: every upload of a round, and beside them one tensor of the model for each client.
Deviations: those who are left after `+multikrum` count as in the method, so by size (in the paper
all clients have equally many samples). With `liars=0` it is the method itself to the last bit.
Distances are over weights, not BatchNorm's statistics; what comes of them holds for both. What a
method adds up without weights (SCAFFOLD's c) is not protected; `+median`, `+trimmed` and
`+normclip` protect it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...core.lookup import base, plugin
from ...core.method import Traits
from ...core.payload import Payload
from ...core.settings import BelowHalf, Count, Positive, part_of, setting
from ...parts.robust import distances, geometric_median, krum_scores
from ...parts.updates import weights
from .._bases import Reweighting, with_shares


@base
class ByDistance(Reweighting):
    """Weights of clients by the distances between them."""

    purpose = "robust"
    traits = Traits(sums=False)

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

    traits = Traits(neutral=({"liars": 0.0}, "METHOD"), sums=False)
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

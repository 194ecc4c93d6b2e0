"""FedDisco: clients whose classes are far from an even mixture count less.

Ye et al., "FedDisco: Federated learning with discrepancy-aware collaboration", ICML 2023.

Travels: as the method it is put round; once, when a client first appears, also its discrepancy.
Symbols: a, b -> `disco_a`, `disco_b`, d_k -> `discrepancies`, p_k -> `shares`.
d_k is the Kullback-Leibler divergence of the client's classes from an even mixture, as a share of
the sum over those who answered; p_k is proportional to max(0, n_k / N - a d_k + b).
With `disco_a=0, disco_b=0` this is the method with its own weights, to 1e-6.
Deviations: where nobody's weight is above 0, clients count as in the method (the public code fails
there). With `differs=l2`, d_k is the Euclidean distance, and no share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from ...core.claims import Claim, Claims
from ...core.device import exact
from ...core.local import Local, Worker
from ...core.lookup import plugin
from ...core.payload import Payload
from ...core.settings import NotNegative, setting
from .._bases import Reweighting, with_shares


@plugin("feddisco")
class FedDisco(Reweighting):
    """Weights by size and by distance from an even mixture of classes."""

    claims = Claims({"discrepancy": Claim("a distance between distributions", 0, 1e3)})
    disco_a: NotNegative = setting(
        0.5, "How strongly a client's weight falls with its discrepancy.", symbol="a"
    )
    disco_b: NotNegative = setting(0.1, "What is added to every client's weight.", symbol="b")
    differs: Literal["kl", "l2"] = setting(
        "kl",
        "How the discrepancy is measured: by the divergence from an even mixture of classes (kl) "
        "or by the distance to it (l2).",
    )

    def init(self, worker: Worker) -> Payload:
        none = torch.zeros(worker.clients, dtype=torch.float64)
        return super().init(worker).replace(discrepancies=none)

    def hello(self, local: Local) -> Payload:
        return super().hello(local).replace(discrepancy=uneven(local.counts, self.differs))

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        told = server.tensor("discrepancies").clone()
        for k, hello in hellos.items():
            told[k] = hello.number("discrepancy")
        return super().join(server, hellos).replace(discrepancies=told)

    def reweigh(self, server: Payload, uploads: Mapping[int, Payload]) -> Payload:
        usual = self.usual(server, uploads).double()
        d = server.tensor("discrepancies")[list(uploads)]
        if self.differs == "kl" and float(d.sum()):
            d = d / d.sum()
        shares = (usual / usual.sum() - self.disco_a * d + self.disco_b).clamp(min=0)
        if not bool(shares.any()):
            shares = usual
        return with_shares(server, uploads, shares)


def uneven(counts: Tensor, differs: str) -> float:
    """How far a client's classes are from an even mixture."""
    p = exact(counts) / counts.sum()
    even = 1 / len(p)
    if differs == "l2":
        return float((p - even).norm())
    return float(torch.xlogy(p, p / even).sum().clamp(min=0))

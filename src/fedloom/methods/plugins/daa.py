"""DAA: a client's weight grows with its size and falls with its distance from an even share.

Wang et al., "Domain-skewed federated learning with feature decoupling and calibration" (F2DC),
section 4.3.

Travels: as the method it is put round; with `by_class` also the sample counts of each class, once.
No client names its domain: the server knows how many domains there are (Q), and counts.
Symbols: alpha -> `by_size`, beta -> `by_gap`, Q -> `domains_known`, n_k -> `sizes`, p_k ->
`shares`, d_k -> `discrepancy`.
d_k = sqrt(1/2 sum over classes of (B_k - 1/Q)^2) with B_k = n_k / N for every class, and p_k is
proportional to sigmoid(alpha n_k / N - beta d_k). Sums run over the clients that answered.
Deviations: `by_class` takes the paper's B_k before it is simplified, n_k^c / n^c; a class that
nobody has counts as an even share. The authors' code has no such weights; it averages by size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from ...core.local import Local, Worker
from ...core.lookup import plugin
from ...core.payload import Payload
from ...core.settings import Count, NotNegative, setting
from .._bases import Reweighting


@plugin("daa")
class DAA(Reweighting):
    """Weights by size and by distance from an even share."""

    by_size: Annotated[float, Field(allow_inf_nan=False)] = setting(
        1.0, "How strongly a client's weight grows with its share of the samples.", symbol="alpha"
    )
    by_gap: NotNegative = setting(
        0.4,
        "How strongly a client's weight falls with its distance from an even share.",
        symbol="beta",
    )
    by_class: bool = setting(
        False, "Take a client's share of each class instead of its share of all samples."
    )
    domains_known: Count | None = setting(
        None, "Number of domains that the server assumes; by default the data set's.", symbol="Q"
    )

    def init(self, worker: Worker) -> Payload:
        counts = torch.zeros(worker.clients, worker.classes, dtype=torch.int64)
        q = self.domains_known or len(worker.data.domains)
        return super().init(worker).replace(held=counts, q=q)

    def hello(self, local: Local) -> Payload:
        hello = super().hello(local)
        if not self.by_class:
            return hello
        return hello.replace(class_counts=local.counts)

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        counts = server.tensor("held").clone()
        for k, hello in hellos.items():
            if self.by_class:
                counts[k] = hello.tensor("class_counts")
            else:  # as if samples were spread evenly over classes: B_k = n_k / N for each
                counts[k] = int(hello.number("size"))
        return super().join(server, hellos).replace(held=counts)

    def reweigh(self, server: Payload, uploads: Mapping[int, Payload]) -> Payload:
        who = list(uploads)
        sizes, q = server.tensor("sizes")[who].double(), int(server.number("q"))
        gap = discrepancy(server.tensor("held")[who], q)
        shares = torch.zeros(len(server.tensor("sizes")), dtype=torch.float64)
        shares[who] = domain_aware(sizes, gap, self.by_size, self.by_gap)
        return server.replace(shares=shares)


def discrepancy(counts: Tensor, q: int) -> Tensor:
    """How far each client is from 1/q of every class: sqrt(1/2 sum_c (n_k^c / n^c - 1/q)^2)."""
    held = counts.double()
    total = held.sum(0)
    share = torch.where(total > 0, held / total.clamp(min=1), 1 / q)
    return (0.5 * (share - 1 / q).square().sum(1)).sqrt()


def domain_aware(sizes: Tensor, gap: Tensor, by_size: float, by_gap: float) -> Tensor:
    """sigmoid(by_size n_k / N - by_gap d_k), scaled to sum to 1."""
    raw = torch.sigmoid(by_size * sizes / sizes.sum() - by_gap * gap)
    return raw / raw.sum()

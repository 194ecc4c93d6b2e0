"""FPL: a prototype for each class and cluster of clients, so that no domain is drowned.

Huang, Ye, Shi, Li, Du, "Rethinking federated learning with domain shift: a prototype view", CVPR
2023.

Travels: as FedAvg; also class means and counts up, the cluster prototypes and their classes down.
Symbols: tau -> `tau`, p^c_m -> `means`, P^c -> the rows of `clusters` whose `owners` is c, U^c ->
their mean, `unbiased`.
The server clusters this round's means of each class with FINCH (by cosine) and takes the coarsest
partition that still has more than one cluster. Clients add two terms to CE: the contrast of a
sample with all cluster prototypes (its class against all), and the mean squared error to its
class's unbiased prototype. `lam` weighs both. In the first round there is CE alone.
Deviations: means are taken in evaluation mode after training (the released code takes them while
training, in the last epoch). Samples of classes without a prototype do not count in a mean (there
they count as 0). A class that nobody has in a round keeps its prototypes. `lam` is ours (the paper
has 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.local import Batch, Fit, Local, cross_entropy
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import NotNegative, Positive, setting
from ..parts.contrast import prototype_contrast
from ..parts.finch import cluster_means
from ..parts.prototypes import class_means, squared_gap
from ._bases import Prototypical


@method("fpl")
class FPL(Prototypical):
    """FedAvg with cluster prototypes and unbiased ones."""

    traits = Prototypical.traits.but(
        helps=("domains",), needs=("body",), neutral=({"lam": 0.0}, "fedavg")
    )
    tau: Positive = setting(
        0.02, "Temperature of the contrast with cluster prototypes.", symbol="tau"
    )
    lam: NotNegative = setting(1.0, "Weight of both prototype losses beside the cross-entropy.")

    def download(self, server: Payload, k: int) -> Payload:
        prototypes = {n: server[n] for n in ("clusters", "owners") if n in server}
        return Payload(prototypes, model=server.tree("model"))

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        if "clusters" not in down:
            return local.fit()
        clusters, owners = down.tensor("clusters"), down.tensor("owners")
        unbiased, numbers = class_means(clusters, owners, local.classes)

        def loss(batch: Batch) -> dict[str, Tensor]:
            contrast = prototype_contrast(batch.features, batch.y, clusters, owners, self.tau)
            gap = squared_gap(batch.features, batch.y, unbiased, numbers > 0)
            prototypes = {"clusters": self.lam * contrast, "unbiased": self.lam * gap}
            return cross_entropy(batch) | prototypes

        return local.fit(loss)

    def learn(self, server: Payload, means: Tensor, y: Tensor) -> Payload:
        by_class: dict[int, Tensor] = {}
        if "clusters" in server:
            clusters, owners = server.tensor("clusters"), server.tensor("owners")
            for c in owners.unique().tolist():
                by_class[c] = clusters[owners == c]
        for c in y.unique().tolist():
            by_class[c] = cluster_means(means[y == c])
        numbers = torch.tensor(sorted(by_class))
        rows = [by_class[c] for c in sorted(by_class)]
        counts = torch.tensor([len(of_class) for of_class in rows])
        return server.replace(clusters=torch.cat(rows), owners=numbers.repeat_interleave(counts))

"""FedPLVM: prototypes clustered at clients and at the server, and a sparser contrast with them.

Wang, Bian, Zhang, Chen, Xu, "Taming cross-domain representation variance in federated prototype
learning with heterogeneous data domains", NeurIPS 2024.

Travels: as FedAvg; also up the means of clusters of each class's features, down the clusters of all
of these, and their classes.
Symbols: P^k_i (local clustered prototypes) -> `rows` in an upload, P^k (global ones) ->
`clusters` of the server, Pbar^k -> their mean, alpha -> `alpha`, tau -> `tau`, lambda -> `lam`.
Clients cluster the features of each class with FINCH (by cosine) after training, the server the
means that arrive, as FPL's does. The local objective is CE + lambda (contrast + correction): the
contrast is that of FPL with cosine^alpha, the correction twice the mean of (1 - cosine)^2 with the
class's mean over global clusters.
Deviations: clients count by size (alike in the code for equal labels). Negative cosines, which
have no root, count as 0; behind a ReLU there are none. Samples of classes without a prototype do
not count. A class that nobody has in a round keeps its prototypes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.claims import VECTORS, Claim, Claims
from ..core.local import Batch, Fit, Local, cross_entropy
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.settings import NotNegative, Positive, Ratio, setting
from ..parts.contrast import sparse_contrast
from ..parts.finch import cluster_means
from ..parts.prototypes import class_means
from .fedavg import FedAvg
from .fpl import FPL


@method("fedplvm")
class FedPLVM(FPL):
    """FPL with clusters at clients too, and a sparser contrast."""

    claims = Claims(
        {"rows": VECTORS, "labels": Claim("numbers of classes", 0, "classes", whole=True)}
    )
    alpha: Ratio = setting(0.25, "Power to which cosines are raised.", symbol="alpha")
    tau: Positive = setting(0.07, "Temperature of the contrast with prototypes.", symbol="tau")
    lam: NotNegative = setting(
        100.0, "Weight of both prototype losses beside the cross-entropy.", symbol="lambda"
    )

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = FedAvg.client(self, down, state, local)
        outputs, y = local.outputs()
        features, y = outputs.features.cpu(), y.cpu()
        owned = y.unique().tolist()
        rows = [cluster_means(features[y == c]) for c in owned]
        labels = torch.tensor(owned).repeat_interleave(torch.tensor([len(r) for r in rows]))
        upload = update.upload.replace(rows=torch.cat(rows), labels=labels)
        return replace(update, upload=upload)

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        if "clusters" not in down:
            return local.fit()
        clusters, owners = down.tensor("clusters"), down.tensor("owners")
        common, numbers = class_means(clusters, owners, local.classes)

        def loss(batch: Batch) -> dict[str, Tensor]:
            z, y = batch.features, batch.y
            contrast = sparse_contrast(z, y, clusters, owners, self.tau, self.alpha)
            known = numbers[y] > 0
            off = (1 - F.cosine_similarity(z, common[y])).square() * known
            correction = 2 * off.sum() / known.sum().clamp(min=1)
            return cross_entropy(batch) | {
                "contrast": self.lam * contrast,
                "correction": self.lam * correction,
            }

        return local.fit(loss)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        rows: list[Tensor] = []
        labels: list[Tensor] = []

        def noting() -> Uploads:
            for k, up in uploads:
                rows.append(up.tensor("rows"))
                labels.append(up.tensor("labels"))
                yield k, up

        server = FedAvg.aggregate(self, server, noting())
        if not rows:
            return server
        return self.learn(server, torch.cat(rows), torch.cat(labels))

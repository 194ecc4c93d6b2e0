"""FedPAC: features near common class means, and for each client the mixture of heads that suits it.

Xu, Tong, Huang, "Personalized federated learning with feature alignment and classifier
collaboration", ICLR 2023.

Travels: body and head; up also class means and counts, and what the client knows of its features
before training; down class means. Kept by the client: nothing; the server has everybody's heads.
Symbols: theta -> `body`, phi_i -> `heads/i`, c_k -> `protos`, lambda -> `lam`, h_i -> `moments`,
V_i / n_i -> `variance`, alpha_ij -> `head_weights`.
The head is trained for `head_epochs` under a fixed body, then the body under the fixed head by CE +
lambda times the mean squared difference of features and their class's mean. The server mixes this
round's heads for each of its clients: the weights minimise sum_j a_j^2 V_j + |sum_j a_j (h_i -
h_j)|^2 on the simplex, and those below 0.001 are dropped.
Deviations: class means are taken in evaluation mode. Samples of a class without a common mean do
not count there; in the authors' code the client's own takes its place. That code trains heads with
SGD 0.1 and bodies with 0.01; `preset=official` has both. An absent client keeps its last mixture,
and a new one starts with the first head. `mix=false` leaves each client its own head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.claims import COUNTS, VECTORS, Claim, Claims
from ..core.local import Batch, Fit, Local, Worker, cross_entropy
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.roles import Roles
from ..core.settings import Count, NotNegative, Positive, setting
from ..parts.mixtures import head_statistics, head_weights, mixed
from ..parts.prototypes import distance_to_own, mean_of_means, own_means
from .fedper import FedPer


@method("fedpac")
class FedPAC(FedPer):
    """FedPer in turns, with common class means and mixed heads."""

    traits = FedPer.traits.but(
        alone=None,
        sums=False,  # it mixes single heads
        neutral=({"lam": 0.0, "mix": False, "head_epochs": 10}, "fedrep"),
        presets={
            "official": {"head_lr": 0.1, "lr": 0.01, "momentum": 0.5, "weight_decay": 5e-4},
        },
    )
    claims = Claims(
        {
            "means": VECTORS,
            "counts": COUNTS,
            "moments": VECTORS,
            "variance": Claim("a variance of features", 0, 1e12),
        }
    )
    lam: NotNegative = setting(
        1.0, "Weight of the distance between features and class means.", symbol="lambda"
    )
    head_epochs: Count = setting(
        1, "Number of epochs in which the head is trained before the body."
    )
    head_lr: Positive | None = setting(None, "Step size for the head; none: that of the body.")
    mix: bool = setting(True, "Whether the server mixes heads; if not, each client keeps its own.")

    def roles(self, model: Any) -> Roles:
        return Roles(model)

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        return server.replace(first=worker.parameters([worker.model.head]))

    def download(self, server: Payload, k: int) -> Payload:
        head = server.group("heads").tree(str(k)) or server.tree("first")
        down = Payload(model=server.tree("model") | head)
        return down.replace(**{n: server[n] for n in ("protos", "covered") if n in server})

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"))
        outputs, y = local.outputs()
        moments, variance = head_statistics(outputs.features, y, local.classes)
        update = super().client(down, state, local)
        means, counts = own_means(local)
        upload = update.upload.replace(
            moments=moments, variance=variance, means=means, counts=counts
        )
        return replace(update, upload=upload)

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        def loss(batch: Batch) -> dict[str, Tensor]:
            protos, known = down.tensor("protos"), down.tensor("covered")
            apart = distance_to_own(batch.features, batch.y, protos, known)
            return cross_entropy(batch) | {"protos": self.lam * apart}

        lr = self.head_lr or local.training.lr
        head, body = [local.model.head], [local.model.body]
        local.fit(only=head, epochs=self.head_epochs, steps=None, label="head", lr=lr)
        if "protos" not in down or self.lam == 0:
            return local.fit(only=body)
        return local.fit(loss, only=body)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        arrived = dict(uploads)
        if not arrived:
            return server
        server = super().aggregate(server, iter(arrived.items()))
        ups = list(arrived.values())
        rows = torch.stack([up.tensor("means") for up in ups])
        counts = torch.stack([up.tensor("counts") for up in ups])
        protos, covered = mean_of_means(rows, counts)
        server = server.replace(protos=protos, covered=covered)
        weights = torch.eye(len(ups))
        if self.mix:
            moments = torch.stack([up.tensor("moments") for up in ups])
            variances = torch.tensor([up.number("variance") for up in ups])
            weights = head_weights(moments, variances)
        trained = [up.tree("model").only(server.tree("first")) for up in ups]
        heads = dict(server.group("heads"))
        for k, shares in zip(arrived, weights, strict=True):
            heads |= Payload({str(k): mixed(trained, shares)})
        return server.replace(heads=Payload(heads))

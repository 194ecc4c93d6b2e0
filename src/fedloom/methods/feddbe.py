"""FedDBE: what is particular to a client's features goes into a private vector.

Zhang et al., "Eliminating domain bias for federated learning in representation space", NeurIPS
2023.

Travels: body and head; up in the first round a client's mean feature, down their mean. Kept by the
client: the vector.
Symbols: zbar^p_i -> `head.shift`, zbar^g -> `mean`, kappa -> `kappa`, mu -> `mu`.
Logits are the head's of features + shift. The local objective is CE + kappa times half the mean
squared difference between the client's running mean of features (a share mu of it from each batch)
and zbar^g. Shift, body and head are trained together.
Prediction: the common model with the client's own shift; the common model alone has none.
Deviations: zbar^g comes of one epoch without shift before the first round, whose models are thrown
away; here it is the first round itself, and its models count. Clients that appear later do not
change zbar^g. The defaults are those for the paper's 4-layer CNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.claims import VECTORS, Claims
from ..core.local import Batch, Local, Predictor, Worker, cross_entropy
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.roles import Roles
from ..core.settings import NotNegative, Ratio, setting
from ..core.tree import Mean, Tree
from ..parts.routes import Shifted, linear_head
from .fedavg import FedAvg


@method("feddbe")
class FedDBE(FedAvg):
    """FedAvg with a private shift of features, and means that agree."""

    traits = FedAvg.traits.but(
        helps=("labels", "domains"), needs=("body",), personalised=True, alone=None
    )
    claims = Claims({"mean": VECTORS})
    kappa: NotNegative = setting(
        50.0, "Weight of the distance between means of features.", symbol="kappa"
    )
    mu: Ratio = setting(
        1.0, "Share that each batch has in the client's running mean of features.", symbol="mu"
    )

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        model.head = Shifted(linear_head(model, "feddbe"))
        return model

    def roles(self, model: Any) -> Roles:
        return Roles(model, private=[model.head.shift])

    def download(self, server: Payload, k: int) -> Payload:
        down = super().download(server, k)
        if "mean" not in server:
            return down
        return down.replace(mean=server["mean"])

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"), state.tree("model"))
        mean = self.fit(down, local)
        shared = Payload(model=local.tree("shared"))
        upload = shared
        if "mean" not in down:
            upload = shared.replace(mean=mean)
        return Update(upload, Payload(model=local.tree("private")), shared)

    def fit(self, down: Payload, local: Local) -> Tensor:
        """Train, without the shift if there is no common mean yet; returns the running mean."""
        head, running = local.model.head, torch.zeros(())

        def loss(batch: Batch) -> dict[str, Tensor]:
            nonlocal running
            now = batch.features.mean(0)
            running = now.lerp(running.detach().to(now), 1 - self.mu)
            if "mean" not in down:
                return cross_entropy(batch)
            gap = (running - down.tensor("mean")).square().mean() / 2
            return cross_entropy(batch) | {"mean": self.kappa * gap}

        if "mean" in down:
            local.fit(loss)
        else:
            local.fit(loss, only=[local.model.body, head.linear])
        return running.detach()

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        if "mean" in server:
            return super().aggregate(server, uploads)
        mean = Mean()

        def noting() -> Uploads:
            for k, up in uploads:
                mean.add(Tree({"mean": up.tensor("mean")}), self.weight(server, k))
                yield k, up

        server = super().aggregate(server, noting())
        return server.replace(**mean.value(default=Tree()))

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        worker.load(server.tree("model"))
        return worker.predictor()

"""AFL (agnostic federated learning): minimise the loss of the worst mixture of clients.

Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019.

Travels: as FedAvg, and up one number, the client's mean loss at the received model; with `average`
the mean of all models so far comes down too.
Symbols: lambda -> `lam` on the server, gamma_lambda (the step size of its ascent) -> `gamma`.
The server averages models with the weights lambda, normalised over those who answered. Then it
moves lambda to lambda + gamma * losses, projected on the simplex of all clients. Lambda lasts from
round to round; the entry of an absent client changes through the projection only.
Deviations: clients take several local steps, as in every federated use of AFL (the paper takes one
gradient). Prediction uses the last model; `average=true` uses the mean of all rounds' models, as
the paper does for convex losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from ..core.local import Local, Predictor, Worker
from ..core.lookup import method
from ..core.method import Uploads
from ..core.payload import Payload
from ..core.settings import NotNegative, setting
from ..core.tree import Mean
from ..parts.simplex import project
from ._bases import Reporting


@method("afl")
class AFL(Reporting):
    """FedAvg with weights that rise where the loss is high."""

    traits = Reporting.traits.but(
        helps=("worst",),
        averages=False,  # its weights are learned
        neutral=({"gamma": 0.0, "start": "size"}, "fedavg"),
    )
    gamma: NotNegative = setting(
        0.01, "Step size of the ascent of the clients' weights.", symbol="gamma_lambda"
    )
    start: Literal["uniform", "size"] = setting(
        "uniform", "The weights before the first ascent: all equal, or by the clients' sizes."
    )
    average: bool = setting(
        False, "Predict with the mean of all rounds' models instead of the last model."
    )

    def init(self, worker: Worker) -> Payload:
        lam = torch.zeros(worker.clients, dtype=torch.float64)
        if self.start == "uniform":
            lam = torch.full_like(lam, 1 / worker.clients)
        return super().init(worker).replace(lam=lam)

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        server = super().join(server, hellos)
        if self.start == "uniform":
            return server
        new = list(hellos)
        sizes = server.tensor("sizes").double()
        shares = sizes / sizes.sum()
        lam = server.tensor("lam") * (1 - shares[new].sum())  # those known before make room
        lam[new] = shares[new]
        return server.replace(lam=lam)

    def download(self, server: Payload, k: int) -> Payload:
        return super().download(server, k).replace(mean=server.tree("mean"))

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        mean, lam = Mean(), server.tensor("lam")
        raised = lam.clone()
        for k, up in uploads:
            mean.add(up.tree("model"), weight=lam[k].item())
            raised[k] += self.gamma * up.number("loss")
        model = mean.value(default=server.tree("model"))
        if self.average:
            iterates = Mean()
            iterates.add(server.tree("mean"), weight=server.number("round") - 1)
            iterates.add(model)
            server = server.replace(mean=iterates.value(default=model))
        if self.gamma:
            lam = project(raised)
        return server.replace(model=model, lam=lam)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("mean") or down.tree("model"), state.tree("model"))
        return local.predictor()

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        model = server.tree("mean") or server.tree("model")
        return super().common(server.replace(model=model), worker)

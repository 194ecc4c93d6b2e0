"""FedAMP: each client is sent a mixture of all models, in which similar ones count more.

Huang et al., "Personalized cross-silo federated learning on non-IID data", AAAI 2021.

Travels: the client's own mixture u_k down, w_k up. Kept by the client: w_k; by the server:
everybody's last w_k.
Symbols: u_k -> the downloaded `model`, xi -> `xi`, sigma -> `sigma`, lambda -> `lam`, xi_kk ->
`self_share` (by default one over the number of clients), alpha_k -> `server_lr`, which falls to a
tenth every `decay_every` rounds.
The client minimises CE + lambda / (2 alpha) |w - u_k|^2 from w = u_k and predicts with w_k. With
`shares=cosine`, the paper's HeurFedAMP, xi_kj is proportional to exp(sigma cos(w_k, w_j)), and all
of them sum to 1 - xi_kk. With `shares=attention`, FedAMP, xi_kj = alpha exp(-|w_k - w_j|^2 / sigma)
/ sigma, and the rest goes to w_k itself. A negative rest is refused: alpha and sigma then do not
fit the distances at hand.
Deviations: similarity is that of parameters, not of BatchNorm's statistics. With partial
participation the last known w_j count, and clients that have not answered yet do not (in the paper
all take part in every round). Defaults are those of a public port.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..core.errors import FedloomError
from ..core.local import Fit, Local, Predictor, Worker
from ..core.lookup import method
from ..core.method import Traits, Update, Uploads
from ..core.payload import Payload
from ..core.settings import Count, NotNegative, Positive, setting
from ._bases import Silent


@method("fedamp")
class FedAMP(Silent):
    """Message passing: similar clients attract each other's models."""

    traits = Traits(
        helps=("labels", "domains"),
        by_client=None,
        neutral=({"lam": 0.0, "self_share": 1.0}, "local"),
    )
    shares: Literal["cosine", "attention"] = setting(
        "cosine",
        "How similarity becomes a share: by the cosine (HeurFedAMP) or by attention (FedAMP).",
    )
    sigma: Positive = setting(
        25.0, "Scale of the similarity between two clients' models.", symbol="sigma"
    )
    server_lr: Positive = setting(
        1e4, "Step size of the server, which also weakens the clients' pull.", symbol="alpha_k"
    )
    decay_every: Count = setting(
        30, "Number of rounds after which the server's step size falls to a tenth."
    )
    lam: NotNegative = setting(
        1.0, "Strength of the pull towards the received model.", symbol="lambda"
    )
    self_share: Annotated[float, Field(ge=0, le=1)] | None = setting(
        None,
        "Share of a client's own model in its mixture; by default one over the number of clients.",
        symbol="xi_kk",
    )

    def init(self, worker: Worker) -> Payload:
        params, shared = worker.parameters(), worker.tree("shared")
        everybody = shared.map(lambda t: t.expand(worker.clients, *t.shape).clone())
        heard = torch.zeros(worker.clients, dtype=torch.bool)
        return Payload(params=everybody.only(params), rest=everybody.without(params), heard=heard)

    def download(self, server: Payload, k: int) -> Payload:
        xi = self.xi(server, k)
        everybody = server.tree("params") | server.tree("rest")

        def mixture(rows: Tensor) -> Tensor:
            if rows.is_floating_point():
                return torch.tensordot(xi, rows, 1)
            return rows[k]

        return Payload(model=everybody.map(mixture))

    def xi(self, server: Payload, k: int) -> Tensor:
        """How much of each client's model goes into client k's mixture."""
        w = torch.cat([t.reshape(len(t), -1) for t in server.tree("params").values()], 1)
        others = server.tensor("heard").clone()
        others[k] = False
        xi = torch.zeros(len(w))
        if self.shares == "cosine":
            own_share = self.self_share
            if own_share is None:
                own_share = 1 / len(w)
            alike = self.sigma * torch.cosine_similarity(w[others], w[k], dim=1)
            xi[others] = (1 - own_share) * alike.softmax(0)
        else:
            alpha = self.alpha_at(int(server.number("round")))
            apart = (w[others] - w[k]).square().sum(1)
            xi[others] = alpha * (-apart / self.sigma).exp() / self.sigma
        if xi.sum() > 1 + 1e-6:
            raise FedloomError(
                f"fedamp: others' shares in client {k}'s model sum to {xi.sum():.3g} > 1; lower "
                "server_lr."
            )
        xi[k] = 1 - xi.sum()
        return xi

    def alpha_at(self, round: int) -> float:
        """alpha in a round."""
        return self.server_lr * 0.1 ** ((max(round, 1) - 1) // self.decay_every)

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"))
        self.train(down, state, local)
        model = Payload(model=local.tree("shared"))
        return Update(upload=model, state=model, trained=model)

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        return local.fit(pull=(down.tree("model"), self.lam / self.alpha_at(local.round)))

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        params = server.tree("params")
        everybody = (params | server.tree("rest")).clone()
        heard = server.tensor("heard").clone()
        for k, up in uploads:
            heard[k] = True
            for name, tensor in up.tree("model").items():
                everybody[name][k] = tensor
        return server.replace(
            params=everybody.only(params), rest=everybody.without(params), heard=heard
        )

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("model"), state.tree("model"))
        return local.predictor()

"""FedGH: private bodies under a head that the server trains on the clients' class means.

Yi, Wang, Liu, Shi, Yu, "FedGH: Heterogeneous federated learning with generalized global header",
ACM MM 2023.

Travels: up a mean feature for each class a client has, and its count; down the head. Kept by the
client: its body.
Symbols: omega_k -> role `private`, theta -> `model` (the head), vbar^s_k -> `means`, eta_theta ->
`server_lr`.
Clients train body and head together by CE. The server takes the uploaded means, one after the
other, as samples of their classes and trains the head on them.
Prediction: own body, newest head.
Deviations: means are over all samples of a class; in the authors' code they are means of batches'
means. In that code the optimiser holds a client's network, so that the server's head stays at its
first weights; here the head is trained, as in the paper. Bodies have one architecture.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.local import Local
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.rng import torch_rng
from ..core.roles import Roles
from ..core.settings import Count, Positive, setting
from ..core.tree import Tree
from ..parts.routes import linear_head
from ..parts.serverside import descend
from ._bases import Prototypical


@method("fedgh")
class FedGH(Prototypical):
    """Private bodies, and a head that the server trains."""

    traits = Prototypical.traits.but(
        helps=("labels",), needs=("body",), personalised=True, averages=False, alone=None
    )
    server_lr: Positive = setting(
        0.01, "Step size of the server's training of the head.", symbol="eta_theta"
    )
    server_epochs: Count = setting(1, "Number of times the server goes through all class means.")
    server_batch: Count = setting(1, "Number of class means in a step of the server's training.")

    def extend(self, model: Any, classes: Any) -> Any:
        linear_head(model, "fedgh")
        return model

    def roles(self, model: Any) -> Roles:
        return Roles(model, private=[model.body])

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        sent = {name: update.upload[name] for name in ("means", "counts")}
        return replace(update, upload=Payload(sent))

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        means, labels = [], []
        for _, up in uploads:
            labels.append(up.tensor("counts").nonzero()[:, 0])
            means.append(up.tensor("means")[labels[-1]])
        if not means:
            return server
        return self.learn(server, torch.cat(means), torch.cat(labels))

    def learn(self, server: Payload, means: Tensor, y: Tensor) -> Payload:
        def loss(head: Tree, chosen: Tensor) -> Tensor:
            logits = F.linear(means[chosen], head["head.weight"], head.get("head.bias"))
            return F.cross_entropy(logits, y[chosen])

        head = descend(
            server.tree("model"),
            loss,
            len(y),
            epochs=self.server_epochs,
            batch=self.server_batch,
            lr=self.server_lr,
            rng=torch_rng(int(server.number("seed")), int(server.number("round")), "head"),
        )
        return server.replace(model=head)

"""FedIIR: clients whose classifiers would move alike have features that mean the same.

Guo, Guo, Cao, Yang, "Out-of-distribution generalization of federated learning via implicit
invariant relationships", ICML 2023.

Travels: as FedAvg; also up the client's mean gradient of the head at the received model, down a
running mean of these.
Symbols: w -> the head, gbar -> `slope`, gamma -> `gamma`, the running mean's memory -> `memory`.
The local objective is CE + gamma |g - gbar|^2, where g is the gradient of the batch's CE with
respect to the head; the penalty is differentiated through g.
The server's running mean is memory gbar + (1 - memory) times the mean of this round's gradients.
Deviations: clients measure gradients in the round in which they train, so gbar is a round older
than in the public code, where all measure first; in the first round there is none, and no penalty.
Gradients are means over a client's batches with the body in evaluation mode; all clients count
alike in gbar (there all batches).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..client.training import PLAIN
from ..core.claims import Claim, Claims
from ..core.local import Batch, Fit, Local, Step, cross_entropy
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.settings import NotNegative, Share, setting
from ..core.tree import Mean, Tree
from .fedavg import FedAvg


@method("fediir")
class FedIIR(FedAvg):
    """FedAvg whose clients' heads have like gradients."""

    traits = FedAvg.traits.but(
        helps=("domains",), needs=("body",), neutral=({"gamma": 0.0}, "fedavg")
    )
    claims = Claims({"slope/*": Claim("gradients of a head")})
    gamma: NotNegative = setting(
        1e-3, "Weight of the distance between gradients of the head.", symbol="gamma"
    )
    memory: Share = setting(0.95, "Share of the old in the running mean of gradients.")

    def download(self, server: Payload, k: int) -> Payload:
        return super().download(server, k).replace(slope=server.tree("slope"))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        if self.gamma == 0:
            return update
        local.load(down.tree("model"))
        mean = Mean()

        def note(step: Step) -> Tree:
            mean.add(step.g)
            return step.g.zeros_like()

        plain = {**PLAIN, "epochs": 1, "steps": None}
        local.fit(gradient=note, only=[local.model.head], stream=0, label="slope", **plain)
        slope = mean.value(default=Tree())
        return replace(update, upload=update.upload.replace(slope=slope))

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        target, head = down.tree("slope"), local.model.head
        if not target or self.gamma == 0:
            return local.fit()

        def loss(batch: Batch) -> dict[str, Tensor]:
            parts = cross_entropy(batch)
            slopes = torch.autograd.grad(parts["ce"], list(head.parameters()), create_graph=True)
            apart = []
            for (name, _), slope in zip(head.named_parameters(), slopes, strict=True):
                apart.append((slope - target[f"head.{name}"]).square().sum())
            return parts | {"slope": self.gamma * torch.stack(apart).sum()}

        return local.fit(loss)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        slopes = Mean()

        def noting() -> Uploads:
            for k, up in uploads:
                slopes.add(up.tree("slope"))
                yield k, up

        server = super().aggregate(server, noting())
        new = slopes.value(default=Tree())
        if not new:
            return server
        old = server.tree("slope") or new.zeros_like()
        return server.replace(slope=new.towards(old, self.memory))

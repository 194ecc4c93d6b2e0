"""FedHEAL: inconsistent updates are masked, and clients far from the global model count more.

Chen, Huang, Ye, "Fair federated learning under domain skew with local consistency and domain
diversity", CVPR 2024.

Travels: as FedAvg, with the update in place of the model. Kept by the server for each client that
has answered: for every parameter, the share of its rounds in which the update was not negative; the
number of its rounds; its weight and increment.
Symbols: tau -> `tau`, beta -> `beta`, Delta_k = w - w_k -> -`delta`.
An element's consistency is that share if Delta >= 0, else 1 minus it. Elements whose consistency
does not exceed tau are masked, except in a client's first round. With d_k the sum over tensors of
|masked Delta_k|, increment <- (1 - beta) increment + beta d_k / sum d, and weight <- weight +
increment, starting from 1/m. For each element the weights of the clients that are not masked there
are normalised; where all are masked, nothing moves.
Deviations: masks concern parameters only (the released code also masks BatchNorm's buffers; we
average these with the clients' weights). A history counts the client's own rounds, so a client may
first appear in any round; sums run over those who answered. As in the released code, sample counts
play no role, and weights grow without bound before they are normalised. The server needs all of a
round's updates at once, and remembers one model's size for each client.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..core.claims import CHANGES, WEIGHTS, Claims
from ..core.local import Local, Worker
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.settings import Share, setting
from ..core.tree import Mean, Tree
from ..parts.updates import difference, moved
from .fedavg import FedAvg


@method("fedheal")
class FedHEAL(FedAvg):
    """FedAvg with masked updates and weights by distance."""

    traits = FedAvg.traits.but(
        helps=("domains", "worst"),
        averages=False,  # its weights are its own
        alone=None,  # a single client's update is masked too
    )
    claims = Claims({"delta/*": CHANGES, "buffers/*": WEIGHTS})
    tau: Share = setting(
        0.3,
        "Smallest consistency with a client's own history that keeps a parameter's update.",
        symbol="tau",
    )
    beta: Share = setting(0.4, "How fast distances change the weights of clients.", symbol="beta")

    def init(self, worker: Worker) -> Payload:
        server, zeros = super().init(worker), torch.zeros(worker.clients, dtype=torch.float64)
        return server.replace(rounds=zeros, weights=zeros.clone(), increments=zeros.clone())

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        return replace(update, upload=difference(down.tree("model"), local))

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        arrived = dict(uploads)
        if not arrived:
            return server
        rounds = server.tensor("rounds").clone()
        weights = server.tensor("weights").clone()
        increments = server.tensor("increments").clone()
        masks, masked, histories, away = {}, {}, {}, {}
        for k, up in arrived.items():
            delta = -up.tree("delta")
            rises = delta.map(lambda t: (t >= 0).to(t.dtype))
            history = server.tree(f"history/{k}") or rises
            # 1 - |rise - share| is the share where the update is not negative, else 1 minus it.
            masks[k] = (rises - history).map(lambda t: (1 - t.abs() > self.tau).to(t.dtype))
            masked[k] = delta * masks[k]
            away[k] = sum(tensor.norm().item() for tensor in masked[k].values())
            histories[f"history/{k}"] = history + (rises - history) / (rounds[k].item() + 1)
        total = sum(away.values()) or 1.0
        for k, distance in away.items():
            if not rounds[k]:
                weights[k] = 1 / len(arrived)
            increments[k] = (1 - self.beta) * increments[k] + self.beta * distance / total
            weights[k] += increments[k]
            rounds[k] += 1
        top, bottom, buffers = masked[k].zeros_like(), masked[k].zeros_like(), Mean()
        for k, up in arrived.items():
            weight = weights[k].item()
            top, bottom = top + weight * masked[k], bottom + weight * masks[k]
            buffers.add(up.tree("buffers"), weight)
        step = top / bottom.map(lambda t: t.clamp(min=1e-30))  # where all are masked, 0 / 1e-30
        model = moved(server.tree("model"), -step, buffers.value(default=Tree()))
        counters = {"rounds": rounds, "weights": weights, "increments": increments}
        return server.replace(model=model, **counters, **histories)

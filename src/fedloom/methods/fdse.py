"""FDSE: every layer is a shared extractor and a client's own eraser of its domain's skew.

Wang et al., "Federated learning with domain shift eraser", CVPR 2025.

Travels: the whole model but the erasers' BatchNorm statistics, which stay with the client. Kept by
the server: each client's eraser.
Symbols: lambda -> `lam`, tau -> `tau`, beta -> `beta`; DFE -> `extract`, `bias` and the BatchNorm
behind it, DSE -> `affine` and `erase` of `parts/erasers.py`. 1/`reduction` of a layer's channels
are extracted, the eraser makes the others.
The client minimises CE + lam R once it has received statistics. R is the KL divergence from the
received statistics behind each extractor to those of the batch, averaged over channels, with layers
weighted by exp(beta l).
The server sums, for every shared tensor, the directions Delta_k / |Delta_k| of the updates, with
the weights on the simplex that make the sum shortest, and scales the sum by the mean |Delta_k|. For
every eraser tensor, client i gets the mean of all with weights softmax_j cos(v_i, v_j) / tau.
BatchNorm's shared statistics are averaged plainly.
Deviations: R is derived anew, because the released one has a difference of squares where a squared
difference belongs. A client whose update of a tensor is 0 has no direction there and is left out.
Absent clients keep their eraser. `reduction=1` leaves the network whole. R is 0 for batches of one
sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.claims import CHANGES, WEIGHTS, Claims
from ..core.local import Batch, Fit, Local, Worker, cross_entropy
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.roles import Roles
from ..core.settings import Count, NotNegative, Positive, setting
from ..core.tree import Mean, Tree
from ..parts.erasers import (
    Statistics2d,
    channel_gap,
    eraser_names,
    extractor_norms,
    mixed_by_similarity,
    with_erasers,
)
from ..parts.simplex import consensus
from ..parts.updates import difference, moved
from .fedavg import FedAvg


@method("fdse")
class FDSE(FedAvg):
    """Shared extractors, erasers by client."""

    traits = FedAvg.traits.but(
        helps=("domains",),
        needs=("images",),
        personalised=True,
        averages=False,  # its weights are its own
        alone={"reduction": 1, "lam": 0.0},
    )
    claims = Claims({"delta/*": CHANGES, "buffers/*": WEIGHTS})
    lam: NotNegative = setting(
        0.01, "Weight of the consistency loss beside the cross-entropy.", symbol="lambda"
    )
    tau: Positive = setting(
        0.5, "Temperature of the similarity between clients' erasers.", symbol="tau"
    )
    beta: float = setting(
        0.1, "How much more deeper layers count in the consistency loss.", symbol="beta"
    )
    reduction: Count = setting(
        2,
        "Divides a layer's channels into those that are extracted and those made from them; "
        "with 1 the network stays whole.",
    )

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        model.body = with_erasers(model.body, self.reduction)
        return model

    def roles(self, model: nn.Module) -> Roles:
        return Roles(model, private=[Statistics2d])

    def init(self, worker: Worker) -> Payload:
        names = eraser_names(worker.model)
        server = super().init(worker)
        model = server.tree("model")
        return server.replace(model=model.without(names), eraser=model.only(names))

    def download(self, server: Payload, k: int) -> Payload:
        return Payload(model=server.tree("model") | self.eraser(server, k))

    def eraser(self, server: Payload, k: int) -> Tree:
        """Client k's eraser, or the first one if it has not answered yet."""
        return server.tree(f"erasers/{k}") or server.tree("eraser")

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        return replace(update, upload=difference(down.tree("model"), local))

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        received = down.tree("model")
        names = {module: name for name, module in local.model.named_modules()}
        norms = []
        for norm in extractor_norms(local.model.body):
            if f"{names[norm]}.running_mean" in received:  # others are frozen
                norms.append(norm)
        if not (self.lam and norms and received[f"{names[norms[0]]}.num_batches_tracked"] > 0):
            return local.fit()
        some = received[f"{names[norms[0]]}.running_mean"]
        weights = torch.softmax(self.beta * some.new_tensor(range(len(norms))), 0)

        def loss(batch: Batch) -> dict[str, Tensor]:
            gaps = []
            for norm, seen in zip(norms, batch.seen, strict=True):
                mean = received[f"{names[norm]}.running_mean"]
                var = received[f"{names[norm]}.running_var"]
                gaps.append(channel_gap(seen.input, mean, var, norm.eps))
            consistency = (weights * torch.stack(gaps)).sum()
            return cross_entropy(batch) | {"consistency": self.lam * consistency}

        return local.fit(loss, watch=norms)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        deltas, buffers = {}, Mean()
        for k, up in uploads:
            deltas[k] = up.tree("delta")
            buffers.add(up.tree("buffers"))
        if not deltas:
            return server
        w, of_eraser = server.tree("model"), server.tree("eraser")
        some_delta = next(iter(deltas.values()))
        steps = {}
        for name in w:
            if name in some_delta:  # buffers have no update
                steps[name] = consensus([delta[name] for delta in deltas.values()])
        erasers = {}
        for k, delta in deltas.items():
            erasers[k] = self.eraser(server, k) + delta.only(of_eraser)
        new: dict[str, Tree] = {"model": moved(w, Tree(steps), buffers.value(default=Tree()))}
        for k, eraser in mixed_by_similarity(erasers, self.tau).items():
            new[f"erasers/{k}"] = eraser
        return server.replace(**new)

"""FedGR: clients that are badly served count more, and so do all clients of a badly served type.

Cheng et al., "FedGCR: Achieving performance and fairness for federated learning with distinct
client types via group customization and reweighting", AAAI 2024: the reweighting, round any method
that averages models.

Travels: as the method it is put round; up also the client's mean loss at the received model, and a
vector that describes the client: the mean over its classes of their mean features. Types are
clusters of these vectors.
Symbols: T' -> `types`, q -> `group_q`, delta, gamma -> `group_delta`, `group_gamma`, L_k -> `loss`,
h~_k -> `type_point`, H -> `type_centres`, beta -> `schedule` of `parts/client_types.py`, omega_k ->
`sizes`.
A client weighs omega_k (L_k^(1-beta) G_k^beta)^(q+1), with G_k the mean loss of its cluster,
normalised over those who answered (the paper prints no normalisation). With `group_q=-1` everybody
counts by size.
Deviations: L_k is the mean cross-entropy of the received model on all training samples (the paper
takes the sum of the objective while training, which would count sizes twice). An absent client
keeps its last vector and loss in the clusters. T' is at most the number of different clients, an
empty cluster is left out, and clustering has a random key of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ...core.claims import LOSS, VECTORS, Claims
from ...core.local import Local, Worker
from ...core.lookup import plugin
from ...core.method import Update
from ...core.payload import Payload
from ...core.rng import key
from ...core.settings import Count, setting
from ...parts.client_types import (
    Clusterer,
    Covariance,
    centres,
    cluster,
    fair_weights,
    group_losses,
    noted,
    schedule,
)
from ...parts.customising import balanced
from .._bases import Reweighting

Part = Annotated[float, Field(ge=0, le=1)]


@plugin("fedgr")
class FedGR(Reweighting):
    """Weights by a client's loss and by its group's."""

    claims = Claims({"loss": LOSS, "type_point": VECTORS})

    types: Count | None = setting(
        None,
        "Number of clusters of clients; by default the data set's number of domains.",
        symbol="T'",
    )
    clusterer: Clusterer = setting(
        "gmm", "The algorithm that clusters clients by the vectors they send."
    )
    covariance: Covariance = setting("full", "Form of the covariances of the Gaussian mixture.")
    group_q: Annotated[float, Field(allow_inf_nan=False)] = setting(
        1.0,
        "Power of the losses in the weights: the larger, the more high losses count.",
        symbol="q",
    )
    group_delta: Part = setting(
        0.5, "How much a group's loss counts in the end, against the client's own.", symbol="delta"
    )
    group_gamma: Part = setting(
        0.5, "How slowly a group's loss comes to count; 0: at once.", symbol="gamma"
    )
    group_lag: Literal[0, 1] = setting(
        1, "Number of rounds by which the schedule of the group's share lags behind."
    )
    group_mean: Literal["plain", "size"] = setting(
        "plain", "How a group's losses are averaged: plainly or by the clients' sizes."
    )
    coarse_losses: bool = setting(
        False,
        "Round losses as the authors' code does: 100 / int(100 / L), and 1 in the first round.",
    )
    described: Literal["trained", "received"] = setting(
        "trained", "Which model's features describe a client: the trained or the received one."
    )

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        return server.replace(
            type_points=torch.zeros(worker.clients, worker.width),
            type_losses=torch.zeros(worker.clients, dtype=torch.float64),
            type_labels=torch.full((worker.clients,), -1),
            type_count=self.types or len(worker.data.domains),
        )

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"), state.tree("model"))
        loss = local.evaluate()["ce"]
        if self.described == "received":
            point = self.point(local)
            update = super().client(down, state, local)
        else:
            update = super().client(down, state, local)
            local.load(update.trained.tree("model"), update.state.tree("model"))
            point = self.point(local)
        return replace(update, upload=update.upload.replace(loss=loss, type_point=point))

    def point(self, local: Local) -> Tensor:
        """What describes the client, by the resident model."""
        seen, y = local.outputs()
        return balanced(seen.features, y, local.classes)

    def reweigh(self, server: Payload, uploads: Mapping[int, Payload]) -> Payload:
        if not uploads:
            return server
        round, seed = int(server.number("round")), int(server.number("seed"))
        points, losses = server.tensor("type_points").clone(), server.tensor("type_losses").clone()
        labels = server.tensor("type_labels").clone()
        for k, up in uploads.items():
            points[k] = up.tensor("type_point")
            losses[k] = noted(up.number("loss"), round, self.coarse_losses)
            labels[k] = 0  # whoever was heard of takes part in the clusters
        who = (labels >= 0).nonzero().flatten()
        sizes, count = server.tensor("sizes")[who], int(server.number("type_count"))
        seed = key(seed, round, "types")
        labels[who] = cluster(points[who], count, self.clusterer, seed, self.covariance)
        if self.group_mean == "size":
            group = group_losses(losses[who], labels[who], sizes)
        else:
            group = group_losses(losses[who], labels[who])
        beta = schedule(round, self.group_delta, self.group_gamma, self.group_lag)
        shares = torch.zeros_like(losses)
        shares[who] = fair_weights(sizes, losses[who], group, beta, self.group_q)
        return server.replace(
            type_points=points,
            type_losses=losses,
            type_labels=labels,
            type_centres=centres(points[who], labels[who]),
            shares=shares,
        )

    def groups(self, server: Payload) -> Sequence[int]:
        labels: list[int] = server.tensor("type_labels").tolist()
        return labels

"""FedGCR: a prompt for every image, clusters of clients, and more weight for the badly served.

Cheng, Yeh, Chen, Pastor, Chen, "FedGCR: Achieving performance and fairness for federated learning
with distinct client types via group customization and reweighting", AAAI 2024.

This is FedAvg with `plugins/fedgr.py`, which explains clusters and weights, and with FedGC's
network (`parts/customising.py`). GC-Net turns the features z1 of the image alone into h, and the
prompts of the second pass are p_j + h. Use `--model vpt`; with `--encoder vit-mini --set
pixels=true` the first pass comes from the cache.
Travels: prompts, GC-Net and head; up also the mean loss and h~; down also the cluster centres and
the number of the client's own cluster. Kept by the client: its last model, `previous`, and its last
h~, `prompt`.
Symbols: lambda_1, lambda_2 -> `lam_gc`, `lam_ra`, tau -> `tau`, psi, p -> `net`, `prompts` of the
body, phi -> `head`, h~ -> `type_point`, H_i -> row `type` of `type_centres`, z, z_0, z_prev ->
`features` of batch, received, previous.
Deviations: losses compare vectors by cosines, as the authors' code does; `similarity=dot` is as
printed. A client that is in no cluster yet trains on CE alone. Models that take no prompts get h
added to their features. The preset `official` is the authors' code but for its optimiser, which has
three step sizes and keeps its moments between rounds (`keep_optimizer` does that), and its z_0,
which is a round old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..core.local import Batch, Fit, Local, cross_entropy
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ..core.settings import Count, NotNegative, Positive, setting
from ..parts.customising import (
    Similarity,
    alignment,
    customised,
    customiser,
    group_contrast,
    mean_prompt,
)
from .fedavg import FedAvg
from .plugins.fedgr import FedGR


@method("fedgcr")
class FedGCR(FedGR, FedAvg):
    """FedAvg with prompts by image, clusters of clients and group reweighting."""

    traits = FedAvg.traits.but(
        helps=("domains", "worst"),
        needs=("prompts",),
        alone=None,  # GC-Net is there with a single client too
        neutral=({"group_q": -1.0}, "fedgc"),
        training={"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.01, "batch": 64},
        presets={
            "official": {
                "lam_gc": 0.05,
                "lam_gc_end": 0.1,
                "lam_ra": 0.05,
                "tau_ra": 1.0,
                "group_gamma": 0.9,
                "group_lag": 0,
                "group_mean": "size",
                "coarse_losses": True,
                "described": "received",
                "prompt_batches": 3,
                "mixed_prompts": True,
                "first_plain": True,
            }
        },
    )
    tau: Positive = setting(
        0.5, "Temperature of the group customisation and the alignment loss.", symbol="tau"
    )
    tau_ra: Positive | None = setting(
        None, "Temperature of the alignment loss; by default the same as `tau`."
    )
    lam_gc: NotNegative = setting(0.5, "Weight of the group customisation loss.", symbol="lambda_1")
    lam_gc_end: NotNegative | None = setting(
        None,
        "Weight that the group customisation loss reaches in the end; by default it does not "
        "change.",
    )
    lam_gc_rounds: Count = setting(
        50, "Number of rounds in which the weight moves to `lam_gc_end`."
    )
    lam_ra: NotNegative = setting(
        0.1, "Weight of the representation alignment loss.", symbol="lambda_2"
    )
    similarity: Similarity = setting(
        "cosine", "How vectors are compared in both losses: by their cosine or their dot product."
    )
    prompt_batches: Count | None = setting(
        None,
        "Number of batches over which a client's mean prompt is taken; by default all samples.",
    )
    mixed_prompts: bool = setting(
        False, "In training, give each sample the prompt of another sample of its batch."
    )
    first_plain: bool = setting(
        False, "Before there are clusters, also train on a pass with the common prompts alone."
    )

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        return customised(super().extend(model, classes), self.mixed_prompts)

    def download(self, server: Payload, k: int) -> Payload:
        down = super().download(server, k)
        group = int(server.tensor("type_labels")[k])
        if group < 0:  # it is in no cluster yet
            return down
        return down.replace(type=group, type_centres=server.tensor("type_centres"))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        kept = update.state.replace(
            previous=update.trained.tree("model"), prompt=update.upload.tensor("type_point")
        )
        return replace(update, state=kept)

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        if "type" not in down:
            return self.train_without_groups(local)
        weight = self.group_weight(local.round)
        tau_ra = self.tau_ra or self.tau
        number, centres = int(down.number("type")), down.tensor("type_centres")

        def loss(batch: Batch) -> dict[str, Tensor]:
            h = batch.seen[0].output
            group = group_contrast(
                h, centres, number, state.tensor("prompt"), self.tau, self.similarity
            )
            parts = cross_entropy(batch) | {"group": weight * group}
            if self.lam_ra:
                z_0, z_prev = batch.refs["received"].features, batch.refs["previous"].features
                align = alignment(batch.features, z_0, z_prev, tau_ra, self.similarity)
                parts["align"] = self.lam_ra * align
            return parts

        refs = {}
        if self.lam_ra:
            refs = {"received": down.tree("model"), "previous": state.tree("previous")}
        return local.fit(loss, refs=refs, watch=[customiser(local.model).net])

    def train_without_groups(self, local: Local) -> Fit:
        """Local training of a client that is in no cluster yet."""
        if not self.first_plain:
            return local.fit()
        body = customiser(local.model).body

        def loss(batch: Batch) -> dict[str, Tensor]:
            plain = local.model.head(body(batch.x))
            return cross_entropy(batch) | {"plain": F.cross_entropy(plain, batch.y)}

        return local.fit(loss)

    def group_weight(self, round: int) -> float:
        """lambda_1 in a round."""
        if self.lam_gc_end is None:
            return self.lam_gc
        done = min(1.0, round / self.lam_gc_rounds)
        return self.lam_gc + (self.lam_gc_end - self.lam_gc) * done

    def point(self, local: Local) -> Tensor:
        if self.prompt_batches is None:
            return mean_prompt(local)
        return mean_prompt(local, self.prompt_batches * local.training.batch)

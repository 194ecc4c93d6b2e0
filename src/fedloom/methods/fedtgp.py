"""FedTGP: the server trains prototypes with an adaptive margin; models stay with their clients.

Zhang, Liu, Hua, Cao, "FedTGP: Trainable global prototypes with adaptive-margin-enhanced contrastive
learning for data and model heterogeneity in federated learning", AAAI 2024.

Travels: class means and counts up, the server's prototypes down. Kept by the client: its model.
Symbols: lambda -> `lam`, tau -> `tau`, S -> `server_epochs`, TGP -> `tgp` (a vector per class that
goes through two layers), Q^c -> the mean upload of a class, delta(t) -> the margin: the largest gap
between a class and the nearest other, at most tau.
The client's loss is CE + lam MSE(features, the prototype of their class); in the first round it is
CE alone. The server minimises the cross-entropy of minus distances, with the margin added to the
true class's. Where labels are masks, pixels take the place of samples.
Prediction: the nearest prototype, of all classes, or the classifier with `predict=head` and before
there are prototypes.
Deviations: means are taken in evaluation mode after training, from the model just trained (the
released code uploads those of the round before). If only one class is uploaded there is no gap, and
the margin is 0. `share=true` also averages the models, for comparisons that want one common model;
the original never does.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.local import Batch, Fit, Local, Predictor, Worker, cross_entropy
from ..core.lookup import method
from ..core.payload import Payload
from ..core.rng import torch_rng
from ..core.roles import Roles
from ..core.settings import Count, NotNegative, Positive, setting
from ..core.tree import Tree
from ..parts.prototypes import (
    class_means,
    label_width,
    margin_loss,
    nearest_other,
    own_means,
    squared_gap,
)
from ..parts.rules import ByDistance
from ..parts.serverside import descend
from ._bases import Prototypical


@method("fedtgp")
class FedTGP(Prototypical):
    """Private models around prototypes that the server trains."""

    traits = Prototypical.traits.but(
        helps=("labels",),
        needs=("body",),
        personalised=True,
        networks="width",
        neutral=({"lam": 0.0, "predict": "head"}, "local"),
    )
    lam: NotNegative = setting(
        10.0, "Weight of the distance between features and prototypes.", symbol="lambda"
    )
    tau: Positive = setting(100.0, "Largest margin between two classes' prototypes.", symbol="tau")
    server_epochs: Count = setting(
        100, "Number of epochs in which the server trains the prototypes each round.", symbol="S"
    )
    server_lr: Positive = setting(0.01, "Step size of the server's training of the prototypes.")
    server_batch: Count = setting(
        10, "Number of uploaded means in a step of the server's training."
    )
    predict: Literal["prototype", "head"] = setting(
        "prototype", "What predicts: the nearest prototype or the head."
    )
    share: bool = setting(False, "Whether the models travel and are averaged too.")

    def roles(self, model: nn.Module) -> Roles:
        return Roles(model, private=[] if self.share else [model])

    def init(self, worker: Worker) -> Payload:
        tgp = first_prototypes(worker.classes, label_width(worker), worker.seed)
        return super().init(worker).replace(tgp=tgp)

    def download(self, server: Payload, k: int) -> Payload:
        down = super().download(server, k)
        if "prototypes" not in server:
            return down
        return down.replace(prototypes=server["prototypes"])

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        if "prototypes" not in down:
            return local.fit()
        anchors = down.tensor("prototypes")
        known = anchors.new_ones(local.classes, dtype=torch.bool)

        def loss(batch: Batch) -> dict[str, Tensor]:
            gap = squared_gap(batch.features, batch.y, anchors, known)
            return cross_entropy(batch) | {"prototypes": self.lam * gap}

        return local.fit(loss)

    def means(self, local: Local) -> tuple[Tensor, Tensor]:
        return own_means(local)

    def learn(self, server: Payload, means: Tensor, y: Tensor) -> Payload:
        margin = margin_of(means, y, self.tau)

        def loss(w: Tree, chosen: Tensor) -> Tensor:
            return margin_loss(means[chosen], y[chosen], prototypes(w), margin)

        tgp = descend(
            server.tree("tgp"),
            loss,
            len(y),
            epochs=self.server_epochs,
            batch=self.server_batch,
            lr=self.server_lr,
            rng=torch_rng(int(server.number("seed")), int(server.number("round")), "prototypes"),
        )
        return server.replace(tgp=tgp, prototypes=prototypes(tgp))

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        predict = super().personal(down, state, local)
        if self.predict == "head" or "prototypes" not in down:
            return predict
        anchors = down.tensor("prototypes")
        known = anchors.new_ones(local.classes, dtype=torch.bool)
        return local.predictor(rule=ByDistance(anchors, known))


def first_prototypes(classes: int, width: int, seed: int) -> Tree:
    """A random vector per class and two layers it goes through, initialised as torch does."""
    rng = torch_rng(seed, "prototypes")
    bound = width**-0.5
    tensors = {}
    for layer in ("first", "second"):
        tensors[layer] = torch.empty(width, width).uniform_(-bound, bound, generator=rng)
        tensors[f"{layer}_bias"] = torch.empty(width).uniform_(-bound, bound, generator=rng)
    tensors["vectors"] = torch.randn(classes, width, generator=rng)
    return Tree(tensors)


def prototypes(w: Tree) -> Tensor:
    """The prototype of every class."""
    hidden = F.relu(F.linear(w["vectors"], w["first"], w["first_bias"]))
    return F.linear(hidden, w["second"], w["second_bias"])


def margin_of(means: Tensor, y: Tensor, most: float) -> Tensor:
    """The largest gap between a class and the nearest other, at most `most`; 0 with one class."""
    centres, counts = class_means(means, y, int(y.max()) + 1)
    return torch.cat([nearest_other(centres[counts > 0]), torch.zeros(1)]).max().clamp(max=most)

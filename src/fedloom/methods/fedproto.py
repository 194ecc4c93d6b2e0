"""FedProto: clients exchange class prototypes (mean features), never weights.

Tan et al., "FedProto: Federated prototype learning across heterogeneous clients", AAAI 2022.

Travels: up one feature vector for each class a client has, and its count; down all known
prototypes. Kept by the client: its whole model.
Symbols: lambda -> `lam`, C_i^(j) -> `protos/j` in an upload, the global ones -> `protos/j` on the
server.
The local objective is CE + lambda times the mean squared difference, over batch and width, between
features and the prototype of their class. Samples of a class without a prototype add nothing.
Where labels are masks, pixels take the place of samples.
Prediction: the nearest global prototype, or the head with `predict=head` and before there are
prototypes.
Deviations: prototypes are taken in evaluation mode after training (the released code takes them
while training, in the last epoch). They are averaged by class counts, as in the paper, and all of
them may be nearest; in the released code clients count alike and predict classes of their own only
(`average=uniform`, `among=own`, both in the preset `official`). A class that nobody sends in a
round keeps its prototype.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from torch import Tensor

from ..core.claims import COUNTS, VECTORS, Claims
from ..core.local import Batch, Fit, Local, Predictor, cross_entropy
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.settings import NotNegative, setting
from ..core.tree import Mean, Tree
from ..parts.prototypes import distance_to_own, own_means, table
from ..parts.rules import ByDistance
from ._bases import Perturbed
from .local import Alone


@method("fedproto")
class FedProto(Perturbed, Alone):
    """Private models that agree on class means."""

    traits = Alone.traits.but(
        features="common",
        networks="width",
        helps=("labels",),
        needs=("body",),
        neutral=({"lam": 0.0, "predict": "head"}, "local"),
        presets={
            "official": {
                "average": "uniform",
                "among": "own",
                "lr": 0.01,
                "momentum": 0.5,
                "drop_last": True,
            },
        },
    )
    claims = Claims({"protos/*": VECTORS, "counts/*": COUNTS})
    lam: NotNegative = setting(
        1.0, "Weight of the distance between features and prototypes.", symbol="lambda"
    )
    average: Literal["counts", "uniform"] = setting(
        "counts", "How several clients' prototypes are averaged: by sample counts or uniformly."
    )
    predict: Literal["prototype", "head"] = setting(
        "prototype", "What predicts: the nearest prototype or the head."
    )
    among: Literal["all", "own"] = setting(
        "all", "Which prototypes may be nearest: all, or those of classes that the client has."
    )

    def download(self, server: Payload, k: int) -> Payload:
        return Payload(protos=server.tree("protos"))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(state.tree("model"))
        self.train(down, state, local)
        means, counts = own_means(local)
        owned = counts.nonzero().flatten()
        protos, sizes = {}, {}
        for c, proto in zip(owned.tolist(), self.perturbed(means[owned], local), strict=True):
            protos[str(c)], sizes[str(c)] = proto, counts[c]
        up = Payload(protos=Tree(protos), counts=Tree(sizes))
        return Update(upload=up, state=Payload(model=local.tree("private")), trained=down)

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        protos, known = table(down.tree("protos"), local.classes)
        if not known.any():
            return local.fit()

        def loss(batch: Batch) -> dict[str, Tensor]:
            return {
                **cross_entropy(batch),
                "proto": self.lam * distance_to_own(batch.features, batch.y, protos, known),
            }

        return local.fit(loss)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        means: dict[str, Mean] = defaultdict(Mean)
        for _, up in uploads:
            counts = up.tree("counts")
            for c, proto in up.tree("protos").items():
                weight = 1.0
                if self.average == "counts":
                    weight = counts[c].item()
                means[c].add(Tree({c: proto}), weight)
        new = {c: mean.value(Tree())[c] for c, mean in means.items()}
        return server.replace(protos=server.tree("protos") | new)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(state.tree("model"))
        protos, known = table(down.tree("protos"), local.classes)
        if self.predict == "head" or not known.any():
            return local.predictor()
        if self.among == "own" and (known & (local.counts > 0)).any():
            known = known & (local.counts > 0)
        return local.predictor(rule=ByDistance(protos, known))

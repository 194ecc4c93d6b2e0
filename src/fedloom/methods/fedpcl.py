"""FedPCL: private projections of frozen features, trained by contrast with shared prototypes.

Tan et al., "Federated learning from pre-trained models: a contrastive learning approach", NeurIPS
2022.

Travels: up the prototypes of the classes a client owns, and their counts; down the global
prototypes and every client's padded set. Weights never travel. Kept by the client: its whole
network, and its prototypes.
Symbols: Phi -> the encoder (frozen, outside the network), theta_i -> `body`, C_i -> `prototypes`,
C-bar -> `common`, A(y) -> all classes but y, tau -> `tau`. Use `--encoder ... --model projection`.
L_g contrasts a feature with the global prototypes, L_p with those of every client.
Prediction: the largest inner product with the client's own prototypes, among the classes it owns.
Deviations: we take the second division by the number of owners in Eq. 6 for a misprint
(`average=literal` has it). Losses are means over the batch. Before anybody has prototypes there is
no loss, so the first round only computes them (with `loss=official` the optimiser's decay shrinks
the weights then, as in the authors' code). Noise on what is sent (`perturb`) leaves alone the
prototypes that the client predicts with.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.claims import CLASSES, COUNTS, VECTORS, Claims
from ..core.local import Batch, Local, Predictor, Worker, cross_entropy
from ..core.lookup import method
from ..core.method import Method, Traits, Update, Uploads, sizes
from ..core.payload import Payload
from ..core.roles import Roles
from ..core.settings import Positive, setting
from ..parts.prototype_contrast import Weights, compared_loss, padded, pooled, prototype_loss
from ..parts.prototypes import class_means
from ..parts.rules import by_prototypes
from ._bases import Perturbed, refuse_fixed_body


@method("fedpcl")
class FedPCL(Perturbed, Method):
    """Prototype-wise contrastive learning."""

    traits = Traits(
        helps=("labels", "domains", "few"),
        needs=("projection",),
        stage="after",
        networks="width",
        alone=None,
        by_client=("sizes", "every", "owned"),
        training={"optimizer": "adam", "lr": 0.001, "weight_decay": 0.0001},
        presets={
            "official": {
                "average": "mean",
                "loss": "official",
                "inference": "distance",
                "drop_last": True,
            }
        },
    )
    claims = Claims({"prototypes": VECTORS, "classes": CLASSES, "counts": COUNTS})
    tau: Positive = setting(0.07, "Temperature of the contrast with prototypes.", symbol="tau")
    average: Weights = setting(
        "weighted",
        "How prototypes are averaged: by sample counts, plainly over owners, or as printed.",
    )
    loss: Literal["both", "global", "local", "official", "supcon", "ce", "ce+distance"] = setting(
        "both",
        "Which loss is minimised; `both` contrasts with global and with clients' prototypes.",
    )
    include_positive: bool = setting(
        False, "Count the true class in the denominator of the contrast too."
    )
    inference: Literal["product", "distance"] = setting(
        "product", "How a feature is compared with prototypes in prediction."
    )
    candidates: Literal["owned", "padded"] = setting(
        "owned", "Which classes can be predicted: those the client owns, or all with a prototype."
    )

    def roles(self, model: Any) -> Roles:
        if self.loss not in ("ce", "ce+distance"):
            refuse_fixed_body(self.name, model)
        return Roles(model, private=[model])

    def init(self, worker: Worker) -> Payload:
        counts = torch.zeros(worker.clients, worker.classes)
        prototypes = torch.zeros(worker.clients, worker.classes, worker.width)
        return self.shared(Payload(sizes=sizes(worker)), prototypes, counts)

    def shared(self, server: Payload, prototypes: Tensor, counts: Tensor) -> Payload:
        """The server with these prototypes of all clients, and what everybody is sent of them."""
        common, known = pooled(prototypes, counts, self.average)
        sets = padded(prototypes, counts, common)[counts.sum(1) > 0]
        down = Payload(common=common, known=known, sets=sets)
        return server.replace(every=prototypes, owned=counts, down=down)

    def download(self, server: Payload, k: int) -> Payload:
        return server.group("down")

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(state.tree("model"))
        # The authors' code takes its first steps without a loss; the decay of weights acts in them.
        if len(down.tensor("sets")) or self.loss in ("ce", "supcon", "official"):
            local.fit(lambda batch: self.parts(batch, down))
        means, counts = self.prototypes(local)
        classes = counts.nonzero().flatten()
        kept = Payload(model=local.tree("private"), prototypes=means, counts=counts)
        sent = self.perturbed(means[classes], local)
        return Update(Payload(prototypes=sent, classes=classes, counts=counts[classes]), kept, down)

    def parts(self, batch: Batch, down: Payload) -> dict[str, Tensor]:
        """The loss, by part. Prototypes are constants in it."""
        z, y = F.normalize(batch.features, dim=1), batch.y
        common, known, sets = down.tensor("common"), down.tensor("known"), down.tensor("sets")
        contrast = partial(prototype_loss, tau=self.tau, include=self.include_positive)
        parts = {}
        if self.loss in ("both", "global"):
            parts["global"] = contrast(z, y, common[None], known)
        if self.loss in ("both", "local"):
            parts["local"] = contrast(z, y, sets, known)
        if self.loss in ("ce", "ce+distance"):
            parts |= cross_entropy(batch)
        return parts | compared_loss(self.loss, z, y, common, known, sets, self.tau)

    def prototypes(self, local: Local) -> tuple[Tensor, Tensor]:
        """The client's class means of z, and how many samples of each class it has."""
        seen, y = local.outputs()
        return class_means(F.normalize(seen.features, dim=1), y, local.classes)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        prototypes, counts = server.tensor("every").clone(), server.tensor("owned").clone()
        for k, up in uploads:
            classes = up.tensor("classes")
            prototypes[k, classes] = up.tensor("prototypes")
            counts[k, classes] = up.tensor("counts").float()
        return self.shared(server, prototypes, counts)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(state.tree("model"))
        if state:
            means, counts = state.tensor("prototypes"), state.tensor("counts")
        else:
            means, counts = self.prototypes(local)
        known = counts > 0
        if self.candidates == "padded" and len(down.tensor("sets")):
            means = padded(means, counts, down.tensor("common"))
            known = known | down.tensor("known")
        return local.predictor(rule=by_prototypes(means, known, self.inference))

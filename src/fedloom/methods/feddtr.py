"""FedDTR: class texts are common anchors, and a private head stands beside a frozen global one.

Zhang et al., "FedDTR: Leveraging intra-domain global priors via domain-invariant text
representation for personalized federated learning".

Travels: body, text side and head up; body, text side and the averaged head down. Kept by the
client: its own head.
Symbols: omega -> `body`, theta -> `text`, h_i -> `head`, h_f -> `head` of the download, T ->
`anchors`, P_i -> `prior`, q_i -> `local.counts`, s -> `scale`.
L_img pulls features to the received anchors, L_txt moves the anchors to the features, and L_ce
trains the private head on feature + prior, with the frozen head's logits added. No gradient crosses
over: theta sees L_txt only, and h_f moves nothing.
Deviations: the paper reads class names but does not say how; its code has a free vector per class,
and so have we (`text=hash` and text encoders read names). The exponents of its Eq. 3 have the wrong
sign and its temperature is not printed: we use cross-entropy at scale 100, as its code does. Models
are averaged by sample counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ..core.local import Batch, Local, Predictor, Worker
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ..core.roles import Roles
from ..core.settings import Count, NotNegative, setting
from ..parts.rules import ShiftedHeads, head_of, shifted_logits, with_tensors
from ..parts.texts import (
    Layers,
    Texts,
    prior,
    refuse_layers_without_words,
    text_losses,
    text_rows,
)
from .fedavg import FedAvg


@method("feddtr")
class FedDTR(FedAvg):
    """A shared body pulled to text anchors, under a private head."""

    traits = FedAvg.traits.but(
        helps=("labels", "domains"),
        needs=("body",),
        stage="after",
        personalised=True,
        training={"lr": 0.005, "batch": 10},
        neutral=({"scale": 0.0, "prior": "none", "frozen_head": "none"}, "fedper"),
        presets={"official": {"drop_last": True}},
    )
    text: str = setting(
        "embedding",
        "How classes become vectors: embedding (free vectors), hash (hashed words of their"
        " names), none, or the name of a text encoder.",
    )
    text_depth: Count = setting(1, "Number of layers that the text vectors go through.", le=100)
    text_layers: Layers = setting(
        "mlp",
        "Kind of the layers that the text vectors go through: mlp, transformer (one layer over the"
        " classes), transformer-tiny (three over the words of text=hash, 9.3 million parameters)"
        " or tower (CLIP's own text side, trained).",
    )
    scale: NotNegative = setting(
        100.0,
        "Factor of the cosines between features and texts, the inverse of a temperature.",
        symbol="s",
    )
    frozen_text: bool = setting(
        True,
        "Pull features towards the received anchors; false: towards the anchors in training, "
        "in one loss.",
    )
    prior: Literal["trained", "frozen", "none"] = setting(
        "trained", "Which anchors the intra-domain prior is made from.", symbol="P_i"
    )
    frozen_head: Literal["average", "first", "none"] = setting(
        "average",
        "Which frozen head's logits are added to those of the private head.",
        symbol="h_f",
    )
    federated: bool = setting(
        True,
        "Whether anything travels; false: each client learns alone with its texts and without"
        " a frozen head.",
    )

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        refuse_layers_without_words(self.text, self.text_depth, self.text_layers)
        if self.text != "none":
            width = model.head.weight.shape[1]  # of a sample's, or a pixel's, features
            model.text = Texts(self.text, classes, width, self.text_depth, self.text_layers)
        return model

    def roles(self, model: Any) -> Roles:
        # Heads that are averaged do travel, but a client continues with its own.
        if not self.federated:
            return Roles(model, private=[model])
        if self.frozen_head != "average":
            return Roles(model, private=[model.head])
        return Roles(model)

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        self.install(down, state, local)
        frozen = text_rows(local.model).detach().clone()  # free vectors are trained in place

        def loss(batch: Batch) -> dict[str, Tensor]:
            z, y = batch.features, batch.y
            anchors = text_rows(local.model)
            for_prior = anchors if self.prior == "trained" else frozen
            parts = {"ce": F.cross_entropy(self.logits(z, for_prior, down, local), y)}
            if self.text == "none":
                return parts
            return parts | text_losses(z, y, frozen, anchors, self.scale, self.frozen_text)

        local.fit(loss)
        shared = local.tree("shared")
        kept = local.tree("private") | head_of(shared)
        trained = shared.without(kept) | head_of(down.tree("model"))
        return Update(Payload(model=shared), Payload(model=kept), Payload(model=trained))

    def install(self, down: Payload, state: Payload, local: Local) -> None:
        """The received body and text side under the client's own head."""
        local.load(down.tree("model"), state.tree("model") or head_of(local.worker.first))

    def logits(self, features: Tensor, anchors: Tensor, down: Payload, local: Local) -> Tensor:
        """h_i(F + P_i) + h_f(F): no gradient through the prior or the frozen head."""
        shift = self.shift(anchors, local)
        return shifted_logits(local.model.head, features, shift, self.frozen_tensors(down, local))

    def shift(self, anchors: Tensor, local: Local) -> Tensor | None:
        """P_i, if there is one."""
        if self.prior == "none" or self.text == "none":
            return None
        return prior(anchors.detach(), local.counts)

    def frozen_tensors(self, down: Payload, local: Local) -> dict[str, Tensor] | None:
        """The tensors of h_f by their names in the head, if there is one."""
        if self.frozen_head == "none" or not self.federated:
            return None
        model = local.worker.first
        if self.frozen_head == "average":
            model = down.tree("model")
        return {name.removeprefix("head."): tensor for name, tensor in head_of(model).items()}

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        self.install(down, state, local)
        shift = self.shift(text_rows(local.model), local)
        frozen = with_tensors(local.model.head, self.frozen_tensors(down, local))
        return local.predictor(rule=ShiftedHeads(local.model.head, shift, frozen))

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        return None

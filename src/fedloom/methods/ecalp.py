"""ECALP: labels flow between class texts, a client's few images and its test images.

Li et al., "Efficient and context-aware label propagation for zero-/few-shot training-free
adaptation of vision-language model", ICLR 2025.

Travels: the text rows down, once; nothing up. Kept by the client: the text rows.
Symbols: k_t, k_i, k_f -> `nearest_texts`, `nearest_images`, `nearest_shots`, gamma -> `gamma`,
alpha -> `share`.
Prediction is transductive: it depends on the client's other test images and on their order. Its
accuracy is therefore not quite comparable with that of methods that see one image at a time.
Deviations: each client works for itself; that is all that is federated about it. A test image
enters the graph once (twice in the released code), and a negative cosine counts as 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.local import Local, Predictor
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ..core.settings import Count, Positive, setting
from ..parts.pooling import unit_features
from ..parts.propagation import propagate
from ._textual import Textual, read


@method("ecalp")
class ECALP(Textual):
    """Context-aware label propagation."""

    traits = Textual.traits.but(transductive=True, trains=False)
    nearest_texts: Count = setting(
        3, "Number of class texts that each image is linked to.", symbol="k_t"
    )
    nearest_images: Count = setting(
        8, "Number of other test images that each image is linked to.", symbol="k_i"
    )
    nearest_shots: Count = setting(
        8, "Number of the client's own training images that each image is linked to.", symbol="k_f"
    )
    gamma: Positive = setting(
        10.0,
        "Power to which similarities are raised to become the weights of links.",
        symbol="gamma",
    )
    share: Positive = setting(
        1.0,
        "Weight of the labels that flow in from neighbours against an image's first label.",
        symbol="alpha",
    )
    flows: Count = setting(3, "How many times labels flow along the links.")

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        return Update(Payload(), read(down, state))

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        shots, y = unit_features(local)
        text = read(down, state).tensor("text")

        @torch.no_grad()
        def predict(x: Tensor) -> Tensor:
            tests = F.normalize(local.worker.outputs(x).features, dim=1)
            return propagate(
                tests,
                text,
                shots,
                y,
                nearest_texts=self.nearest_texts,
                nearest_images=self.nearest_images,
                nearest_shots=self.nearest_shots,
                gamma=self.gamma,
                share=self.share,
                steps=self.flows,
            )

        return predict

"""FedCLIP: a small attention adapter on frozen features, trained by clients and averaged.

Lu, Hu, Wang, Xie, "FedCLIP: fast generalization and personalization for CLIP in federated
learning", IEEE Data Eng. Bull. 2023.

Travels: the adapter down and up; the text rows down, once. Kept by the client: the text rows.
Symbols: A -> `layers` of the head; the adapted feature is A(v) * v, scaled to length one.
The loss is a symmetric contrast within a batch between every image and its own class's text. All
clients weigh the same.
Deviations: as in the released code, images of one class in a batch are negatives of each other.
`loss=ce`, which is ours, takes the cross-entropy over the class texts instead.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ..core.local import Batch, Local, Worker, cross_entropy
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import setting
from ..parts.heads import AdapterHead
from ..parts.prototypes import row_numbers
from ._textual import AveragedHead


@method("fedclip")
class FedCLIP(AveragedHead):
    """A common adapter."""

    traits = AveragedHead.traits.but(
        weighting="alike",
        training={
            "optimizer": "adam",
            "lr": 5e-5,
            "beta2": 0.98,
            "eps": 1e-6,
            "weight_decay": 0.2,
            "batch": 32,
        },
        presets={"official": {"raw_inputs": True}},
    )
    loss: Literal["contrast", "ce"] = setting(
        "contrast",
        "What is minimised: the contrast within a batch, or the cross-entropy over all class "
        "texts.",
    )

    raw_inputs: bool = setting(
        False, "Show the adapter features as long as they are, not scaled to length one."
    )

    def first(self, worker: Worker, texts: Payload) -> nn.Module:
        return AdapterHead(texts.tensor("text"), texts.number("scale"), self.raw_inputs)

    def train_head(self, head: nn.Module, down: Payload, local: Local) -> None:
        local.fit(contrast if self.loss == "contrast" else cross_entropy, head=head)


def contrast(batch: Batch) -> dict[str, Tensor]:
    """The cross-entropy of images against their batch's texts and of texts against its images."""
    square, pairs = batch.logits[:, batch.y], row_numbers(batch.y)
    return {"contrast": (F.cross_entropy(square, pairs) + F.cross_entropy(square.T, pairs)) / 2}

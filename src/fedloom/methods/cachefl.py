"""CacheFL: one cache for all, trained by clients and averaged.

Yi et al., "CacheFL: privacy-preserving and efficient federated cache model fine-tuning for
vision-language models", 2025.

Travels: the keys, one per class, down and up; the text rows down, once. Kept by the client: the
text rows.
Symbols: F -> `keys` of the head, alpha, beta -> `alpha`, `beta`.
Prediction: the votes of the common cache, added to the text logits.
Deviations: the paper's first keys are features of images that a text-to-image model draws. We have
no such model, so keys start at the text rows, one per class (copies of a key would stay copies). We
had neither code nor settings, and use those of Tip-Adapter-F, with the epochs and batches of
FedPACT.
"""

from __future__ import annotations

from torch import nn

from ..core.local import Worker
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import NotNegative, Positive, setting
from ..parts.heads import CacheHead
from ._textual import AveragedHead


@method("cachefl")
class CacheFL(AveragedHead):
    """A common cache."""

    traits = AveragedHead.traits.but(
        neutral=({"alpha": 0.0}, "zeroshot"),
        training={
            "optimizer": "adamw",
            "lr": 0.001,
            "eps": 1e-4,
            "weight_decay": 0.01,
            "batch": 16,
            "epochs": 20,
        },
    )
    alpha: NotNegative = setting(
        1.17, "Weight of the cache's logits beside the text logits.", symbol="alpha"
    )
    beta: Positive = setting(
        1.0, "Sharpness of the cache: how fast a key's vote falls with its distance.", symbol="beta"
    )

    def first(self, worker: Worker, texts: Payload) -> nn.Module:
        text = texts.tensor("text")
        return CacheHead(text, text, alpha=self.alpha, beta=self.beta, scale=texts.number("scale"))

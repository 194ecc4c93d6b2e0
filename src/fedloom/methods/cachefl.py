"""CacheFL: one cache for all, trained by clients and averaged.

Yi et al., "CacheFL: privacy-preserving and efficient federated cache model fine-tuning for
vision-language models", 2025.

Travels: the keys down and up; the text rows, and which class each key is of, down, once. Kept by
the client: the text rows and those classes.
Symbols: F -> `keys` of the head, alpha, beta -> `alpha`, `beta`.
Prediction: the votes of the common cache, added to the text logits.
Deviations: the paper's first keys are features of images that a text-to-image model draws; `drawn`
names a folder of them. Without one, keys start at the text rows, one per class (copies of a key
would stay copies). We had neither code nor settings, and use those of Tip-Adapter-F, with the
epochs and batches of FedPACT.
"""

from __future__ import annotations

from torch import nn

from ..core.local import Worker
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import NotNegative, Positive, setting
from ..core.tree import Tree
from ..parts.drawn import drawn_keys
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

    drawn: str = setting(
        "",
        "A folder of drawn images, a subfolder for each class, whose features are the first keys; "
        "without it they are the text rows.",
    )

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        if not self.drawn:
            return server
        keys, owners = drawn_keys(worker, self.drawn)
        return server.replace(head=Tree({"keys": keys}), owners=owners)

    def download(self, server: Payload, k: int) -> Payload:
        down = super().download(server, k)
        if "text" in down and "owners" in server:
            down = down.replace(owners=server.tensor("owners"))
        return down

    def first(self, worker: Worker, texts: Payload) -> nn.Module:
        text, owners = texts.tensor("text"), None
        keys = text
        if "owners" in texts:  # how many keys there are; they are filled in
            owners = texts.tensor("owners")
            keys = text[owners]
        scale = texts.number("scale")
        return CacheHead(keys, text, alpha=self.alpha, beta=self.beta, scale=scale, owners=owners)

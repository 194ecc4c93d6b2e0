"""Tip-Adapter: a client's few images are a cache beside the zero-shot classifier.

Zhang et al., "Tip-Adapter: training-free adaption of CLIP for few-shot classification", ECCV 2022.

Travels: the text rows down, once; nothing up. Kept by the client: the text rows; the cache is made
from its data.
Symbols: F_train -> keys, the client's unit features; L_train -> their classes; alpha, beta ->
`alpha`, `beta`.
Deviations: each client works for itself, as in FedPACT's paper. Keys are features of the images as
they are, not means over ten augmented ones. alpha and beta are not searched for on validation data.
"""

from __future__ import annotations

from ..core.local import Local, Predictor
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ..core.settings import NotNegative, Positive, setting
from ..parts.heads import CacheHead
from ..parts.pooling import unit_features
from ._textual import Textual, read


@method("tip-adapter")
class TipAdapter(Textual):
    """A cache of the client's own features."""

    traits = Textual.traits.but(neutral=({"alpha": 0.0}, "zeroshot"), trains=False)
    alpha: NotNegative = setting(
        1.17, "Weight of the cache's logits beside the text logits.", symbol="alpha"
    )
    beta: Positive = setting(
        1.0, "Sharpness of the cache: how fast a key's vote falls with its distance.", symbol="beta"
    )

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        return Update(Payload(), read(down, state))

    def cache(self, down: Payload, state: Payload, local: Local) -> CacheHead:
        """The cache of all the client's training samples."""
        keys, y = unit_features(local)
        kept = read(down, state)
        return CacheHead(
            keys,
            kept.tensor("text"),
            owners=y,
            alpha=self.alpha,
            beta=self.beta,
            scale=kept.number("scale"),
        )

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        return local.predictor(head=self.cache(down, state, local))

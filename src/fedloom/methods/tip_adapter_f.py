"""Tip-Adapter-F: Tip-Adapter whose keys each client fine-tunes for itself, once.

Zhang et al., "Tip-Adapter: training-free adaption of CLIP for few-shot classification", ECCV 2022.

Travels: the text rows down, once; nothing up. Kept by the client: the text rows and its keys.
Symbols: as Tip-Adapter.
Keys are trained in the first round in which a client takes part, with AdamW, step size 0.001 along
a cosine, 20 epochs and batches of 256. Later rounds change nothing.
Deviations: as Tip-Adapter. Keys are not scaled to length one again after training, as in the
released code. The last epoch counts; the released code takes the best one on the test set.
"""

from __future__ import annotations

import torch

from ..core.local import Local, Predictor
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ._textual import read
from .tip_adapter import TipAdapter


@method("tip-adapter-f")
class TipAdapterF(TipAdapter):
    """A cache whose keys are trained."""

    traits = TipAdapter.traits.but(
        trains=True,
        training={
            "optimizer": "adamw",
            "lr": 0.001,
            "eps": 1e-4,
            "weight_decay": 0.01,
            "cosine": True,
            "batch": 256,
            "epochs": 20,
        },
    )

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        if state:
            return Update(Payload(), state)
        cache = self.cache(down, state, local)
        local.fit(head=cache)
        return Update(Payload(), read(down, state).replace(keys=cache.keys.detach()))

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        cache = self.cache(down, state, local)
        if state:
            cache.keys = torch.nn.Parameter(state.tensor("keys"))
        return local.predictor(head=cache)

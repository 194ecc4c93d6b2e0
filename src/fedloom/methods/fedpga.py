"""FedPGA (a reconstruction): a common cache that starts at pooled prototypes and stays near.

Liu, Huang, "Federated prototype guided adaption for vision-language models", ICASSP 2025.

We had neither the paper's code nor its text. All we knew is that it is a federated cache, guided by
class prototypes and evaluated as one common model, so these figures say nothing certain about the
published method.

Travels: first class means and counts up; then the keys, one per class, down and up; the text rows
down, once.
Symbols (ours): F -> `keys` of the head, mu -> `mu`. The client's loss is CE + mu/2 |F - received
F|^2.
Prediction: as CacheFL.
Deviations: everything beyond what we knew. `mu=0` is CacheFL started from prototypes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import nn

from ..core.local import Local
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import NotNegative, setting
from ..core.tree import Tree
from ..parts.pooling import prototypes
from ._textual import Pooling
from .cachefl import CacheFL


@method("fedpga")
class FedPGA(Pooling, CacheFL):
    """A common cache guided by prototypes."""

    mu: NotNegative = setting(0.1, "Strength of the pull towards the received keys.", symbol="mu")

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        server = super().join(server, hellos)
        if server.tensor("told").any():  # newcomers get the cache as it has become
            return server
        return server.replace(head=Tree({"keys": F.normalize(prototypes(server), dim=1)}))

    def train_head(self, head: nn.Module, down: Payload, local: Local) -> None:
        local.fit(head=head, pull=(down.tree("head"), self.mu))

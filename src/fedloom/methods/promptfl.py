"""PromptFL: context vectors in front of the class names, trained by clients and averaged.

Guo, Guo, Wang, Tang, Xu, "PromptFL: let federated participants cooperatively learn prompts instead
of models", IEEE TMC 2023; the prompts are CoOp's.

Travels: the context down and up, and nothing else. Kept by the client: nothing; it has the text
encoder.
Symbols: v_1 .. v_M -> `context` of the head, M -> `tokens`.
The loss is the cross-entropy of s v . t_c; its gradient goes through the frozen text encoder. All
clients weigh the same. It needs `--encoder clip:PATH`.
Deviations: only the context is averaged (the released code averages references to one and the same
model). CoOp's cosine schedule runs within a round.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn

from ..core.errors import FedloomError
from ..core.local import Worker
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import Count, setting
from ..encoders import Context, Dual, dual
from ..parts.heads import PromptHead
from ._textual import AveragedHead


@method("promptfl")
class PromptFL(AveragedHead):
    """A common prompt."""

    traits = AveragedHead.traits.but(
        weighting="alike",
        training={"optimizer": "sgd", "lr": 0.001, "cosine": True, "epochs": 5},
    )
    tokens: Count = setting(
        16, "Number of context vectors in front of each class name.", symbol="M"
    )

    def first(self, worker: Worker, texts: Payload) -> nn.Module:
        reader = prompt_reader(worker)
        context = 0.02 * torch.randn(self.tokens, reader.width)
        return PromptHead(context, worker.data.classes, reader, texts.number("scale"))

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        return server.replace(text=torch.zeros(0))  # a client reads the class names itself


def prompt_reader(worker: Worker) -> Context:
    """How the federation's text encoder takes trained vectors."""
    pair = _pair(str(worker.data.encoder))
    if pair.context is None:
        raise FedloomError(
            f"{worker.method_name} trains through the text encoder, and {pair.name}'s takes no "
            "trained vectors: use clip:PATH."
        )
    return pair.context


@lru_cache(maxsize=1)
def _pair(name: str) -> Dual:
    """The dual encoder, loaded once in a process."""
    return dual(name)

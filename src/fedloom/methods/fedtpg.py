"""FedTPG: a network that writes a prompt from the names of the classes.

Qiu, Li, Mummadi, Ganesh, Li, Peng, Lin, "Federated text-driven prompt generation for
vision-language models", ICLR 2024.

Travels: the network down and up. Kept by the client: what the text encoder makes of the class names
alone.
Symbols: Q -> `context` of the head, T -> `names`, m -> `tokens`, f_theta -> the rest of the head.
Each of m queries attends to the rows of the class names, and a feed-forward layer follows: that is
the prompt in front of each name. The local objective is the cross-entropy. All clients weigh the
same. It needs `--encoder clip:PATH`.
Deviations: a client's classes are all of the federation's; in the paper each client has data sets
and names of its own, and the network meets new names afterwards. The step size is constant.
"""

from __future__ import annotations

import torch
from torch import nn

from ..core.errors import FedloomError
from ..core.local import Worker
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import Count, setting
from ..parts.heads import WrittenPromptHead
from ._textual import AveragedHead
from .promptfl import prompt_reader


@method("fedtpg")
class FedTPG(AveragedHead):
    """A common network that writes the prompt."""

    traits = AveragedHead.traits.but(
        weighting="alike",
        training={"optimizer": "sgd", "lr": 0.003, "momentum": 0.9, "weight_decay": 1e-5},
    )
    prompts: str | tuple[str, ...] = setting(
        "{}", "What the class names are read in before the network sees them."
    )
    tokens: Count = setting(4, "Number of context vectors in front of each class name.", symbol="m")
    attention_heads: Count = setting(4, "Number of heads of the attention to class names.")

    def first(self, worker: Worker, texts: Payload) -> nn.Module:
        reader, names = prompt_reader(worker), texts.tensor("text")
        if reader.width % self.attention_heads:
            raise FedloomError(
                f"fedtpg: attention_heads must divide the {reader.width} numbers of a vector."
            )
        context = 0.02 * torch.randn(self.tokens, reader.width)
        classes, scale = worker.data.classes, texts.number("scale")
        return WrittenPromptHead(context, names, classes, reader, scale, self.attention_heads)

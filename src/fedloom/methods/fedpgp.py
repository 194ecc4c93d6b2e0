"""FedPGP: a common prompt, and for each client something of low rank that is added to it.

Cui, Li, Wang, Shi, "Harmonizing generalization and personalization in federated prompt learning",
ICML 2024.

Travels: the common context down and up. Kept by the client: its two factors, and what the text
encoder makes of the class names alone.
Symbols: p_G -> `context`, U_i -> `u`, V_i -> `v`, bottleneck -> `rank`, mu -> `mu`, tau -> `tau`.
The client's prompt is p_G + U_i V_i. The local objective is CE + mu times the mean over classes of
-log of the share of exp(cos(t_0, t_G) / tau) beside exp(cos(t_G, t_i) / tau), where t_0 are the
rows of the class names without a trained prompt, t_G those with the common one, t_i the client's.
Prediction: the client's prompt; the common model has the common one.
Deviations: t_0 is read in the template of `prompts`, in the public code behind placeholders. It
needs `--encoder clip:PATH`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.local import Batch, Local, Predictor, Worker, cross_entropy
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.settings import Count, NotNegative, Positive, setting
from ..core.tree import Tree
from ..parts.heads import LowRankPromptHead
from ._textual import AveragedHead, read
from .promptfl import prompt_reader


@method("fedpgp")
class FedPGP(AveragedHead):
    """A common prompt and private factors."""

    traits = AveragedHead.traits.but(
        helps=("few", "labels"),
        personalised=True,
        training={"optimizer": "sgd", "lr": 0.001, "cosine": True, "epochs": 2},
    )
    tokens: Count = setting(
        16, "Number of context vectors in front of each class name.", symbol="M"
    )
    rank: Count = setting(4, "Rank of what a client adds to the common context.", symbol="b")
    mu: NotNegative = setting(1.0, "Weight of the contrast between prompts.", symbol="mu")
    tau: Positive = setting(0.5, "Temperature of the contrast between prompts.", symbol="tau")

    def first(self, worker: Worker, texts: Payload) -> nn.Module:
        reader, names = prompt_reader(worker), worker.data.classes
        shapes = ((self.tokens, reader.width), (self.tokens, self.rank), (self.rank, reader.width))
        context, u, v = (0.02 * torch.randn(shape) for shape in shapes)
        return LowRankPromptHead(context, u, v, names, reader, texts.number("scale"))

    def download(self, server: Payload, k: int) -> Payload:
        down = super().download(server, k)
        if not server.tensor("told")[k]:
            return down
        return down.replace(head=server.tree("head").only(["context"]))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load()
        kept = read(down, state)
        head: Any = self.build(self.own(down, state), kept, local.worker)
        plain = kept.tensor("text")

        def loss(batch: Batch) -> dict[str, Tensor]:
            common = head.rows(head.context)
            near = F.cosine_similarity(plain, common, dim=1)
            far = F.cosine_similarity(common, head.text(), dim=1)
            apart = F.softplus((far - near) / self.tau).mean()
            return cross_entropy(batch) | {"contrast": self.mu * apart}

        local.fit(loss, head=head)
        trained = Tree(head.named_parameters()).clone()
        upload = Payload(head=trained.only(["context"]))
        state = kept.replace(head=trained.only(["u", "v"]))
        return Update(upload, state, Payload(head=trained))

    def own(self, down: Payload, state: Payload) -> Tree:
        """The common context with the client's own factors."""
        return down.tree("head") | state.tree("head")

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        first = server.tree("head")
        common = server.replace(head=first.only(["context"]))
        after = super().aggregate(common, uploads)
        return after.replace(head=first | after.tree("head"))

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        return super().personal(down.replace(head=self.own(down, state)), state, local)

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        head = server.tree("head")
        alone = head | {"u": torch.zeros_like(head["u"])}
        return super().common(server.replace(head=alone), worker)

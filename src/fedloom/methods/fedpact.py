"""FedPACT: personal prototype caches at clients; the server trains a text head against them.

"Personalized federated adaptation via prototype-text contrastive alignment", under double-blind review, 2025.

Travels: first class means and counts up, their pooled means down; then in every round a cache up and the text head
down, N x C numbers each. Kept by the client: where its cache started and what was added. Weights never travel.
Symbols: alpha, beta -> `alpha`, `beta`, tau -> `tau`, lambda_H -> `lam`, V_k -> `cache`, V-bar -> `prototypes`,
H -> `head` (`text` + `residual`), H0 -> `text`, pi_k -> `sizes`, T of the server -> `server_epochs`.
Predictors: personal, cache and head (P); common, the head alone (G). `server_epochs=0` is the paper's w/o-H.
Deviations: tau, lambda_H, the logit scale and the weight decay are not given; these are DPE's, whose settings the paper
says it follows. As there, rows are a start plus a trained residual, scaled to length one on use. `preset=printed` has
the equations as printed: no such scaling, scale 1, no decay. A class that nobody has stands at its text row. The server
trains on the last cache of every client it has heard of. Ten rounds are ten; Algorithm 1 counts nine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..core.local import Local, Predictor, Worker
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.rng import torch_rng
from ..core.settings import Count, NotNegative, Positive, setting
from ..parts.alignment import alignment_gradient, gains
from ..parts.heads import CacheHead, TextHead, scaled
from ..parts.pooling import no_means, own_means, pool_means, prototypes
from ..parts.serverside import adamw
from ._textual import Textual


@method("fedpact")
class FedPACT(Textual):
    """Prototype-text contrastive alignment."""

    traits = Textual.traits.but(
        by_client=("sizes", "told", "caches"),
        neutral=({"alpha": 0.0, "server_epochs": 0}, "zeroshot"),
        training={
            "optimizer": "adamw",
            "lr": 2e-4,
            "eps": 1e-3,
            "weight_decay": 0.1,
            "batch": 16,
            "epochs": 20,
        },  # fmt: skip
        presets={
            "printed": {"unit": False, "scale": 1.0, "weight_decay": 0.0, "server_decay": 0.0}
        },
    )
    alpha: NotNegative = setting(6.0, "Weight of the cache.")
    beta: Positive = setting(3.0, "Its sharpness.")
    tau: Positive = setting(0.01, "Temperature of the server's loss.")
    lam: NotNegative = setting(1.0, "Pull of the head towards the text it started from.")
    server_epochs: Annotated[int, Field(ge=0)] = setting(100, "0: the head is never trained.")
    server_batch: Count = setting(16, "Prototypes in a step of the text head's training.")
    server_lr: Positive = setting(2e-4, "Step size of the text head's training.")
    server_decay: NotNegative = setting(0.1, "AdamW's, of the residual.")
    unit: bool = setting(True, "Rows of cache and head have length one.")
    orphans: Literal["text", "skip"] = setting(
        "text", "A class that nobody has: trained from its text row, or left out."
    )

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        text = server.tensor("text")
        caches = text.new_zeros(worker.clients, *text.shape)
        return Payload(server, **no_means(text), residual=torch.zeros_like(text), caches=caches)

    def hello(self, local: Local) -> Payload:
        return own_means(local)

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        return pool_means(super().join(server, hellos), hellos)

    def download(self, server: Payload, k: int) -> Payload:
        down = Payload(head=self.head(server), scale=server.number("scale"))
        return down if server.tensor("told")[k] else down.replace(prototypes=prototypes(server))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load()
        cache = self.cache(down, state)
        local.fit(head=cache)
        kept = Payload(start=cache.start, residual=cache.keys.detach())
        return Update(Payload(cache=cache.rows.detach()), kept, down)

    def cache(self, down: Payload, state: Payload) -> CacheHead:
        """S(f; V_k, H) of Eq. 2."""
        start = state.tensor("start") if state else down.tensor("prototypes")
        keys = state.tensor("residual") if state else torch.zeros_like(start)
        return CacheHead(
            keys, down.tensor("head"), start=start, alpha=self.alpha, beta=self.beta, scale=down.number("scale"),
            unit=self.unit,
        )  # fmt: skip

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        caches, told, heard = server.tensor("caches").clone(), server.tensor("told").clone(), False
        for k, up in uploads:
            caches[k], told[k], heard = up.tensor("cache"), True, True
        server = server.replace(caches=caches, told=told)
        return self.align(server) if heard and self.server_epochs else server

    def align(self, server: Payload) -> Payload:
        """The head trained on all caches at hand (Eq. 8), every prototype weighing as its client's data does."""
        text, told = server.tensor("text"), server.tensor("told")
        kinds = (
            server.tensor("counts").nonzero()[:, 0]
            if self.orphans == "skip"
            else torch.arange(len(text))
        )
        points, y = (
            server.tensor("caches")[told][:, kinds].flatten(0, 1),
            kinds.repeat(int(told.sum())),
        )
        share = server.tensor("sizes")[told].double()
        share = (share / share.mean()).float()  # K pi_k: a batch's mean estimates Eq. 6
        weights = share.repeat_interleave(len(kinds))[:, None]

        def gradient(residual: Tensor, points: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
            mean = weights / len(weights)
            return alignment_gradient(
                residual, text, points, targets, mean, self.tau, self.lam, self.unit
            )

        residual = adamw(
            server.tensor("residual"), gradient, (points, F.one_hot(y, len(text)).to(text.dtype), weights),
            epochs=self.server_epochs, batch=self.server_batch, lr=self.server_lr, decay=self.server_decay, eps=1e-3,
            rng=torch_rng(int(server.number("seed")), int(server.number("round")), "head"),
        )  # fmt: skip
        return server.replace(residual=residual)

    def head(self, server: Payload) -> Tensor:
        """H as it is now."""
        return scaled(server.tensor("text") + server.tensor("residual"), self.unit)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load()
        return local.predictor(head=self.cache(down, state))

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        worker.load()
        return worker.predictor(head=TextHead(self.head(server), server.number("scale")))

    def figures(self, server: Payload, worker: Worker) -> Mapping[str, float]:
        """How far caches are from the global prototypes, and what the trained head does for margins (Figure 2)."""
        told = server.tensor("told")
        if not told.any():
            return {}
        worker.load()
        caches, share = server.tensor("caches")[told], server.tensor("sizes")[told]
        text = scaled(server.tensor("text"), self.unit)
        return gains(caches, share, prototypes(server), self.head(server), text, *worker.tests())

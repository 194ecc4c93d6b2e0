"""FedPACT: personal prototype caches at clients; the server trains a text head against them.

"Personalized federated adaptation via prototype-text contrastive alignment", under double-blind
review, 2025.

Travels: first class means and counts up, their pooled means down; then in every round a cache up
and the text head down, N x C numbers each. Weights never travel. Kept by the client: where its
cache started, and what was added since.
Symbols: alpha, beta -> `alpha`, `beta`, tau -> `tau`, lambda_H -> `lam`, V_k -> `cache`, V-bar ->
`prototypes`, H -> `head` (`text` + `residual`), H0 -> `text`, pi_k -> `sizes`, T of the server ->
`server_epochs`.
Prediction: personal, cache and head (P); common, the head alone (G). `server_epochs=0` is the
paper's w/o-H.
Deviations: the paper gives no tau, lambda_H, logit scale or weight decay; ours are those of DPE,
whose settings it says it follows. As in DPE, rows are a start plus a trained residual, scaled to
length one when they are used. `preset=printed` takes the equations as printed: no such scaling,
scale 1, no decay; `preset=official` is the public code of a successor (see the page). A class that
nobody has stands at its text row. The server trains on the last cache of every client that has
answered. Ten rounds are ten; Algorithm 1 counts nine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..core.claims import VECTORS, Claims
from ..core.local import Local, Predictor, Worker
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.rng import torch_rng
from ..core.settings import Count, NotNegative, Positive, setting
from ..parts.alignment import Contrast, Rows, gains, samples, server_gradient
from ..parts.heads import CacheHead, TextHead, scaled
from ..parts.pooling import prototypes
from ..parts.serverside import adamw
from ._textual import Pooling


@method("fedpact")
class FedPACT(Pooling):
    """Prototype-text contrastive alignment."""

    traits = Pooling.traits.but(
        helps=("few", "labels", "domains"),
        by_client=("sizes", "told", "caches"),
        neutral=({"alpha": 0.0, "server_epochs": 0}, "zeroshot"),
        training={
            "optimizer": "adamw",
            "lr": 2e-4,
            "eps": 1e-3,
            "weight_decay": 0.1,
            "batch": 16,
            "epochs": 20,
        },
        presets={
            "printed": {"unit": False, "scale": 1.0, "weight_decay": 0.0, "server_decay": 0.0},
            "official": {
                "unit": False,
                "rows": "free",
                "contrast": "batch",
                "lam": 0.2,
                "scale": 100.0,
                "server_batch": 8,
                "server_lr": 6e-4,
                "server_decay": 0.01,
                "server_eps": 1e-4,
                "server_cosine": True,
                "lr": 6e-4,
                "eps": 1e-4,
                "weight_decay": 0.01,
                "batch": 8,
                "cosine": True,
            },
        },
    )
    claims = Claims({"cache": VECTORS})
    alpha: NotNegative = setting(
        6.0, "Weight of the cache's logits beside the text head's.", symbol="alpha"
    )
    beta: Positive = setting(
        3.0, "Sharpness of the cache: how fast a key's vote falls with its distance.", symbol="beta"
    )
    tau: Positive = setting(
        0.01, "Temperature of the loss that the server minimises.", symbol="tau"
    )
    lam: NotNegative = setting(
        1.0,
        "Strength of the pull of the text head towards the text it started from.",
        symbol="lambda_H",
    )
    server_epochs: Annotated[int, Field(ge=0)] = setting(
        100,
        "Number of epochs in which the server trains the text head each round; 0: never.",
        symbol="T",
    )
    server_batch: Count = setting(16, "Number of prototypes in a step of the server's training.")
    server_lr: Positive = setting(2e-4, "Step size of the server's training of the text head.")
    server_decay: NotNegative = setting(
        0.1, "Weight decay of the text head's residual in the server's training."
    )
    server_eps: Positive = setting(
        1e-3, "What AdamW adds to the root that it divides by, in the server's training."
    )
    server_cosine: bool = setting(
        False, "Whether the server's step size falls to 0 along a cosine within each round."
    )
    rows: Rows = setting(
        "residual",
        "What is trained and decays: what is added to the first rows of cache and head, or the "
        "rows themselves (the head's are then scaled to length one after training).",
    )
    contrast: Contrast = setting(
        "classes",
        "What the server contrasts a prototype with: the rows of all classes, or those of its "
        "batch, where all clients count alike.",
    )
    unit: bool = setting(True, "Scale the rows of cache and text head to length one.")
    orphans: Literal["text", "skip"] = setting(
        "text", "A class that no client has is trained from its text row, or left out."
    )

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        text = server.tensor("text")
        caches = text.new_zeros(worker.clients, *text.shape)
        return server.replace(residual=torch.zeros_like(text), caches=caches)

    def download(self, server: Payload, k: int) -> Payload:
        down = Payload(head=self.head(server), scale=server.number("scale"))
        if server.tensor("told")[k]:
            return down
        return down.replace(prototypes=prototypes(server))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load()
        cache = self.cache(down, state)
        local.fit(head=cache)
        kept = Payload(start=cache.start, residual=cache.keys.detach())
        return Update(Payload(cache=cache.rows.detach()), kept, down)

    def cache(self, down: Payload, state: Payload) -> CacheHead:
        """S(f; V_k, H) of Eq. 2."""
        start, keys = self.begun(down, state)
        head, scale = down.tensor("head"), down.number("scale")
        return CacheHead(
            keys, head, start=start, alpha=self.alpha, beta=self.beta, scale=scale, unit=self.unit
        )

    def begun(self, down: Payload, state: Payload) -> tuple[Tensor, Tensor]:
        """Where the cache started, and what was added since."""
        if state:
            return state.tensor("start"), state.tensor("residual")
        first = down.tensor("prototypes")
        if self.rows == "free":
            return torch.zeros_like(first), first
        return first, torch.zeros_like(first)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        caches, told = server.tensor("caches").clone(), server.tensor("told").clone()
        heard = False
        for k, up in uploads:
            caches[k] = up.tensor("cache")
            told[k] = heard = True
        server = server.replace(caches=caches, told=told)
        if not heard or not self.server_epochs:
            return server
        return self.align(server)

    def align(self, server: Payload) -> Payload:
        """The head after training on all caches (Eq. 8), weighted by their clients' sizes."""
        text, told = server.tensor("text"), server.tensor("told")
        classes = torch.arange(len(text))
        if self.orphans == "skip":
            classes = server.tensor("counts").nonzero()[:, 0]
        data = samples(server.tensor("caches")[told], server.tensor("sizes")[told], classes)
        first = server.tensor("residual")
        if self.rows == "free":
            first = text + first
        trained = adamw(
            first,
            server_gradient(text, self.tau, self.lam, self.unit, self.contrast, self.rows),
            data,
            epochs=self.server_epochs,
            batch=self.server_batch,
            lr=self.server_lr,
            decay=self.server_decay,
            eps=self.server_eps,
            rng=torch_rng(int(server.number("seed")), int(server.number("round")), "head"),
            cosine=self.server_cosine,
        )
        if self.rows == "free":
            trained = scaled(trained, True) - text
        return server.replace(residual=trained)

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
        """How near caches are to the global prototypes; how the head changes margins (Figure 2)."""
        told = server.tensor("told")
        if not told.any():
            return {}
        worker.load()
        caches, share = server.tensor("caches")[told], server.tensor("sizes")[told]
        text = scaled(server.tensor("text"), self.unit)
        return gains(caches, share, prototypes(server), self.head(server), text, *worker.tests())

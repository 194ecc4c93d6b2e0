"""pFedHN: the server has a network that writes every client's model, and learns from what becomes
of them.

Shamsian, Navon, Fetaya, Chechik, "Personalized federated learning using hypernetworks", ICML 2021.

Travels: down the client's own model, up what it is after training. Kept by the client: nothing.
Symbols: v_i -> a row of `writer/vectors`, phi -> the rest of `writer`, theta_i = h(v_i; phi) ->
`model` in a download, Delta theta_i -> the sent model less the trained one, alpha -> `server_lr`,
the embedding's size -> `vector`.
The server moves phi and v_i along the gradient of <h(v_i; phi), Delta theta_i>, by SGD with
momentum and weight decay, and cuts the gradient to length `server_clip`, as in the authors' code.
Prediction: what the server would write for the client now.
Deviations: in the paper one client answers at a time; here the server takes a step for each client
of a round, one after the other. Buffers (BatchNorm) are not written but averaged. The code takes 50
steps of SGD 0.005 with momentum 0.9 and batches of 64 at a client: the preset `official`. Without
spectral norm and without the variant with private heads (pFedHN-PC).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..core.local import Predictor, Worker
from ..core.lookup import method
from ..core.method import Uploads
from ..core.payload import Payload
from ..core.rng import torch_rng
from ..core.settings import Count, NotNegative, Positive, Share, setting
from ..core.tree import Mean
from ..parts.hypernetwork import blame, first_writer, writable, written
from .fedavg import FedAvg


@method("pfedhn")
class PFedHN(FedAvg):
    """A hypernetwork on the server writes the clients' models."""

    traits = FedAvg.traits.but(
        helps=("labels",),
        personalised=True,
        averages=False,
        alone=None,
        by_client=("sizes", "writer/vectors", "speed/vectors"),
        presets={
            "official": {
                "steps": 50,
                "lr": 0.005,
                "momentum": 0.9,
                "weight_decay": 5e-5,
                "batch": 64,
                "clip": 50.0,
            },
        },
    )
    vector: Annotated[int, Field(ge=0)] = setting(
        0, "Size of a client's vector; 0: a quarter of the number of clients, and one."
    )
    writer_hidden: Count = setting(100, "Width of the writing network's hidden layers.")
    writer_depth: Count = setting(3, "Number of hidden layers behind the first one.")
    server_lr: Positive = setting(0.01, "Step size of the writing network.", symbol="alpha")
    server_momentum: Share = setting(0.9, "Momentum of the writing network's steps.")
    server_decay: NotNegative = setting(1e-3, "Weight decay of the writing network.")
    server_clip: Positive = setting(50.0, "Largest length of the writing network's gradient.")

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        shared = server.tree("model")
        weights = shared.only(name for name in worker.parameters() if name in shared)
        rng = torch_rng(worker.seed, "writer")
        width = self.vector or 1 + worker.clients // 4
        writer = first_writer(
            weights, worker.clients, width, self.writer_hidden, self.writer_depth, rng
        )
        return server.replace(writer=writer, speed=writer.zeros_like())

    def download(self, server: Payload, k: int) -> Payload:
        writer, model = server.tree("writer"), server.tree("model")
        return Payload(model=model | written(writer, writable(writer, model), k))

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        first, model, speed = server.tree("writer"), server.tree("model"), server.tree("speed")
        like, writer, buffers = writable(first, model), first, Mean()
        for k, up in uploads:
            trained = up.tree("model")
            buffers.add(trained.without(like), self.weight(server, k))
            slope = blame(writer, like, k, written(first, like, k) - trained.only(like))
            shorter = min(1.0, self.server_clip / max(float(slope.norm()), 1e-12))
            speed = self.server_momentum * speed + shorter * slope + self.server_decay * writer
            writer = writer - self.server_lr * speed
        model = model | buffers.value(default=model.without(like))
        return server.replace(model=model, writer=writer, speed=speed)

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        return None

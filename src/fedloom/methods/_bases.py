"""What families of methods share; `_textual.py` has what those on vision-language models share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..core.claims import COUNTS, LOSS, VECTORS, Claims
from ..core.errors import FedloomError
from ..core.local import Local
from ..core.lookup import base
from ..core.method import Method, Plugin, Update, Uploads
from ..core.payload import Payload
from ..core.settings import Positive, Share, setting
from ..parts.privacy import gaussian_mechanism, noised
from ..parts.prototypes import class_means
from .fedavg import FedAvg


def refuse_fixed_body(name: str, model: Any) -> None:
    """Refuse a network whose body has nothing to train, for a loss that reaches only the body."""
    if not any(weight.requires_grad for weight in model.body.parameters()):
        raise FedloomError(
            f"{name} trains the body of the network, and this one has no weights in it: "
            "take --model projection."
        )


class Silent(Method):
    """A method whose clients send nothing when they first appear."""

    def hello(self, local: Local) -> Payload:
        return Payload()

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        return server


class Reporting(FedAvg):
    """FedAvg whose clients also upload `loss`, the mean loss of the model they received.

    It is taken over all training samples before training. The loss seen while training is of other
    weights and, with BatchNorm, in another mode.
    """

    claims = Claims({"loss": LOSS})

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"), state.tree("model"))
        loss = local.evaluate()["ce"]
        update = super().client(down, state, local)
        return replace(update, upload=update.upload.replace(loss=loss))


class Prototypical(FedAvg):
    """FedAvg whose clients also upload `means`, the mean feature of each class, and `counts`.

    Means are of the model just trained, in evaluation mode, over all training samples.
    """

    claims = Claims({"means": VECTORS, "counts": COUNTS})

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        outputs, y = local.outputs()
        means, counts = class_means(outputs.features, y, local.classes)
        upload = update.upload.replace(means=means, counts=counts)
        trained = down.replace(model=update.trained.tree("model"))
        return replace(update, upload=upload, trained=trained)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        means: list[Tensor] = []
        labels: list[Tensor] = []

        def noting() -> Uploads:
            for k, up in uploads:
                labels.append(up.tensor("counts").nonzero()[:, 0])
                means.append(up.tensor("means")[labels[-1]])
                yield k, up

        server = super().aggregate(server, noting())
        if not means:
            return server
        return self.learn(server, torch.cat(means), torch.cat(labels))

    def learn(self, server: Payload, means: Tensor, y: Tensor) -> Payload:
        """What the server learns from this round's class means, a row per client and class."""
        raise NotImplementedError


@base
class Perturbed:
    """Settings and work of a method whose clients send prototypes, perturbed or not.

    Nothing else that they send depends on their inputs, so `promise` covers all of it; what it
    covers and what not is in `parts/privacy.py`.
    """

    perturb: Literal["none", "gaussian", "laplace", "exponential", "dp"] = setting(
        "none",
        "What happens to prototypes before they are sent: nothing, noise, or a Gaussian mechanism "
        "(dp).",
    )
    shrink: Share = setting(
        0.1, "With noise, the share of a prototype that is lost: (1 - shrink) C + noise."
    )
    spread: Positive = setting(
        0.05,
        "Size of the noise: its deviation (gaussian, dp), scale (laplace) or mean (exponential).",
    )
    bound: Positive = setting(1.0, "With dp, the length to which longer prototypes are cut.")
    failure: Annotated[float, Field(gt=0, lt=1)] = setting(
        1e-5, "With dp, the delta for which epsilon is computed.", symbol="delta"
    )

    def perturbed(self, prototypes: Tensor, local: Local) -> Tensor:
        """Prototypes, a row each, as they are sent."""
        if self.perturb == "none":
            return prototypes
        rng = local.rng("perturb")
        if self.perturb == "dp":
            return gaussian_mechanism(prototypes, self.bound, self.spread, rng)
        return noised(prototypes, self.perturb, self.shrink, self.spread, rng)

    def promise(self) -> tuple[float, float] | None:
        """The noise multiplier and delta of the mechanism, with `perturb=dp`."""
        if self.perturb != "dp":
            return None
        return self.spread / (2 * self.bound), self.failure


class Reweighting(Plugin):
    """A plug-in that sets the weights of a round's clients once it has seen all their uploads.

    `reweigh` notes them on the server, in the vector `shares` (an entry per client), beside
    whatever else it learns. All uploads of a round are in memory at once, as weights may depend on
    all of them.
    """

    @classmethod
    def refuses(cls, base: type[Method]) -> str | None:
        if issubclass(base, Reweighting):
            return f"{base.name} sets the weights of clients already."
        if not base.traits.averages:
            return f"{base.name} does not average models with weights that could be replaced."
        return None

    def reweigh(self, server: Payload, uploads: Mapping[int, Payload]) -> Payload:
        """The server with this round's `shares`."""
        raise NotImplementedError

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        arrived = dict(uploads)
        return super().aggregate(self.reweigh(server, arrived), iter(arrived.items()))

    def weight(self, server: Payload, k: int) -> float:
        return float(server.tensor("shares")[k])

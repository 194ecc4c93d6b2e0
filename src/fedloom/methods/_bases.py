"""What families of methods share; `_textual.py` has what those on vision-language models share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from ..core.claims import (
    CHANGES,
    COMMON,
    COUNTS,
    LOSS,
    MEAN,
    PACKED,
    STEPS,
    VARIANCE,
    VECTORS,
    WEIGHTS,
    Claims,
    claims_of,
)
from ..core.errors import FedloomError
from ..core.local import Fit, Local
from ..core.lookup import base
from ..core.method import Around, Method, Plugin, Promise, Purpose, Update, Uploads
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
            "take --model projection, or the option projection of a model that has it."
        )


class Silent(Method):
    """A method whose clients send nothing when they first appear."""

    def hello(self, local: Local) -> Payload:
        return Payload()

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        return server


@base
class Counting:
    """A setting for how much a client counts in the mean; papers and their code often differ."""

    average: Literal["size", "alike"] = setting(
        "size", "How much clients count in the mean: by their samples, or all alike."
    )

    def weight(self, server: Payload, k: int) -> float:
        """How much client k's upload counts."""
        if self.average == "alike":
            return 1.0
        return float(server.tensor("sizes")[k])


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
        means, counts = self.means(local)
        upload = update.upload.replace(means=means, counts=counts)
        trained = down.replace(model=update.trained.tree("model"))
        return replace(update, upload=upload, trained=trained)

    def means(self, local: Local) -> tuple[Tensor, Tensor]:
        """The mean feature of each class, and its count."""
        outputs, y = local.outputs()
        return class_means(outputs.features, y, local.classes)

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

    def promise(self) -> Promise | None:
        """The noise multiplier and delta of the mechanism, with `perturb=dp`."""
        if self.perturb != "dp":
            return None
        return Promise(self.spread / (2 * self.bound), self.failure)


class Averaging(Plugin):
    """A plug-in at the server of a method that averages what clients upload.

    It needs no hook but `aggregate`. What it yields to `super().aggregate` in place of the uploads
    comes before the mean; what it makes of the outcome comes after it. And as the mean of equal
    trees is exactly that tree, a plug-in that yields the same weights for every client has put
    something else in the mean's place. Of several plug-ins the last one named sees uploads first.
    """

    around: ClassVar[Around] = "averaging"
    # Whether what `+dp` promises still holds with this plug-in: each upload stays a matter of one
    # client until there is noise in the sum.
    private: ClassVar[bool] = False

    @classmethod
    def refuses(cls, base: type[Method]) -> str | None:
        kind: type = base
        if PACKED in claims_of(kind).values():
            return f"what clients of {base.name} upload is packed; name that plug-in last."
        if hasattr(base, "promise") and not cls.private:
            return f"what {base.name} promises would not hold."
        if not base.traits.averages:
            return f"{base.name} does not average models with weights that could be replaced."
        return None


COVERED = (CHANGES, MEAN, STEPS, VARIANCE, WEIGHTS)


def uncovered(base: type[Method]) -> str | None:
    """Why noise in models would not cover what clients of a method upload; nothing if it would."""
    kind: type = base
    for name, claim in claims_of(kind).items():
        if name not in COMMON and claim not in COVERED:
            return f"clients of {base.name} also upload {claim.meaning} ({name}) without noise."
    return None


class OnModels(Averaging):
    """A plug-in at the server of a method whose clients upload models, and no changes of weights.

    It scales or rewrites models, and what else depends on an update would not follow.
    """

    around: ClassVar[Around] = "models"

    @classmethod
    def refuses(cls, base: type[Method]) -> str | None:
        kind: type = base
        for name, claim in claims_of(kind).items():
            if claim == CHANGES:
                return f"clients of {base.name} upload {claim.meaning} ({name}) and no models."
        return super().refuses(base)


class Reweighting(Averaging):
    """A plug-in that sets the weights of a round's clients once it has seen all their uploads.

    `reweigh` notes them on the server, in the vector `shares` (an entry per client), beside
    whatever else it learns. All uploads of a round are in memory at once, as weights may depend on
    all of them.
    """

    purpose: ClassVar[Purpose] = "weights"

    @classmethod
    def refuses(cls, base: type[Method]) -> str | None:
        if issubclass(base, Reweighting):
            return f"{base.name} sets the weights of clients already."
        return super().refuses(base)

    def reweigh(self, server: Payload, uploads: Mapping[int, Payload]) -> Payload:
        """The server with this round's `shares`."""
        raise NotImplementedError

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        arrived = dict(uploads)
        return super().aggregate(self.reweigh(server, arrived), iter(arrived.items()))

    def weight(self, server: Payload, k: int) -> float:
        return float(server.tensor("shares")[k])

    def usual(self, server: Payload, clients: Iterable[int]) -> Tensor:
        """How much these clients would count without the plug-in."""
        return torch.tensor([super(Reweighting, self).weight(server, k) for k in clients])


def with_shares(server: Payload, clients: Iterable[int], shares: Tensor) -> Payload:
    """The server on which these clients have these weights, and all others none."""
    every = torch.zeros(len(server.tensor("sizes")), dtype=torch.float64)
    every[list(clients)] = shares.double()
    return server.replace(shares=every)


def noting(uploads: Uploads, heard: list[int]) -> Uploads:
    """The uploads as they are; whose they were is in `heard` once they have been looked at."""
    for k, up in uploads:
        heard.append(k)
        yield k, up


class _Fitting:
    """`local` with another `fit`; the original does everything else."""

    def __init__(self, local: Local, fit: Callable[..., Fit]) -> None:
        self._local = local
        self.fit = fit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)


def fitting(local: Local, fit: Callable[..., Fit]) -> Local:
    """`local` whose `fit` is this one, which may call the original's."""
    return cast(Local, _Fitting(local, fit))

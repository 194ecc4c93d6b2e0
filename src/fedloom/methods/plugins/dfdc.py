"""F2DC's modules: a decoupler splits the features, a corrector mends what depends on the domain.

Wang et al., "Domain-skewed federated learning with feature decoupling and calibration", sections
4.1 and 4.2.

Travels: as the method it is put round, and with `modules=shared` the modules with the model. With
`modules=own` they stay with the client, as the paper says; then there is no common model unless
`use=plain` leaves them out of it. With `modules=mean` each client trains its own, and the common
model has their mean, so they travel too.
Symbols: sigma -> `sigma`, tau -> `cos_tau`, lambda_1, lambda_2 -> `lam1`, `lam2`, A_D, A_C, m ->
`decoupler`, `corrector`, `head` of `parts/decoupling.py`, f+, f-, f*, f~ -> "robust", "related",
"corrected", "whole", y^ -> the most confident wrong label by the model's head, L -> `points`.
Added to the loss, as a mean over points: lam1 (cos(l+, l-) / tau + CE(m(l+), y) + CE(m(l-), y^)) +
lam2 CE(m(l*), y).
Deviations: the mask is not random in evaluation; `random_mask` makes it so, as in the authors'
code. Noise is Gumbel's, as there; the paper prints `mask_noise=logistic`. Modules have two layers
of 64, as the paper says; the code has `module_depth=3, bottleneck=50`. For models without feature
maps the layers are linear, and the features take the map's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from ...core.errors import FedloomError
from ...core.local import Batch, Local, Predictor, Worker
from ...core.lookup import plugin
from ...core.method import Plugin, Purpose, Traits, Update
from ...core.payload import Payload
from ...core.roles import Roles
from ...core.settings import Count, Names, NotNegative, Positive, setting
from ...parts.decoupling import (
    Noise,
    Use,
    corrections,
    mean_losses,
    module_names,
    most_confident_wrong,
    with_corrections,
)


@plugin("dfdc")
class DFDC(Plugin):
    """The modules, and their losses in every local training."""

    purpose: ClassVar[Purpose] = "training"
    # The losses shape the features of a single client too.
    traits = Traits(needs=("body",), alone=None)
    sigma: Positive = setting(
        0.1, "Temperature of the mask: the larger, the smoother it is.", symbol="sigma"
    )
    cos_tau: Positive = setting(
        0.06,
        "Temperature of the separation: the smaller, the further the two parts are pushed apart.",
        symbol="tau",
    )
    lam1: NotNegative = setting(
        0.8, "Weight of the decoupler's loss beside the method's own.", symbol="lambda_1"
    )
    lam2: NotNegative = setting(
        1.0, "Weight of the corrector's loss beside the method's own.", symbol="lambda_2"
    )
    points: Names = setting(
        (),
        "Modules of the body behind which the two modules stand; by default behind its last "
        "feature map.",
        symbol="L",
    )
    module_depth: Literal[2, 3] = setting(2, "Number of layers of decoupler and corrector.")
    bottleneck: Count = setting(
        64, "Number of channels between the layers of decoupler and corrector."
    )
    mask_noise: Noise = setting("gumbel", "Kind of noise in the mask while training.")
    random_mask: bool = setting(False, "Whether the mask is random in evaluation too.")
    modules: Literal["shared", "mean", "own"] = setting(
        "shared",
        "Whether the modules are shared, each client's own, or its own with a mean in the "
        "common model.",
    )
    use: Use = setting("whole", "Which part of the feature is used in evaluation.")

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        return with_corrections(
            super().extend(model, classes),
            self.points,
            len(classes),
            hidden=self.bottleneck,
            depth=self.module_depth,
            sigma=self.sigma,
            noise=self.mask_noise,
            random=self.random_mask,
            use=self.use,
        )

    def roles(self, model: nn.Module) -> Roles:
        roles = super().roles(model)
        if self.modules != "own":
            return roles
        return roles.also(model, private=corrections(model))

    def watched(self, model: Any) -> Sequence[nn.Module]:
        watched = list(super().watched(model))
        for point in corrections(model):
            watched += [point, point.corrector]
        return watched

    def terms(self, batch: Batch, model: Any) -> dict[str, Tensor]:
        if batch.y.ndim > 1:
            raise FedloomError("dfdc classifies whole images; these have maps as targets.")
        points = corrections(model)
        first = len(batch.seen) - 2 * len(points)  # what came before belongs to others
        wrong = most_confident_wrong(batch.logits, batch.y)
        decouple, correct = mean_losses(points, batch.seen[first:], batch.y, wrong, self.cos_tau)
        others = super().terms(replace(batch, seen=batch.seen[:first]), model)
        return others | {"decouple": self.lam1 * decouple, "correct": self.lam2 * correct}

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        ours = module_names(local.model)
        w = down.tree("model")
        if self.modules == "mean":
            update = super().client(down.replace(model=w | state.tree("modules")), state, local)
            trained = local.tree("shared").only(ours & w.keys())
            return replace(update, state=update.state.replace(modules=trained))
        update = super().client(down, state, local)
        if self.modules == "own" and not ours <= set(update.state.tree("model")):
            raise FedloomError(
                f"{self.name}: its clients keep no private tensors; modules can be shared or mean."
            )
        return update

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        whole = super().common(server, worker)
        if whole is not None or self.use != "plain":
            return whole
        if not set(worker.roles.names("private")) <= module_names(worker.model):
            return None
        worker.load(server.tree("model"))  # nothing that stays with clients is used
        return worker.predictor()

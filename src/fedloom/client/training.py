"""How a client trains: optimiser, step size, amount of work. The same keys for every method."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from torch import Tensor

from ..core.errors import FedloomError, explain, unknown
from ..core.settings import Count, Listed, NotNegative, Positive, Share, setting
from .optim import SGD, Adam, Optimizer

Changes = Annotated[tuple[Literal["crop", "flip", "rotate"], ...], Listed]

# With these every step is exactly `w - lr * gradient`, whatever the run's optimiser; for steps that a paper fixes.
PLAIN: dict[str, Any] = {
    "optimizer": "sgd",
    "lr_decay": 1.0,
    "cosine": False,
    "momentum": 0.0,
    "dampening": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "clip": None,
}


class Training(BaseModel):
    """Settings of local training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimizer: Literal["sgd", "adam", "adamw"] = setting("sgd", "Made anew in every round.")
    lr: Positive = setting(0.05, "The step size.")
    lr_decay: Positive = setting(1.0, "In round r the step size is lr * lr_decay ** (r - 1).")
    cosine: bool = setting(False, "Within a round the step size falls to 0 along a cosine.")
    batch: Count = setting(32, "Samples in a step.")
    epochs: Count = setting(1, "Passes over a client's data in a round.")
    steps: Count | None = setting(None, "If given, this many steps instead of epochs.")
    drop_last: bool = setting(
        False, "Leave out an incomplete last batch (unless it is the only one)."
    )
    momentum: Share = setting(0.0, "Of SGD.")
    dampening: NotNegative = setting(0.0, "Of SGD's momentum.")
    nesterov: bool = setting(False, "SGD: Nesterov's kind of momentum.")
    beta1: Share = setting(0.9, "Adam, AdamW: decay of the mean gradient.")
    beta2: Share = setting(0.999, "Adam, AdamW: decay of the mean squared gradient.")
    eps: Positive = setting(1e-8, "Adam, AdamW: added to the root.")
    amsgrad: bool = setting(False, "Adam, AdamW: the variant of that name.")
    weight_decay: NotNegative = setting(0.0, "L2 penalty (SGD, Adam) or decoupled decay (AdamW).")
    clip: Positive | None = setting(None, "Largest norm of the whole gradient.")
    precision: Literal["fp32", "bf16"] = setting(
        "fp32", "Of what networks compute; weights, losses and sums are fp32."
    )
    augment: Changes = setting((), "Of training images, anew in every step.")

    @model_validator(mode="after")
    def _possible(self) -> Training:
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError("nesterov needs momentum above 0 and no dampening")
        return self

    def changed(self, **changes: Any) -> Training:
        """The same settings but for these, checked like the others."""
        for name in changes:
            if name not in Training.model_fields:
                raise unknown("setting of local training", name, Training.model_fields)
        try:
            return Training.model_validate({**self.model_dump(), **changes})
        except ValidationError as error:
            raise FedloomError(f"local training: {explain(error)}") from None

    def step_size(self, round: int) -> float:
        """The step size in a round (counted from 1)."""
        return self.lr * self.lr_decay ** (round - 1)

    def make(self, params: Iterable[Tensor], round: int) -> Optimizer:
        """A fresh optimiser for these parameters."""
        lr, decay = self.step_size(round), self.weight_decay
        if self.optimizer == "sgd":
            return SGD(
                params,
                lr,
                momentum=self.momentum,
                dampening=self.dampening,
                weight_decay=decay,
                nesterov=self.nesterov,
            )
        return Adam(
            params, lr, self.amsgrad, beta1=self.beta1, beta2=self.beta2, eps=self.eps, weight_decay=decay,
            decoupled_weight_decay=self.optimizer == "adamw",
        )  # fmt: skip

    @property
    def plain_sgd(self) -> bool:
        """Whether each step is exactly `w - lr * gradient`."""
        return self.optimizer == "sgd" and not (self.momentum or self.weight_decay or self.clip)

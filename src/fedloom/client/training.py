"""How a client trains: optimiser, step size, amount of work. All methods have these settings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from torch import Tensor

from ..core.errors import FedloomError, explain, unknown
from ..core.settings import Count, Listed, NotNegative, Positive, Share, part_of, setting
from .optim import SGD, Adam, Optimizer

# Settings that scores may depend on too; all others are for those who train.
NOT_ONLY_OF_STEPS = {"eval_stats", "precision", "channels_last", "compiled", "augment"}
Changes = Annotated[tuple[Literal["crop", "flip", "rotate"], ...], Listed]

# With these settings every step is exactly `w - lr * gradient`, whatever the run's optimiser: for
# steps that a paper fixes.
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

    optimizer: Literal["sgd", "adam", "adamw"] = setting(
        "sgd",
        "The optimiser of local training; it starts anew in every round, unless it is kept.",
    )
    keep_optimizer: bool = setting(
        False,
        "Whether a client's optimiser goes on in its next round with what it remembers (momentum, "
        "Adam's means) instead of starting anew.",
    )
    lr: Positive = setting(0.05, "The step size of local training in the first round.", symbol="η")
    lr_decay: Positive = setting(
        1.0, "The factor between rounds: in round r the step size is lr * lr_decay ** (r - 1)."
    )
    cosine: bool = setting(
        False, "Whether the step size falls to 0 along a cosine within each round."
    )
    batch: Count = setting(32, "The number of samples in a step.", symbol="B")
    epochs: Count = setting(
        1, "The number of passes over a client's training samples in a round.", symbol="E"
    )
    steps: Count | None = setting(
        None, "The number of steps in a round; if given, it replaces `epochs`."
    )
    drop_last: bool = setting(
        False, "Whether an incomplete last batch is left out, unless it is the only one."
    )
    momentum: Share = setting(0.0, "The momentum of SGD; 0 is plain gradient descent.")
    dampening: NotNegative = setting(
        0.0, "The share of a new gradient that SGD keeps out of its momentum."
    )
    nesterov: bool = setting(False, "Whether the momentum of SGD is Nesterov's.")
    beta1: Share = setting(0.9, "The decay of Adam's and AdamW's mean gradient.", symbol="β₁")
    beta2: Share = setting(
        0.999, "The decay of Adam's and AdamW's mean squared gradient.", symbol="β₂"
    )
    eps: Positive = setting(
        1e-8, "What Adam and AdamW add to the root that they divide by.", symbol="ε"
    )
    amsgrad: bool = setting(False, "Whether Adam and AdamW use their AMSGrad variant.")
    weight_decay: NotNegative = setting(
        0.0, "The strength of the L2 penalty (SGD, Adam) or of the decoupled decay (AdamW)."
    )
    clip: Positive | None = setting(
        None, "The largest norm of the whole gradient; longer ones are scaled down to it."
    )
    frozen_once: bool = setting(
        True,
        "Compute what frozen layers at the beginning of a network make of a sample once, and not "
        "in every step; augmented samples have to be computed each time.",
    )
    eval_stats: Literal["model", "own"] = setting(
        "model",
        "The statistics of BatchNorm in evaluation: the model's, or those of each client's own "
        "training samples, which are then part of what is evaluated.",
    )
    class_weights: Literal["none", "balanced"] = setting(
        "none",
        "The weights of classes in the cross-entropy of local training: `balanced` lets every "
        "class that a client has count the same, however few its samples are.",
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = setting(
        "fp32",
        "The precision in which networks compute; weights, losses and sums are always fp32. tf32 "
        "rounds products on CUDA devices, fp16 scales losses so that small gradients survive.",
    )
    channels_last: bool | None = setting(
        None,
        "Whether images lie channels-last in memory. If it is not set, they do so on a CPU, in the "
        "networks of fedloom; it may pay on an accelerator with tf32, bf16 or fp16.",
    )
    compiled: bool = setting(
        False, "Whether torch.compile makes body and head quicker; the first steps take longer."
    )
    augment: Changes = setting(
        (), "The random changes (crop, flip, rotate) that training images undergo in every step."
    )

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

    def per_epoch(self, n: int) -> int:
        """How many steps an epoch over `n` samples has."""
        full, rest = divmod(n, self.batch)
        if rest and not (self.drop_last and full):
            return full + 1
        return full

    def planned(self, n: int, work: float) -> int:
        """How many steps a client with `n` samples takes that manages this share of its work."""
        if not n:
            return 0
        return max(1, part_of(self.steps or self.epochs * self.per_epoch(n), work))

    def step_size(self, round: int) -> float:
        """The step size in a round (counted from 1)."""
        return self.lr * self.lr_decay ** (round - 1)

    def rate(self, lr: float, step: int, planned: int) -> float:
        """What becomes of a round's step size `lr` in one of its planned steps (counted from 0)."""
        if self.cosine:
            return lr * 0.5 * (1 + math.cos(math.pi * step / planned))
        return lr

    def make(self, params: Iterable[Tensor], round: int) -> Optimizer:
        """A fresh optimiser for these parameters."""
        lr = self.step_size(round)
        if self.optimizer == "sgd":
            return SGD(
                params,
                lr,
                momentum=self.momentum,
                dampening=self.dampening,
                weight_decay=self.weight_decay,
                nesterov=self.nesterov,
            )
        return Adam(
            params,
            lr,
            self.amsgrad,
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.eps,
            weight_decay=self.weight_decay,
            decoupled_weight_decay=self.optimizer == "adamw",
        )

    @property
    def remembers(self) -> bool:
        """Whether optimisers take something along into a client's next round."""
        return self.keep_optimizer and (self.optimizer != "sgd" or self.momentum > 0)

    @property
    def plain_sgd(self) -> bool:
        """Whether each step is exactly `w - lr * gradient`."""
        return self.optimizer == "sgd" and not (self.momentum or self.weight_decay or self.clip)

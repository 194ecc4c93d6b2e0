"""How a client trains: optimiser, step size, amount of work. The same keys for every method."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from .errors import FedloomError

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Training(BaseModel):
    """Settings of local training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.05
    lr_decay: Positive = 1.0  # the step size is lr * lr_decay ** (round - 1)
    batch: Count = 32
    epochs: Count = 1
    steps: Count | None = None  # if given, this many steps instead of epochs
    drop_last: bool = False  # leave out an incomplete last batch (unless it is the only one)
    momentum: Share = 0.0  # SGD
    dampening: NotNegative = 0.0  # SGD
    nesterov: bool = False  # SGD
    beta1: Share = 0.9  # Adam, AdamW
    beta2: Share = 0.999  # Adam, AdamW
    eps: Positive = 1e-8  # Adam, AdamW
    amsgrad: bool = False  # Adam, AdamW
    weight_decay: NotNegative = 0.0
    clip: Positive | None = None  # largest norm of the whole gradient

    def step_size(self, round: int) -> float:
        """The step size in a round (counted from 1)."""
        return self.lr * self.lr_decay ** (round - 1)

    def make(self, params: Iterable[Tensor], round: int) -> torch.optim.Optimizer:
        """A fresh optimiser for these parameters."""
        lr, decay = self.step_size(round), self.weight_decay
        if self.optimizer == "sgd":
            if self.nesterov and not self.momentum:
                raise FedloomError("nesterov=true needs momentum above 0.")
            return torch.optim.SGD(params, lr, self.momentum, self.dampening, decay, self.nesterov, foreach=True)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        betas = (self.beta1, self.beta2)
        return kind(params, lr, betas, self.eps, decay, self.amsgrad, foreach=True)

    @property
    def plain_sgd(self) -> bool:
        """Whether each step is exactly `w - lr * gradient`."""
        return self.optimizer == "sgd" and not (self.momentum or self.weight_decay or self.clip)

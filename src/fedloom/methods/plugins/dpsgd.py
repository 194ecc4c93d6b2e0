"""Differential privacy for single samples: DP-SGD at the clients.

Abadi et al., "Deep learning with differential privacy", CCS 2016.

Travels: as the method it is put round.
Symbols: C -> `sample_clip`, sigma -> `sample_noise`, delta -> `sample_delta`, L -> `batch`.
In each step the gradient of each sample is cut to length C, their sum gets normal noise of
deviation sigma C in every number, and is divided by the number of samples in the batch. What a
client uploads is made of such steps and of nothing else, so its promise holds against the server
too. docs/privacy.md says what it is.
With `sample_noise=0` and no `sample_clip` it is the method itself to the last bit.
Deviations: batches are drawn by shuffling, and accounted for as if every sample were drawn by a
coin of its own, as is usual. BatchNorm keeps the statistics that it came with. It goes round
methods with one local training by the cross-entropy per round, with or without a pull.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ...core.errors import FedloomError
from ...core.local import Batch, Fit, Local, Loss, Step, cross_entropy
from ...core.lookup import plugin
from ...core.method import Method, Plugin, Promise, Traits, Update
from ...core.payload import Payload
from ...core.settings import NotNegative, Positive, Ratio, setting
from ...core.tree import Tree
from ...parts.per_sample import clipped_sum
from .._bases import fitting, uncovered

ALLOWED = {"pull", "only", "stream", "label", "epochs", "steps"}


@plugin("dpsgd")
class DPSGD(Plugin):
    """Clipped gradients of samples, and noise in their sum."""

    purpose = "privacy"
    around = "plain"
    traits = Traits(neutral=({"sample_noise": 0.0, "sample_clip": None}, "METHOD"), alone=None)
    sample_clip: Positive | None = setting(
        1.0,
        "Length to which a sample's longer gradient is cut; none cuts nothing.",
        symbol="C",
    )
    sample_noise: NotNegative = setting(
        1.0, "Deviation of the noise in the sum of gradients, as a multiple of C.", symbol="sigma"
    )
    sample_delta: Ratio = setting(1e-5, "The delta for which epsilon is computed.", symbol="delta")

    @classmethod
    def refuses(cls, base: type[Method]) -> str | None:
        if hasattr(base, "promise"):
            return f"{base.name} has a promise of its own."
        return uncovered(base) or super().refuses(base)

    def promise(self) -> Promise | None:
        """What a step hides, if there is noise."""
        if not self.sample_noise or self.sample_clip is None:
            return None
        return Promise(self.sample_noise, self.sample_delta, "step")

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        if self.sample_clip is None and self.sample_noise:
            raise FedloomError("dpsgd: noise without sample_clip promises nothing.")
        if self.sample_clip is None:
            return super().client(down, state, local)
        taken: list[int] = []

        def private(loss: Loss = cross_entropy, **named: Any) -> Fit:
            if loss is not cross_entropy or set(named) - ALLOWED or taken:
                raise FedloomError(
                    f"{self.name}: dpsgd needs one local training per round, by the cross-entropy."
                )
            fit = self.fit(local, named)
            taken.append(fit.steps)
            return fit

        return super().client(down, state, fitting(local, private))

    def fit(self, local: Local, named: dict[str, Any]) -> Fit:
        """Local training with clipped and noisy gradients; buffers stay as they are."""
        begun = local.tree("shared") | local.tree("private")
        buffers = begun.without(local.parameters())
        seen: list[Batch] = []
        bound, rng = self.sample_clip or 0.0, local.rng("dpsgd")

        def note(batch: Batch) -> dict[str, torch.Tensor]:
            seen[:] = [batch]
            return {"ce": F.cross_entropy(batch.logits, batch.y)}  # weighs no classes

        def noisy(step: Step) -> Tree:
            x, y = seen[0].x, seen[0].y
            total = clipped_sum(local.model, step.w, x, y, bound)
            for name in sorted(total):
                drawn = torch.randn(total[name].shape, generator=rng)
                total[name].add_(drawn.to(total[name]), alpha=self.sample_noise * bound)
            return total / len(y)

        fit = local.fit(note, gradient=noisy, **named)
        local.load(local.tree("shared"), local.tree("private"), buffers)
        return fit

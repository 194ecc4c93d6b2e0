"""FedMix: mixup with the means of other clients' samples, to first order.

Yoon, Shin, Hwang, Yang, "FedMix: Approximation of mixup under mean augmented federated learning",
ICLR 2021.

Travels: as FedAvg; up once, when a client first appears, the means of groups of its samples and
labels; down each round `draw` of everybody's means.
Symbols: lambda -> `lam`, M_k -> `group`, (xbar, ybar) -> a row of `means` and `labels`.
Each batch meets one (xbar, ybar). The loss is l1 + l2 + l3, with l1 = (1-lam) CE(f((1-lam) x), y),
l2 = lam CE(f((1-lam) x), ybar) and l3 = lam sum_i <d l1 / d x_i, xbar>, taken at what the network
is shown. l1 is already a batch mean, so l3 is a sum over i. `naive=true` is NaiveMix: plain mixup
of the batch with (xbar, ybar).
Deviations: the paper sends everybody's means once; a fresh draw every round gives each batch the
same distribution and spares every client a copy. A group has at least two samples, or its mean
would be a raw sample: left-over samples join other groups, and a client with a single sample sends
nothing. Augmentation comes before mixing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..core.claims import SHARES, Claim, Claims
from ..core.errors import FedloomError
from ..core.local import Batch, Fit, Local
from ..core.lookup import method
from ..core.payload import Payload
from ..core.rng import torch_rng
from ..core.settings import Count, Share, setting
from ..parts.mixing import group_means
from .fedavg import FedAvg


@method("fedmix")
class FedMix(FedAvg):
    """FedAvg with mixup between clients."""

    traits = FedAvg.traits.but(helps=("labels",), features="raw", neutral=({"lam": 0.0}, "fedavg"))
    claims = Claims({"means": Claim("mean samples"), "labels": SHARES})
    lam: Share = setting(0.05, "Share of the averaged sample in the mixture.", symbol="lambda")
    group: Annotated[int, Field(ge=2)] = setting(
        5, "Number of samples behind one average that is sent.", symbol="M_k"
    )
    draw: Count = setting(32, "Number of averages that a client is sent each round.")
    naive: bool = setting(
        False, "Use plain mixup with the averages instead of the expansion to first order."
    )

    def hello(self, local: Local) -> Payload:
        data = local.worker.data
        if data.kind in ("text", "segmentation"):
            raise FedloomError(
                f"fedmix averages samples and labels; {data.name} is {data.kind} data."
            )
        means, labels = group_means(local, self.group)
        return super().hello(local).replace(means=means, labels=labels)

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        senders = list(hellos.values())
        if "pool/means" in server:
            senders.insert(0, server.group("pool"))
        means = torch.cat([sender.tensor("means") for sender in senders])
        labels = torch.cat([sender.tensor("labels") for sender in senders])
        return super().join(server, hellos).replace(pool=Payload(means=means, labels=labels))

    def download(self, server: Payload, k: int) -> Payload:
        pool = server.group("pool")
        means, labels = pool.tensor("means"), pool.tensor("labels")
        rng = torch_rng(int(server.number("seed")), int(server.number("round")), k, "mix")
        drawn = torch.randperm(len(means), generator=rng)[: self.draw]
        return super().download(server, k).replace(means=means[drawn], labels=labels[drawn])

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        lam, means, labels = self.lam, down.tensor("means"), down.tensor("labels")
        if not len(means):  # nobody has two samples
            return local.fit()

        def partner() -> tuple[Tensor, Tensor]:
            i = (local.step - 1) % len(means)
            return means[i], labels[i]

        def shown(x: Tensor) -> Tensor:
            if self.naive:
                return (1 - lam) * x + lam * partner()[0]
            return ((1 - lam) * x).requires_grad_()

        def loss(batch: Batch) -> dict[str, Tensor]:
            xbar, ybar = partner()
            ours = (1 - lam) * F.cross_entropy(batch.logits, batch.y)
            theirs = lam * F.cross_entropy(batch.logits, ybar.expand_as(batch.logits))
            parts = {"ce": ours, "theirs": theirs}
            if not self.naive:
                (slope,) = torch.autograd.grad(ours, batch.x, create_graph=True)
                parts["slope"] = lam * (slope * xbar).sum()
            return parts

        return local.fit(loss, inputs=shown)

"""ELCFS (FedDG): training meets images whose low frequencies come from other clients.

Liu, Chen, Qin, Dou, Heng, "FedDG: Federated domain generalization on medical image segmentation via
episodic learning in continuous frequency space", CVPR 2021.

Travels: as FedAvg; up once, when a client first appears, low-frequency amplitudes of some images;
down each round `draw` of other clients'.
Symbols: A -> `bank`, alpha (the side of the window) -> `window`, lambda (the own share) -> drawn in
[0, 1], beta -> `meta_lr`, theta' -> `ahead`.
Each image gets a partner's amplitudes mixed into its lowest frequencies. The local objective is the
loss on the batch, and `meta` times that on the transformed batch at weights one gradient step of
the first loss further; the step counts as constant (first order).
Deviations: the third term, a contrast of features along boundaries of organs, is for masks of
two structures and left out. A client gives `bank` images' amplitudes, not all. The paper mixes with
a drawn share; the public code sets the zero frequency only and to the partner's (`window=0` and
`mix=false`, the preset `official`). Gradients of the step are not cut (there at 100).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from ..core.claims import Claim, Claims
from ..core.errors import FedloomError
from ..core.local import Batch, Fit, Local, cross_entropy
from ..core.lookup import method
from ..core.payload import Payload
from ..core.rng import torch_rng
from ..core.settings import Count, NotNegative, setting
from ..parts.spectrum import exchanged, low_amplitudes
from .fedavg import FedAvg


@method("elcfs")
class ELCFS(FedAvg):
    """FedAvg with a second loss on images of exchanged low frequencies."""

    traits = FedAvg.traits.but(
        helps=("domains",),
        needs=("images",),
        neutral=({"meta": 0.0}, "fedavg"),
        presets={"official": {"window": 0.0, "mix": False}},
    )
    claims = Claims({"low": Claim("amplitudes of images", 0, 1e9)})
    meta: NotNegative = setting(1.0, "Weight of the loss on transformed images.")
    meta_lr: NotNegative = setting(
        1e-3, "Step size before the loss on transformed images.", symbol="beta"
    )
    window: Annotated[float, Field(ge=0, lt=0.5)] = setting(
        0.01, "Half the side of the exchanged window, as a share of the image's.", symbol="alpha"
    )
    mix: bool = setting(True, "Whether amplitudes are mixed by a drawn share, or replaced.")
    bank: Count = setting(64, "Largest number of images whose amplitudes a client gives.")
    draw: Count = setting(64, "Number of other clients' amplitudes that a client gets each round.")

    def hello(self, local: Local) -> Payload:
        if self.meta == 0:
            return super().hello(local)
        data = local.worker.data
        if data.kind not in ("image", "segmentation"):
            raise FedloomError(f"elcfs needs images, {data.name} has none.")
        mean, std = data.scale
        low = []
        for x, _ in local.chunks():
            half = int(min(x.shape[-2:]) * self.window)
            low.append(low_amplitudes(x * std + mean, half))
        rows = torch.cat(low)
        chosen = torch.randperm(len(rows), generator=local.rng("bank"))[: self.bank]
        return super().hello(local).replace(low=rows.cpu()[chosen])

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        banks = {str(k): hello["low"] for k, hello in hellos.items() if "low" in hello}
        return super().join(server, hellos).replace(bank=server.group("bank").replace(**banks))

    def download(self, server: Payload, k: int) -> Payload:
        down = super().download(server, k)
        others = [low for name, low in server.tree("bank").items() if name != str(k)]
        if not others:
            return down
        rows = torch.cat(others)
        rng = torch_rng(int(server.number("seed")), int(server.number("round")), k, "bank")
        return down.replace(low=rows[torch.randperm(len(rows), generator=rng)[: self.draw]])

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        if "low" not in down or self.meta == 0:
            return local.fit()
        low, model, rng = down.tensor("low"), local.model, local.rng("exchange")
        mean, std = local.worker.data.scale

        def transformed(x: Tensor) -> Tensor:
            partners = torch.randint(len(low), (len(x),), generator=rng).to(low.device)
            own = torch.rand(len(x), generator=rng).to(x) * self.mix
            plain = exchanged(x * std + mean, low[partners], own).clamp(0, 1)
            return (plain - mean) / std

        def ahead(module: nn.Module, ce: Tensor) -> dict[str, Tensor]:
            moving = {n: w for n, w in module.named_parameters() if w.requires_grad}
            if not moving:
                return {}
            names, weights = list(moving), list(moving.values())
            slopes = torch.autograd.grad(ce, weights, retain_graph=True)
            steps = zip(names, weights, slopes, strict=True)
            return {name: w - self.meta_lr * slope for name, w, slope in steps}

        def loss(batch: Batch) -> dict[str, Tensor]:
            parts = cross_entropy(batch)
            body, head = ahead(model.body, parts["ce"]), ahead(model.head, parts["ce"])
            features = functional_call(model.body, body, (transformed(batch.x),))
            logits = functional_call(model.head, head, (features,))
            return parts | {"meta": self.meta * F.cross_entropy(logits, batch.y)}

        return local.fit(loss)

"""HarmoFL: images brought to a common amplitude spectrum, and flat minima.

Jiang, Wang, Dou, "HarmoFL: Harmonizing local and global drifts in federated learning on
heterogeneous medical images", AAAI 2022.

Travels: as FedAvg; up once, when a client first appears, its mean amplitude; down the common one,
with every model.
Symbols: the perturbation's alpha -> `alpha`, the common amplitude -> `amplitude` on the server.
Every image keeps its phase and gets the common amplitude, in training and in prediction. The
gradient is taken at w + alpha g / |g|, as in FedSAM.
Deviations: a client's amplitude is the exact mean over its training images, sent before its first
round (the paper has a moving average during the first round, in which each client uses its own).
The common one is the mean over the clients of the first round and does not change after that; late
joiners get it. `amplitude=mean` is the released code, which changes only the zero frequency, that
is an image's mean. Weights are by size (the released script weighs all alike).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from ..core.claims import Claim, Claims
from ..core.errors import FedloomError
from ..core.local import Fit, Local, Predictor, Samples, Step, Worker
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import NotNegative, setting
from ..core.tree import Tree
from ..parts.sharpness import uphill
from ..parts.spectrum import CommonAmplitude, amplitude
from .fedavg import FedAvg


@method("harmofl")
class HarmoFL(FedAvg):
    """FedAvg on images of one spectrum, with sharpness-aware steps."""

    traits = FedAvg.traits.but(
        helps=("domains",),
        needs=("images",),
        neutral=({"alpha": 0.0, "amplitude": "none"}, "fedavg"),
    )
    claims = Claims({"amplitude": Claim("amplitudes of mean images", 0, 1e9)})
    alpha: NotNegative = setting(
        0.05, "Length of the perturbation of the weights before each gradient.", symbol="alpha"
    )
    amplitude: Literal["all", "mean", "none"] = setting(
        "all", "Which amplitudes of an image become the common ones: all, only its mean's, or none."
    )

    def hello(self, local: Local) -> Payload:
        data = local.worker.data
        if self.amplitude == "none":
            return super().hello(local)
        if data.kind not in ("image", "segmentation"):
            raise FedloomError(f"harmofl needs images, {data.name} has none.")
        mean, std = data.scale
        total = sum(amplitude(x * std + mean).sum(0) for x, _ in local.chunks())
        return super().hello(local).replace(amplitude=torch.as_tensor(total) / local.size)

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        server = super().join(server, hellos)
        if self.amplitude == "none" or "amplitude" in server:  # late joiners do not change it
            return server
        amplitudes = [hello.tensor("amplitude") for hello in hellos.values()]
        return server.replace(amplitude=torch.stack(amplitudes).mean(0))

    def download(self, server: Payload, k: int) -> Payload:
        down = super().download(server, k)
        if "amplitude" not in server:
            return down
        return down.replace(amplitude=server["amplitude"])

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        shown = self._shown(down, local.worker.data)
        if self.alpha == 0:
            return local.fit(inputs=shown)

        def perturbed(step: Step) -> Tree:
            return step.at(step.w + uphill(step.g, self.alpha))

        return local.fit(inputs=shown, gradient=perturbed)

    def _shown(self, source: Payload, data: Samples) -> CommonAmplitude | None:
        """What gives images the common amplitude."""
        if "amplitude" not in source:
            return None
        mean, std = data.scale
        return CommonAmplitude(source.tensor("amplitude"), mean, std, self.amplitude == "mean")

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("model"), state.tree("model"))
        return local.predictor(self._shown(down, local.worker.data))

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        worker.load(server.tree("model"))
        return worker.predictor(self._shown(server, worker.data))

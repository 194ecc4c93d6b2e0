"""Differential privacy for whole clients: updates are cut to a length, and their sum gets noise.

McMahan et al., "Learning differentially private recurrent language models", ICLR 2018; the adaptive
length is that of Andrew et al., "Differentially private learning with adaptive clipping", NeurIPS
2021.

Travels: as the method it is put round.
Symbols: S -> `dp_clip`, z -> `dp_noise`, delta -> `dp_delta`; of Andrew et al. gamma ->
`clip_quantile`, eta_C -> `clip_lr`, sigma_b -> `count_noise`.
Each update, BatchNorm's statistics included, is cut to length S; the sum of a round gets normal
noise of deviation z S in every number. All clients count alike. An adaptive S moves towards the
quantile gamma of the updates' lengths, C exp(-eta_C (share below C - gamma)); the count behind that
share has noise sigma_b, and the update's noise is (z^-2 - (2 sigma_b)^-2)^(-1/2) C, so that both
together cost what z promises. docs/privacy.md says what that is.
With `dp_noise=0` and no `dp_clip` it is the method itself to the last bit: without noise there is
no promise to keep, so clients count as usual.
Deviations: the sum is divided by how many answered, not by how many were expected. sigma_b is a
number; the paper's is a twentieth of the cohort, here of its 100 clients.
"""

from __future__ import annotations

import math

import torch

from ...core.errors import FedloomError
from ...core.local import Worker
from ...core.lookup import PLUGINS, plugin
from ...core.method import Method, Promise, Traits, Uploads
from ...core.payload import Payload
from ...core.rng import torch_rng
from ...core.settings import NotNegative, Positive, Ratio, Share, setting
from ...core.tree import Tree
from ...parts.updates import cut, normal, possible, uncounted, update, with_update
from .._bases import Averaging, Reweighting, uncovered


@plugin("dp")
class DP(Averaging):
    """Clipped updates, and noise in their sum."""

    purpose = "privacy"
    private = True
    traits = Traits(neutral=({"dp_noise": 0.0, "dp_clip": None}, "METHOD"), sums=False)
    dp_clip: Positive | None = setting(
        1.0,
        "Length to which longer updates are cut, at first if it is adaptive; none cuts nothing.",
        symbol="S",
    )
    dp_noise: NotNegative = setting(
        1.0, "Deviation of the noise in the sum of updates, as a multiple of S.", symbol="z"
    )
    dp_delta: Ratio = setting(1e-5, "The delta for which epsilon is computed.", symbol="delta")
    adaptive_clip: bool = setting(False, "Whether the length S follows the lengths of the updates.")
    clip_quantile: Share = setting(
        0.5, "Share of the updates that an adaptive S leaves whole.", symbol="gamma"
    )
    clip_lr: NotNegative = setting(
        0.2, "How fast an adaptive S moves in each round.", symbol="eta_C"
    )
    count_noise: Positive = setting(
        5.0,
        "Deviation of the noise in the number of updates that S leaves whole.",
        symbol="sigma_b",
    )

    @classmethod
    def refuses(cls, base: type[Method]) -> str | None:
        if issubclass(base, Reweighting):
            return f"{base.name} sets the weights of clients, and with dp all count alike."
        for name, part in PLUGINS.loaded().items():
            if issubclass(part, Averaging) and issubclass(base, part) and not part.private:
                return f"{name} would see an update with noise in it."
        return uncovered(base) or super().refuses(base)

    def promise(self) -> Promise | None:
        """What a round hides, if there is noise."""
        if not self.dp_noise:
            return None
        return Promise(self.dp_noise, self.dp_delta, "round")

    def init(self, worker: Worker) -> Payload:
        if self.dp_noise and self.dp_clip is None:
            raise FedloomError("dp: noise without dp_clip promises nothing.")
        if self.adaptive_clip and not self.dp_noise < 2 * self.count_noise:
            raise FedloomError("dp: count_noise must be more than half of dp_noise.")
        server = super().init(worker)
        if self.dp_clip is None:
            return server
        return server.replace(dp_bound=self.dp_clip)

    def weight(self, server: Payload, k: int) -> float:
        if self.dp_noise:
            return 1.0
        return super().weight(server, k)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        if self.dp_clip is None:
            return super().aggregate(server, uploads)
        bound, kind = server.number("dp_bound"), type(self)
        whole: list[bool] = []

        def noisy() -> Uploads:
            for k, up in uploads:
                moved, short = cut(update(kind, server, up, statistics=True), bound)
                if self.dp_noise and not whole:  # all the noise of the sum is in the first update
                    moved = moved + self.noise(server, moved)
                whole.append(short)
                yield k, with_update(kind, server, uncounted(kind, server, up), moved)

        after = super().aggregate(server, noisy())
        if self.adaptive_clip and whole:
            after = after.replace(dp_bound=self.moved_bound(server, sum(whole), len(whole)))
        return possible(kind, after)

    def noise(self, server: Payload, like: Tree) -> Tree:
        """The noise of a round's sum."""
        z = self.dp_noise
        if self.adaptive_clip:
            z = (z**-2 - (2 * self.count_noise) ** -2) ** -0.5
        rng = torch_rng(int(server.number("seed")), int(server.number("round")), "dp")
        return normal(like, z * server.number("dp_bound"), rng)

    def moved_bound(self, server: Payload, whole: int, n: int) -> float:
        """The next S, from how many of n updates it has left whole."""
        rng = torch_rng(int(server.number("seed")), int(server.number("round")), "dp count")
        heard = float(whole)
        if self.dp_noise:
            heard += self.count_noise * float(torch.randn((), generator=rng))
        beyond = heard / n - self.clip_quantile
        return server.number("dp_bound") * math.exp(-self.clip_lr * beyond)

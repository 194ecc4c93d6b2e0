"""TERM: a mean tilted towards clients with a high loss (t > 0), or away from them (t < 0).

Li, Beirami, Sanjabi, Smith, "Tilted empirical risk minimization", ICLR 2021; tilted between
clients.

Travels: as FedAvg, and one number up: the client's mean loss at the received model.
Symbols: t -> `t`, F_k(w) -> `loss`.
The objective is (1/t) ln sum_k p_k exp(t F_k(w)), so client k counts with p_k exp(t F_k),
normalised over those who answered. The largest exponent is subtracted first, so that nothing
overflows.
Deviations: this is the closed form; the released trainer keeps a running normaliser and divides by
the number of clients twice (`normaliser=running`, the preset `official`).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from ..core.lookup import method
from ..core.method import Uploads
from ..core.payload import Payload
from ..core.settings import setting
from ..core.tree import Mean
from ._bases import Reporting


@method("term")
class Term(Reporting):
    """FedAvg with tilted weights."""

    traits = Reporting.traits.but(
        helps=("worst",),
        sums=False,  # its weights are made while models are added up
        neutral=({"t": 0.0}, "fedavg"),
        presets={"official": {"normaliser": "running"}},
    )
    t: Annotated[float, Field(allow_inf_nan=False)] = setting(
        0.1, "Tilt towards clients with a high loss; below 0 away from them.", symbol="t"
    )

    normaliser: Literal["round", "running"] = setting(
        "round",
        "What tilted weights are divided by: their sum in the round; or, as in the authors' code, "
        "a running mean of theirs over rounds and twice the number of clients, who count alike.",
    )

    def weight(self, server: Payload, k: int) -> float:
        if self.normaliser == "running":
            return 1.0
        return super().weight(server, k)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        mean, top, tilts = Mean(), -math.inf, []
        for k, up in uploads:
            tilt = self.t * up.number("loss")
            tilts.append(tilt)
            # Weights are relative to the largest exponent so far, also of what came before.
            mean.total *= math.exp(min(0.0, top - tilt))
            top = max(top, tilt)
            mean.add(up.tree("model"), weight=self.weight(server, k) * math.exp(tilt - top))
        tilted = mean.value(default=server.tree("model"))
        if self.normaliser == "round" or not tilts:
            return server.replace(model=tilted)
        now = sum(math.exp(tilt - top) for tilt in tilts) / len(tilts)
        running = 0.5 * now
        if "running" in server:
            running += 0.5 * server.number("running")
        model = server.tree("model").towards(tilted, now / running / len(tilts))
        return server.replace(model=model, running=running)

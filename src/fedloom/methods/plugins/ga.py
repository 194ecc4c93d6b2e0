"""FedDG-GA: clients to whom the common model generalises badly count more, step by step.

Zhang et al., "Federated domain generalization with generalization adjustment", CVPR 2023.

Travels: as the method it is put round; up also one number from a client's second round on, the gap.
Kept by the client: the loss of its last model, `own_loss`; by the server: everybody's weight,
`ga_shares`.
Symbols: a_i -> `ga_shares`, G -> `gap`, d -> `ga_step`, R -> `ga_rounds`.
The gap is the loss of the received model less that of the model with which the client ended its
last round. Weights start equal and move by d_r / N times the gap less the mean gap, over the
largest such difference, with d_r = d (1 - (r - 1) / R); then they are cut to [0, 1] and sum to 1.
Deviations: losses are of training samples, as in the paper's text; the public code compares
accuracies on validation samples, and does not subtract the mean (`ga_centred=false`). Its factor
1/3 is 1/N for the paper's three clients. A client that was absent keeps its weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ...core.claims import Claim, Claims
from ...core.local import Local, Worker
from ...core.lookup import plugin
from ...core.method import Update
from ...core.payload import Payload
from ...core.settings import Count, NotNegative, setting
from .._bases import Reweighting, with_shares


@plugin("ga")
class GA(Reweighting):
    """Weights that follow the gap between common and own model."""

    claims = Claims({"gap": Claim("a difference of two mean losses", -1e9, 1e9)})
    ga_step: NotNegative = setting(0.2, "How far weights move in the first round.", symbol="d")
    ga_rounds: Count = setting(
        40, "Number of rounds in which the step falls to 0; the paper's runs have 40.", symbol="R"
    )
    ga_centred: bool = setting(True, "Whether the mean gap is subtracted from every gap.")

    def init(self, worker: Worker) -> Payload:
        even = torch.full((worker.clients,), 1 / worker.clients, dtype=torch.float64)
        return super().init(worker).replace(ga_shares=even)

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"), state.tree("model"))
        received = local.evaluate()["ce"]
        done = super().client(down, state, local)
        local.load(done.trained.tree("model"), done.state.tree("model"))
        upload, kept = done.upload, done.state.replace(own_loss=local.evaluate()["ce"])
        if "own_loss" in state:
            upload = upload.replace(gap=received - state.number("own_loss"))
        return replace(done, upload=upload, state=kept)

    def reweigh(self, server: Payload, uploads: Mapping[int, Payload]) -> Payload:
        shares = server.tensor("ga_shares").clone()
        told = {k: up.number("gap") for k, up in uploads.items() if "gap" in up}
        gaps = torch.tensor(list(told.values()), dtype=torch.float64)
        if self.ga_centred and len(gaps):
            gaps = gaps - gaps.mean()
        if len(gaps) and bool(gaps.any()):
            left = max(0.0, 1 - (server.number("round") - 1) / self.ga_rounds)
            shares[list(told)] += self.ga_step * left / len(shares) * gaps / gaps.abs().max()
            shares = shares.clamp(0, 1)
            shares = shares / shares.sum()
        return with_shares(server.replace(ga_shares=shares), uploads, shares[list(uploads)])

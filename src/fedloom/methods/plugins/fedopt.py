"""FedOpt: the clients' mean update is a gradient, and the server an optimiser that follows it.

Reddi et al., "Adaptive federated optimization", ICLR 2021: `+fedadam`, `+fedyogi`, `+fedadagrad`.
Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019: `+fedavgm`.

Travels: as the method it is put round. Kept by the server: `outer_mean`, and but for FedAvgM
`outer_square`.
Symbols: Delta_t -> the method's own step of the model, eta -> `outer_lr`, beta_1 -> `outer_beta1`,
beta_2 -> `outer_beta2`, tau -> `outer_tau`, m_t -> `outer_mean`, v_t -> `outer_square`, FedAvgM's
beta -> `outer_momentum`.
FedAvgM: m = beta m + Delta, w + eta m. The others: m = beta_1 m + (1 - beta_1) Delta, w + eta m /
(sqrt(v) + tau), without bias correction, and v starts at tau^2. With `outer_momentum=0` and
`outer_lr=1`, FedAvgM is the method itself, to the last bit.
Deviations: the papers tune eta; ours is 1 for FedAvgM and 0.01 for the others. Clients count as in
the method that is averaged, so by size, where the second paper's algorithm has a plain mean.
Buffers have no gradient and take the method's own value. A round without uploads changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.local import Worker
from ...core.lookup import base, plugin
from ...core.method import Traits, Uploads
from ...core.payload import Payload
from ...core.settings import Positive, Share, setting
from ...core.tree import Tree
from .._bases import Averaging, noting


@base
class Optimising(Averaging):
    """The method's own step of the model goes through `stepped`."""

    purpose = "server"
    private = True

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        shared = server.tree("model")
        moving = shared.only(name for name in worker.parameters() if name in shared)
        return server.replace(outer_mean=moving.zeros_like())

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        heard: list[int] = []
        after = super().aggregate(server, noting(uploads, heard))
        if not heard:
            return after
        w, mean = server.tree("model"), server.tree("outer_mean")
        delta = after.tree("model").only(mean) - w.only(mean)
        step, kept = self.stepped(delta, mean, server)
        return after.replace(model=after.tree("model") | (w.only(mean) + step), **kept)

    def stepped(self, delta: Tree, mean: Tree, server: Payload) -> tuple[Tree, dict[str, Tree]]:
        """The step in place of `delta`, and what the server remembers of it."""
        raise NotImplementedError


@plugin("fedavgm")
class FedAvgM(Optimising):
    """Momentum on the server."""

    traits = Traits(neutral=({"outer_momentum": 0.0}, "METHOD"))
    outer_lr: Positive = setting(
        1.0, "Step size of the server along the clients' mean update.", symbol="eta"
    )
    outer_momentum: Share = setting(
        0.9, "Share of the last step's momentum that the server keeps.", symbol="beta"
    )

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        if self.outer_momentum == 0 and self.outer_lr == 1:  # w + (w' - w) would round
            return super(Optimising, self).aggregate(server, uploads)
        return super().aggregate(server, uploads)

    def stepped(self, delta: Tree, mean: Tree, server: Payload) -> tuple[Tree, dict[str, Tree]]:
        mean = self.outer_momentum * mean + delta
        return self.outer_lr * mean, {"outer_mean": mean}


@base
class Adaptive(Optimising):
    """A step size for each weight, by its squared steps so far."""

    traits = Traits(alone=None)
    outer_lr: Positive = setting(
        0.01, "Step size of the server along the clients' mean update.", symbol="eta"
    )
    outer_beta1: Share = setting(0.9, "Decay of the server's mean step.", symbol="beta_1")
    outer_tau: Positive = setting(
        1e-3,
        "What is added to the root of the mean square that steps are divided by.",
        symbol="tau",
    )

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        return server.replace(outer_square=server.tree("outer_mean") + self.outer_tau**2)

    def stepped(self, delta: Tree, mean: Tree, server: Payload) -> tuple[Tree, dict[str, Tree]]:
        mean = self.outer_beta1 * mean + (1 - self.outer_beta1) * delta
        old, squares = server.tree("outer_square"), {}
        for name in mean:
            squares[name] = self.square(old[name], delta[name].square())
        root = Tree(squares).map(torch.sqrt) + self.outer_tau
        return self.outer_lr * (mean / root), {"outer_mean": mean, "outer_square": Tree(squares)}

    def square(self, v: Tensor, new: Tensor) -> Tensor:
        """The mean squared step with a new one."""
        raise NotImplementedError


@plugin("fedadagrad")
class FedAdagrad(Adaptive):
    """Adagrad on the server."""

    outer_beta1: Share = setting(0.0, "Decay of the server's mean step.", symbol="beta_1")

    def square(self, v: Tensor, new: Tensor) -> Tensor:
        return v + new


@plugin("fedadam")
class FedAdam(Adaptive):
    """Adam on the server."""

    outer_beta2: Share = setting(0.99, "Decay of the server's mean squared step.", symbol="beta_2")

    def square(self, v: Tensor, new: Tensor) -> Tensor:
        return self.outer_beta2 * v + (1 - self.outer_beta2) * new


@plugin("fedyogi")
class FedYogi(Adaptive):
    """Yogi on the server."""

    outer_beta2: Share = setting(0.99, "Decay of the server's mean squared step.", symbol="beta_2")

    def square(self, v: Tensor, new: Tensor) -> Tensor:
        return v - (1 - self.outer_beta2) * new * torch.sign(v - new)

"""FedNova: updates are divided by the work behind them, so that busy clients do not pull harder.

Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization",
NeurIPS 2020.

Travels: as the method it is put round, and one number up: how much work is in the update.
Symbols: tau_i -> executed steps, |a_i|_1 -> `work`, p_i -> `weight`, tau_eff -> the mean of `work`,
weighted by p_i.
A client's update counts divided by its work, and the mean is multiplied by tau_eff. The work of
tau steps of SGD with momentum rho is sum_s (1 - rho^s) / (1 - rho) for s = 1 ... tau, hence tau
without momentum. Where all do the same work this is the method itself, to about 1e-6.
Deviations: a proximal pull does not change the work (in the paper it does, by a factor 1 - eta mu
per step), and the server's momentum is a plug-in of its own: METHOD+fednova+fedavgm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...core.claims import Claim, Claims
from ...core.errors import FedloomError
from ...core.local import Fit, Local, Worker
from ...core.lookup import plugin
from ...core.method import Traits, Update, Uploads
from ...core.payload import Payload
from ...parts.updates import update, with_update
from .._bases import OnModels, fitting


@plugin("fednova")
class FedNova(OnModels):
    """Updates divided by the work behind them."""

    purpose = "weights"
    traits = Traits(sums=False)
    claims = Claims({"work": Claim("a sum of the factors of gradients", 1e-6, 1e12)})

    def init(self, worker: Worker) -> Payload:
        if worker.training.optimizer != "sgd" or worker.training.dampening:
            raise FedloomError("fednova knows the work of SGD without dampening only.")
        return super().init(worker)

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        steps: list[int] = []

        def counted(*args: Any, **named: Any) -> Fit:
            fit = local.fit(*args, **named)
            steps.append(fit.steps)
            return fit

        done = super().client(down, state, fitting(local, counted))
        if len(steps) != 1:
            raise FedloomError(
                f"{self.name}: fednova needs one local training per round, there are {len(steps)}."
            )
        spent = work(steps[0], local.training.momentum)
        return replace(done, upload=done.upload.replace(work=spent))

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        spent: dict[int, float] = {}

        def normalised() -> Uploads:
            for k, up in uploads:
                spent[k] = up.number("work")
                step = update(type(self), server, up) / spent[k]
                yield k, with_update(type(self), server, up, step)

        after = super().aggregate(server, normalised())
        shares = {k: self.weight(after, k) for k in spent}
        total = sum(shares.values())
        if not total:
            return after
        effective = sum(shares[k] * spent[k] for k in spent) / total
        step = effective * update(type(self), server, Payload(model=after.tree("model")))
        return Payload({**after, **with_update(type(self), server, Payload(), step)})


def work(steps: int, momentum: float) -> float:
    """The sum of the factors with which the gradients of this many steps enter the update."""
    return sum((1 - momentum**s) / (1 - momentum) for s in range(1, steps + 1))

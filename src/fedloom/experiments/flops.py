"""What local training costs in floating-point operations, counted once per method."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..client.context import ClientContext
from ..data.federation import Federation
from ..engine.folder import Run, begun
from ..engine.setup import Trained


def flops_per_round(run: Run, federation: Federation) -> float | None:
    """Operations of all participants' local training in an average round, forwards and backwards.

    The largest client works one more round from the run's last checkpoint, with a single full batch
    of its data, while torch counts matrix products and convolutions; the figure is scaled to all
    samples. The server's work and evaluation do not count. None if the run never started.
    """
    if run.folder is None or not begun(run.folder):
        return None
    config = run.config
    sizes = [len(client.train) for client in federation.clients]
    k = sizes.index(max(sizes))
    batch = min(config.training.batch, sizes[k])
    clients = list(federation.clients)
    clients[k] = replace(clients[k], train=clients[k].train[:batch])
    trained = Trained.from_folder(run, images=replace(federation, clients=tuple(clients)))
    flops = _one_more_round(trained, k)
    # With a fixed number of steps a client's work does not grow with its data.
    batches = sum(sizes) / batch
    if config.training.steps:
        batches = len(sizes) - sizes.count(0)
    schedule = config.schedule
    share = (schedule.ratio + (schedule.ratio_max or schedule.ratio)) / 2
    return flops * batches * share


def _one_more_round(trained: Trained, k: int) -> float:
    method = trained.setup.method
    round = trained.round + 1
    down = method.download(trained.server.replace(round=round), k)
    local = ClientContext(trained.setup.worker, k, round)
    trained.setup.worker.adopt(k, trained.server)
    with flop_counter() as counter:
        method.client(down, trained.state(k), local)
    return float(counter.get_total_flops())


def flop_counter() -> FlopCounterMode:
    """A context in which torch counts operations, those of fedloom's own steps among them."""
    counter = FlopCounterMode(display=False, custom_mapping=_STEPS)
    counter.mod_tracker = _Everywhere()  # type: ignore[assignment]
    return counter


class _Everywhere(nullcontext[None]):
    """Counts whatever the module: torch's tracker of modules cannot follow a second derivative."""

    parents = ("Global",)


def _flops_of_step(weight: torch.Size, gradient: torch.Size, x: torch.Size, **_: object) -> int:
    return 2 * gradient[0] * gradient[1] * x[1]


# Linear layers take steps by products that are added in place, which the counter does not know.
_STEPS = {torch.ops.aten.addmm_: _flops_of_step}

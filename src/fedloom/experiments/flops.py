"""What local training costs in floating-point operations, counted once per method."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..client.context import ClientContext
from ..data.federation import Federation
from ..engine.folder import Run, begun
from ..engine.networks import owned
from ..engine.setup import Trained


def flops_per_round(run: Run, federation: Federation) -> float | None:
    """Operations of all participants' local training in an average round, forwards and backwards.

    Of the clients with the same network, the largest works one more round from the run's last
    checkpoint, with a single full batch of its data, while torch counts matrix products and
    convolutions; the figure is scaled to all of their samples. The server's work and evaluation do
    not count. None if the run never started.
    """
    if run.folder is None or not begun(run.folder):
        return None
    alike: dict[int, list[int]] = {}
    networks = run.config.networks
    places = owned(networks, federation) if networks else [0] * len(federation)
    for k in range(len(federation)):
        alike.setdefault(places[k], []).append(k)
    flops = sum(_of_clients(run, federation, clients) for clients in alike.values())
    schedule = run.config.schedule
    share = (schedule.ratio + (schedule.ratio_max or schedule.ratio)) / 2
    return flops * share


def _of_clients(run: Run, federation: Federation, numbers: Sequence[int]) -> float:
    """Operations of these clients, which have the same network, when all of them take part."""
    training = run.config.training
    sizes = [len(federation.clients[k].train) for k in numbers]
    largest = max(sizes)
    if not largest:
        return 0.0
    k = numbers[sizes.index(largest)]
    batch = min(training.batch, largest)
    clients = list(federation.clients)
    clients[k] = replace(clients[k], train=clients[k].train[:batch])
    trained = Trained.from_folder(run, images=replace(federation, clients=tuple(clients)))
    # With a fixed number of steps a client's work does not grow with its data.
    batches = sum(sizes) / batch
    if training.steps:
        batches = len(sizes) - sizes.count(0)
    return _one_more_round(trained, k) * batches


def _one_more_round(trained: Trained, k: int) -> float:
    method = trained.setup.method
    round = trained.round + 1
    down = method.download(trained.server.replace(round=round), k)
    worker = trained.setup.worker.of(k)
    local = ClientContext(worker, k, round)
    worker.adopt(k, trained.server)
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

"""What local training costs in floating-point operations, counted once per method and not during its runs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..client.context import ClientContext
from ..data.federation import Federation
from ..engine.folder import Run, begun
from ..engine.setup import Trained


def flops_per_round(run: Run, federation: Federation) -> float | None:
    """Operations of all participants' local training in an average round, forwards and backwards; None if never run.

    One client works one more round from the run's last checkpoint, with a single full batch of its data, while torch
    counts matrix products and convolutions; the figure is scaled to all samples. What the server computes and
    evaluation are not in it.
    """
    if run.folder is None or not begun(run.folder):
        return None
    config, sizes = run.config, [len(c.train) for c in federation.clients]
    k = sizes.index(max(sizes))
    batch = min(config.training.batch, sizes[k])
    owner = replace(federation.clients[k], train=federation.clients[k].train[:batch])
    small = replace(
        federation, clients=(*federation.clients[:k], owner, *federation.clients[k + 1 :])
    )
    trained = Trained.from_folder(run, images=small)
    method, round = trained.setup.method, trained.round + 1
    down = method.download(trained.server.replace(round=round), k)
    # Steps of linear layers are products that are added in place, which the counter does not know by itself.
    steps = {torch.ops.aten.addmm_: lambda w, g, x, **_: 2 * g[0] * g[1] * x[1]}
    with FlopCounterMode(display=False, custom_mapping=steps) as counter:
        method.client(down, trained.store.get(k), ClientContext(trained.setup.worker, k, round))
    share = (config.schedule.ratio + (config.schedule.ratio_max or config.schedule.ratio)) / 2
    # With a fixed number of steps a client's work does not grow with its data.
    clients = sum(1 for n in sizes if n) if config.training.steps else sum(sizes) / batch
    return float(counter.get_total_flops()) * clients * share

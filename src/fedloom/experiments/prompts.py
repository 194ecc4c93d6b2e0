"""What FedGCR saves by reading its first pass from the feature cache."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..client.training import Training
from ..client.worker import ClientWorker
from ..core.lookup import make
from ..core.rng import key
from ..core.tree import Tree
from ..data.catalogue import Progress, Source, load
from ..data.federation import Client, Federation, federate
from ..engine.engine import Engine
from ..engine.schedule import Schedule
from ..executors.inplace import Inplace
from ..models import Split, Task, build
from ..models.vpt import Prompted


class Computed(Prompted):
    """A prompted ViT that computes its first pass although it could read it."""

    @torch.no_grad()
    def first(self, x: Tensor) -> Tensor:
        found: Tensor = self.frozen.vit(self.pixels(x))
        return found


def prompted(world: Federation, computed: bool) -> Split:
    """The model `vpt` for encoded data with pixels, one that reads its first pass or one that computes it."""
    data = world.data
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key("bench", "prompts"))
        model = build(
            "vpt",
            Task(tuple(data.x.shape[1:]), len(data.classes), encoder=data.encoder),
            dropout=0.0,
        )
    if computed:
        model.body.__class__ = Computed
    return model


def first_pass(
    name: str,
    encoder: str,
    root: str | None,
    say: Callable[[str], object],
    progress: Progress | None = None,
) -> dict[str, float]:
    """CPU seconds of a FedGCR round (all losses, nothing evaluated) with the first pass read and with it computed.

    Four clients of 32 samples, two steps each; the second of two rounds is timed. The models must come out the same.
    """
    data = load(name, Source(limit_train=20, limit_test=1), root=root)
    shares = federate(data, "iid", clients=4, validation=0.0)
    none = np.arange(0)
    clients = tuple(Client(c.train[:32], none, none) for c in shares.clients)
    world = Federation(data, clients).encode(encoder, pixels=True, progress=progress)
    seconds, models = {}, {}
    for label, computed in (("read", False), ("computed", True)):
        method = make("fedgcr", {"types": 2})
        worker = ClientWorker(
            method,
            world,
            prompted(world, computed),
            Training(**{**method.traits.training, "batch": 16}),
            seed=0,
        )
        seconds[label], models[label] = _second_round(worker)
    apart = (models["read"] - models["computed"]).norm() / models["read"].norm()
    ratio = seconds["computed"] / seconds["read"]
    say(
        f"a round of FedGCR: {seconds['read']:.2f} CPU s with its first pass read, {seconds['computed']:.2f} s computed"
    )
    say(
        f"ratio: {ratio:.2f} (goal: at least 1.4); models after 2 rounds agree to {float(apart):.1e}"
    )
    return {
        **{f"{k} seconds": v for k, v in seconds.items()},
        "ratio": ratio,
        "apart": float(apart),
    }


def _second_round(worker: ClientWorker) -> tuple[float, Tree]:
    executor, begun = Inplace(worker), [0.0]

    class Clock:
        def after_round(self, engine: Engine, record: object) -> None:
            begun.append(time.process_time())

    engine = Engine(worker, executor, Schedule(rounds=2, eval_every=10**6), [Clock()])
    engine.run()
    executor.close()
    return begun[-1] - begun[-2], engine.server.tree("model")

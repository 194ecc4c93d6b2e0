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
from ..encoders import image
from ..engine.engine import Engine
from ..engine.schedule import Schedule
from ..executors.inplace import Inplace
from ..models import Split, Task, build
from ..models.vpt import Prompted


class Computed(Prompted):
    """A prompted ViT that computes its first pass although it could read it."""

    @torch.no_grad()
    def first(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.frozen.vit(self.pixels(x))
        return tokens


def prompted(world: Federation, computed: bool) -> Split:
    """The model `vpt` for encoded data with pixels; it reads its first pass or computes it."""
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
    """CPU seconds of a FedGCR round with the first pass read and with it computed.

    Four clients of 32 samples take two steps each, with all losses and without evaluation; the
    second of two rounds is timed. The models must come out the same.
    """
    data = load(name, Source(limit_train=20, limit_test=1), root=root)
    shares = federate(data, "iid", clients=4, validation=0.0)
    none = np.arange(0)
    clients = []
    for client in shares.clients:
        clients.append(Client(client.train[:32], none, none))
    world = Federation(data, tuple(clients)).encode(image(encoder), pixels=True, progress=progress)
    read, read_model = _second_round(_worker(world, computed=False))
    computed, computed_model = _second_round(_worker(world, computed=True))
    difference = float((read_model - computed_model).norm() / read_model.norm())
    ratio = computed / read
    say(
        f"a round of FedGCR: {read:.2f} CPU s with its first pass read, {computed:.2f} s with it "
        "computed"
    )
    say(
        f"ratio: {ratio:.2f} (goal: at least 1.4); the models after 2 rounds agree to "
        f"{difference:.1e}"
    )
    return {
        "read seconds": read,
        "computed seconds": computed,
        "ratio": ratio,
        "apart": difference,
    }


def _worker(world: Federation, computed: bool) -> ClientWorker:
    method = make("fedgcr", {"types": 2})
    training = Training(**{**method.traits.training, "batch": 16})
    return ClientWorker(method, world, prompted(world, computed), training, seed=0)


def _second_round(worker: ClientWorker) -> tuple[float, Tree]:
    """The CPU seconds of the second round, and the model after it."""
    executor = Inplace(worker)
    ends = []

    class Clock:
        def after_round(self, engine: Engine, record: object) -> None:
            ends.append(time.process_time())

    engine = Engine(worker, executor, Schedule(rounds=2, eval_every=10**6), [Clock()])
    engine.run()
    executor.close()
    return ends[1] - ends[0], engine.server.tree("model")

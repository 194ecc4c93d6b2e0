"""Models for clients that come after training."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..client.context import ClientContext
from ..client.worker import ClientWorker
from ..core.errors import FedloomError
from ..core.local import Predictor
from ..core.lookup import make
from ..core.method import Method
from ..core.payload import Payload
from ..core.user_files import refuse_untrusted
from ..data.catalogue import Progress
from ..data.catalogue import load as load_data
from ..data.clients import Client
from ..data.dataset import Dataset, with_classes
from ..data.described import number_of
from ..data.federation import Federation
from .folder import Run
from .networks import GIVEN
from .setup import Setup, last_checkpoint, source_of, widened


@dataclass(frozen=True)
class Served:
    """A trained model, and what it was trained with."""

    predict: Predictor
    worker: ClientWorker
    run: Run
    raw: Dataset  # samples as they were read: images, where the network takes features of them


@dataclass(frozen=True)
class Personal(Served):
    """The model of a client that joined after training, and how good it is."""

    train: int
    test: int
    # Accuracy on its test samples with what the server sent, and after its own training; None if it
    # has no test samples.
    before: float | None
    after: float | None
    seconds: float

    def described(self) -> dict[str, Any]:
        """The figures as plain values."""
        names = ("train", "test", "before", "after", "seconds")
        return {name: getattr(self, name) for name in names}


def personalise(
    folder: str | Path,
    data: str,
    *,
    progress: Progress | None = None,
    trust: bool = False,
    device: str = "cpu",
) -> Personal:
    """A personal model for a new client, from a finished run and a data set of its own.

    The newcomer says hello, gets what the server would send it and does one round of its own work;
    the server stays as it is. Classes are matched by name; a few of them are enough. `trust` allows
    a method file that the run names to be executed. The `device` may be another than the run's.
    """
    run = Run.load(folder, trust)
    config = run.config
    refuse_untrusted({"method": config.method}, folder)
    method = make(config.method, config.hyper)
    _refuse(run, method)
    clock = time.monotonic()
    k = number_of(run.federation)  # the newcomer's number
    images = _newcomer(run, data)
    setup = Setup.from_config(
        config, images=images, method=method, progress=progress, device=device
    )
    federation = setup.federation
    worker = setup.worker.of(k)
    shape = run.federation.get("shape", [])
    if shape and list(federation.data.x.shape[1:]) != shape:
        raise FedloomError(
            f"{data} has samples of shape {tuple(federation.data.x.shape[1:])}, "
            f"this run was trained on {tuple(shape)}."
        )
    checkpoint, _ = last_checkpoint(run)
    assert checkpoint.server is not None
    number = checkpoint.round + 1
    server = widened(checkpoint.server, method, k).replace(round=number)
    x, y = federation.samples(k, "test")
    with worker.device.seeded(config.seed):
        hello = worker.leaving(method.hello(ClientContext(worker, k, number)))
        server = method.join(server, {k: hello})
        worker.adopt(k, worker.arrived(server))
        down = worker.arrived(method.download(server, k))
        local = ClientContext(worker, k, number)
        predict = method.personal(down, Payload(), local)
        local.settle_statistics()
        before = _accuracy(predict, x, y)
    with worker.device.seeded(config.seed):
        update = method.client(down, Payload(), ClientContext(worker, k, number))
        local = ClientContext(worker, k, number)
        predict = method.personal(update.trained, update.state, local)
        local.settle_statistics()
        after = _accuracy(predict, x, y)
    seconds = round(time.monotonic() - clock, 3)
    train = len(images.clients[k].train)
    return Personal(predict, worker, run, images.data, train, len(y), before, after, seconds)


def _newcomer(run: Run, data: str) -> Federation:
    """The newcomer's samples as one client more, behind the run's own, who have none here."""
    config = run.config
    changes = dict(_PLAIN)
    shape = run.federation.get("shape", [])
    if len(shape) == 3 and not config.encoder:
        changes["size"] = shape[-1]  # as large as the run's own images
    source = source_of(config).model_copy(update=changes)
    new = load_data(data, source, root=config.execution.data_root)
    classes = tuple(run.federation["classes"])
    domain = new.domains[0] if len(new.domains) == 1 else None
    new = with_classes(new, classes, f"class of {new.name}, for a run with {len(classes)} classes,")
    is_test = new.test.numpy()
    train = np.flatnonzero(~is_test)
    if not len(train):
        raise FedloomError(f"{data} has no training samples: a personal model needs a few.")
    none = np.arange(0)
    others = [Client(none, none, none)] * number_of(run.federation)
    return Federation(new, (*others, Client(train, none, np.flatnonzero(is_test), domain)))


# What was done to the run's samples on purpose is not done to the newcomer's.
_PLAIN: dict[str, Any] = {
    "only_classes": None,
    "only_domains": None,
    "label_noise": 0.0,
    "image_noise": None,
    "nonsense": None,
}


def _refuse(run: Run, method: Method) -> None:
    """Raise an error if the run or its method has nothing for a newcomer."""
    if run.config.partition == "given" or GIVEN in run.config.model.split(","):
        raise FedloomError(
            f"{run.folder} was made from Python with its own data or model; personalise it there."
        )
    if not method.traits.personalised:
        how = "` writes it."
        if run.config.training.eval_stats == "own":
            how = " --client NUMBER` writes it as one of the run's clients uses it."
        raise FedloomError(
            f"{method.name} gives everybody the common model, there is nothing to personalise; "
            f"`fedloom export {run.folder}{how}"
        )
    if method.traits.by_client is None:
        raise FedloomError(
            f"{method.name} makes a client's model of what it sent before; "
            "a newcomer has sent nothing."
        )


def _accuracy(predict: Predictor, x: Tensor, y: Tensor) -> float | None:
    return float((predict(x).argmax(1).cpu() == y).double().mean()) if len(y) else None

"""The models of a method in the small world, ready to be exported."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..client.context import ClientContext
from ..core.method import Method
from ..core.payload import Payload
from ..deploy import Served
from ..engine.config import build
from ..engine.folder import Run
from .small_world import ROUNDS, place, usual


def exportable(method: Method) -> Iterator[tuple[str, Served]]:
    """The common model, if there is one, and every client's own, each with its name.

    All use the same resident network: a model holds until the next one is asked for.
    """
    worker = place(method)
    server = usual(method).server
    config = build(
        {
            "method": type(method).origin or method.name,
            "hyper": method.params(),
            "partition": "given",
            "model": "given",
        }
    )
    run = Run(config)
    data = worker.federation.data
    common = method.common(server, worker)
    if common is not None:
        yield "the common model", Served(common, worker, run, data)
    for k, kept in enumerate(usual(method).states[-1]):
        local = ClientContext(worker, k, ROUNDS)
        personal = method.personal(method.download(server, k), Payload.decode(kept), local)
        yield f"client {k}", Served(personal, worker, run, data)


def scores_of(served: Served) -> Tensor:
    """What the engine would get for all samples of the small world."""
    data = served.worker.federation.data
    return served.predict(served.worker.samples(torch.arange(len(data.y))))

"""Class means of frozen features that the server pools over clients before the first round."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.local import Local
from ..core.payload import Payload
from .prototypes import class_means


def unit_features(local: Local) -> tuple[Tensor, Tensor]:
    """The client's training features, scaled to length one, and their labels."""
    local.load()
    seen, y = local.outputs()
    return F.normalize(seen.features, dim=1), y


def own_means(local: Local) -> Payload:
    """What a client sends when it first appears: its class means and their sample counts."""
    means, counts = class_means(*unit_features(local), local.classes)
    return Payload(size=local.size, means=means, counts=counts)


def pool_means(server: Payload, hellos: Mapping[int, Payload]) -> Payload:
    """The server with newcomers' class means, weighted by counts, in its `sums` and `counts`."""
    sums, counts = server.tensor("sums").clone(), server.tensor("counts").clone()
    for hello in hellos.values():
        sums += hello.tensor("means") * hello.tensor("counts")[:, None]
        counts += hello.tensor("counts")
    return server.replace(sums=sums, counts=counts)


def no_means(text: Tensor) -> Payload:
    """`sums` and `counts` before any client has sent its means."""
    return Payload(sums=torch.zeros_like(text), counts=torch.zeros(len(text), dtype=torch.int64))


def prototypes(server: Payload) -> Tensor:
    """The global class means; a class that nobody has gets its text row."""
    counts = server.tensor("counts")[:, None]
    return torch.where(
        counts > 0, server.tensor("sums") / counts.clamp(min=1), server.tensor("text")
    )

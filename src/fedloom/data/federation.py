"""`Dataset` and `Federation`: samples held once as tensors, and for each client the indices it owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FedloomError
from ..rng import numpy_rng
from ..training import part_of
from .partitions import Pool, partition

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Dataset:
    """Labelled samples with their domains and their official train and test parts."""

    name: str
    x: Tensor  # N x ...; images are uint8, N x channels x height x width
    y: Tensor  # N labels
    domain: Tensor  # N indices into `domains`
    test: Tensor  # N booleans: belongs to the official test part
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    mean: float = 0.5  # images are fed to models as (x / 255 - mean) / std
    std: float = 0.5
    vocabulary: int | None = None  # for token data: number of different tokens

    def __post_init__(self) -> None:
        n = len(self.y)
        if not (len(self.x) == len(self.domain) == len(self.test) == n):
            raise FedloomError(f"{self.name}: x, y, domain and test must have one entry per sample.")
        if n and not 0 <= int(self.y.min()) <= int(self.y.max()) < len(self.classes):
            raise FedloomError(f"{self.name}: labels must lie between 0 and {len(self.classes) - 1}.")

    @property
    def pool(self) -> Pool:
        """What a partition may look at."""
        return Pool(
            y=self.y.numpy(),
            domain=self.domain.numpy(),
            test=self.test.numpy(),
            classes=len(self.classes),
            domains=self.domains,
        )

    def prepare(self, x: Tensor) -> Tensor:
        """Stored samples as a model wants them: bytes become normalised floats, all else stays as it is."""
        if x.dtype != torch.uint8:
            return x
        return x.to(torch.float32).mul_(1 / (255 * self.std)).sub_(self.mean / self.std)


@dataclass(frozen=True)
class Client:
    """Which samples a client trains on, validates on and is tested on, and its domain (None: several)."""

    # NumPy, not torch: thousands of small index tensors would each cost worker processes a shared-memory handle.
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    domain: str | None = None


@dataclass(frozen=True)
class Federation:
    """A data set and its clients."""

    data: Dataset
    clients: tuple[Client, ...]
    partition: str = "given"
    description: str = ""

    def __len__(self) -> int:
        return len(self.clients)

    def samples(self, k: int, split: str = "train") -> tuple[Tensor, Tensor]:
        """Client `k`'s stored samples and labels in one of `SPLITS`."""
        index = torch.from_numpy(getattr(self.clients[k], split))
        return self.data.x[index], self.data.y[index]

    def counts(self, k: int) -> Tensor:
        """How many training samples client `k` has of each class."""
        labels = self.data.y[torch.from_numpy(self.clients[k].train)]
        return torch.bincount(labels.flatten(), minlength=len(self.data.classes))

    def share_memory(self) -> Federation:
        """Move the samples to shared memory, so that worker processes read them without a copy."""
        for tensor in (self.data.x, self.data.y):
            tensor.share_memory_()
        return self

    def describe(self) -> dict[str, Any]:
        """Sizes, domains and class counts of every client, as plain values."""
        clients = [
            {"domain": c.domain, **{s: len(getattr(c, s)) for s in SPLITS}, "counts": self.counts(k).tolist()}
            for k, c in enumerate(self.clients)
        ]
        return {
            "data": self.data.name,
            "partition": self.partition,
            "description": self.description,
            "classes": list(self.data.classes),
            "domains": list(self.data.domains),
            "clients": clients,
        }


def federate(
    data: Dataset,
    how: str = "iid",
    *,
    clients: int | None = None,
    seed: int = 0,
    validation: float = 0.1,
    **options: Any,
) -> Federation:
    """Deal `data` out to clients by the partition named `how`.

    `validation` is the share of each client's own training samples set aside for choosing rounds and stopping early;
    it is never taken from test data. A client with a single training sample keeps it for training.
    """
    if not 0 <= validation < 1:
        raise FedloomError(f"validation must be a share from 0 up to but not 1, got {validation}.")
    shares, description = partition(how, data.pool, clients, numpy_rng(seed, "partition", how), **options)
    made = []
    for k, share in enumerate(shares):
        order = numpy_rng(seed, "validation", k).permutation(share.train)
        held = part_of(len(order), validation)
        made.append(
            Client(
                train=np.sort(order[held:]),
                validation=np.sort(order[:held]),
                test=share.test,
                domain=data.domains[share.domain] if share.domain >= 0 else None,
            )
        )
    return Federation(data, tuple(made), how, description)

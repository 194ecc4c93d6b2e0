"""The files that every contender is given, and those that it gives back.

Each contender runs in its own process and environment. Nothing here needs more than torch and
NumPy, so that it can be imported beside any library.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.core.files import write_atomic
from fedloom.core.rng import key, numpy_rng, torch_rng
from fedloom.models import Task, build

SEED = 0
EVAL_BATCH = 512


@dataclass(frozen=True)
class Job:
    """A piece of standing work: FedAvg with one local epoch of plain SGD.

    Every client takes part, and every round is evaluated.
    """

    name: str
    title: str
    model: str
    shape: tuple[int, ...]
    clients: int
    train: int  # samples of each client
    test: int
    batch: int
    lr: float
    rounds: int  # the first of them warms up
    classes: int = 10

    def small(self) -> Job:
        """The same with hardly any work, to see whether everything runs."""
        clients, batches = min(self.clients, 4), 2
        return replace(self, clients=clients, train=batches * self.batch, test=self.batch, rounds=2)


JOBS = {
    job.name: job
    for job in (
        Job(
            "a",
            "4-layer CNN, 28x28",
            "cnn",
            (1, 28, 28),
            clients=20,
            train=300,
            test=60,
            batch=10,
            lr=0.01,
            rounds=6,
        ),
        Job(
            "b",
            "MLP, 28x28",
            "mlp",
            (1, 28, 28),
            clients=20,
            train=300,
            test=60,
            batch=10,
            lr=0.01,
            rounds=9,
        ),
        Job(
            "c",
            "linear head, 512 features",
            "linear",
            (512,),
            clients=50,
            train=100,
            test=20,
            batch=10,
            lr=0.01,
            rounds=21,
        ),
        Job(
            "d",
            "ResNet-10, 32x32x3",
            "resnet10",
            (3, 32, 32),
            clients=10,
            train=40,
            test=20,
            batch=10,
            lr=0.01,
            rounds=5,
        ),
    )
}


def write(job: Job, folder: Path) -> None:
    """Make the job's data, first weights and order of batches, and put them into a folder."""
    rng, per = numpy_rng("peers", job.name), job.train + job.test
    y = rng.integers(0, job.classes, (job.clients, per))
    if (
        len(job.shape) == 3
    ):  # a coarse picture for each class under noise, so that there is something to learn
        channels, side, _ = job.shape
        coarse = rng.uniform(0, 160, (job.classes, channels, side // 4, side // 4))
        pictures = coarse.repeat(4, axis=2).repeat(4, axis=3)
        x = np.empty((job.clients, per, *job.shape), dtype=np.uint8)
        for k in range(job.clients):
            x[k] = pictures[y[k]] + rng.integers(0, 96, (per, *job.shape))
    else:
        means = rng.normal(size=(job.classes, *job.shape)) / 8
        x = (means[y] + rng.normal(size=(job.clients, per, *job.shape))).astype(np.float32)
    # Our engine visits a client's samples in a round in this order; everyone who lets us does too.
    orders = [
        [
            torch.randperm(job.train, generator=torch_rng(SEED, r + 1, k, "batches 0")).numpy()
            for k in range(job.clients)
        ]
        for r in range(job.rounds)
    ]
    torch.manual_seed(key("peers", job.name))
    weights = {n: t.contiguous().numpy() for n, t in network(job).state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "work.npz",
        x=x,
        y=y,
        orders=np.array(orders),
        **{f"weights/{n}": w for n, w in weights.items()},
    )
    (folder / "work.json").write_text(json.dumps(asdict(job)))


def network(job: Job) -> nn.Module:
    """The job's model in PyTorch's default memory layout, as one would build it by hand."""
    model: nn.Module = build(job.model, Task(job.shape, job.classes))
    return model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


class Work:
    """A job as written: `x` and `y` hold each client's training, then its test samples."""

    def __init__(self, folder: Path) -> None:
        told = json.loads((folder / "work.json").read_text())
        self.folder, self.job = folder, Job(**{**told, "shape": tuple(told["shape"])})
        with np.load(folder / "work.npz") as held:
            self.raw, self.y = torch.from_numpy(held["x"]), torch.from_numpy(held["y"])
            self._orders = torch.from_numpy(held["orders"])
            self.weights = {
                n.removeprefix("weights/"): torch.from_numpy(held[n])
                for n in held.files
                if n.startswith("weights/")
            }
        # Bytes become numbers between -1 and 1, in the very way of our engine.
        self.x = (
            self.raw.float().mul_(1 / 127.5).sub_(1) if self.raw.dtype == torch.uint8 else self.raw
        )

    def model(self) -> nn.Module:
        """The model with its first weights."""
        model = network(self.job)
        model.load_state_dict(self.weights)
        return model

    def train(self, k: int, round: int) -> tuple[Tensor, Tensor]:
        """Client k's training samples and labels, in the order of that round (counted from 1)."""
        order = self._orders[round - 1, k]
        return self.x[k][order], self.y[k][order]

    def tests(self) -> tuple[Tensor, Tensor]:
        """All clients' test samples and labels."""
        start = self.job.train
        return self.x[:, start:].flatten(0, 1).contiguous(), self.y[:, start:].flatten()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of samples that the model gets right, in large batches."""
    model.eval()
    right = sum(
        int((model(a).argmax(1) == b).sum())
        for a, b in zip(x.split(EVAL_BATCH), y.split(EVAL_BATCH), strict=True)
    )
    return right / len(y)


class Clock:
    """Notes when each round ended; all processes of a machine share the monotonic clock."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.accuracy: list[float | None] = []

    def round(self, accuracy: float | None) -> None:
        """A round is over, evaluation included."""
        self.ends.append(time.monotonic())
        self.accuracy.append(accuracy)

    def answer(
        self, folder: Path, weights: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]
    ) -> None:
        """Hand back what was noted and the last common weights."""
        held: dict[str, Any] = {n: t.detach().numpy() for n, t in dict(weights).items()}
        np.savez(folder / "answer.npz", **held)
        noted = json.dumps({"ends": self.ends, "accuracy": self.accuracy})
        write_atomic(folder / "answer.json", noted.encode(), durable=False)


def begin(folder: str) -> tuple[Work, Clock]:
    """What every contender does first: one thread, then its work."""
    torch.set_num_threads(1)
    return Work(Path(folder)), Clock()

"""Shared set-up: one thread, a cache of its own, and a world in which losses are parabolas."""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# As on a system where `resource`, `fcntl` and `mallopt` are missing; processes inherit it.
if os.environ.get("FEDLOOM_BLOCKED") == "1":
    place = Path(__file__).with_name("blocked")
    runpy.run_path(str(place / "sitecustomize.py"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])

# Before anything imports torch: xdist workers must not fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault(
    "FEDLOOM_CACHE",
    # Windows has no such numbers, and a temporary folder for each user.
    str(Path(tempfile.gettempdir()) / f"fedloom-test-cache-{getattr(os, 'getuid', str)()}"),
)

# Before anything is trained: torch counts its devices then. A test that forks does without.
if os.environ.get("FEDLOOM_PRETEND") != "0":
    import fedloom.testing.pretend

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from fedloom.cli.main import main
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.method import Method
from fedloom.core.payload import Payload
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.testing import small_world

# How long drawing an example takes says something about the machine only.
settings.register_profile("fedloom", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedloom")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
if SHARED.is_dir():
    os.environ.setdefault("FEDLOOM_DATA", str(SHARED))
torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests to `make test-all`; pytest's last line says how many were deselected."""
    if os.environ.get("FEDLOOM_ALL") == "1":
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


class Scalar(nn.Module):
    """The body is one number w, the head another one, b; what comes out is (w + b, curvature)."""

    def __init__(self, w: float, b: float = 0.0) -> None:
        super().__init__()
        self.body = _Add(w)
        self.head = _Add(b)


class _Add(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0] + self.value, x[:, 1]], dim=1)


class Parabolas:
    """Client k's loss is curvature_k / 2 * (w + b - a_k)^2 on n_k equal samples, a batch each."""

    def __init__(self, a: list[float], n: list[int], curvature: list[float] | None = None) -> None:
        curves = curvature or [1.0] * len(a)
        rows = [np.arange(sum(n[:k]), sum(n[: k + 1])) for k in range(len(n))]
        data = Dataset(
            name="parabolas",
            x=torch.tensor([[0.0, c] for c, m in zip(curves, n, strict=True) for _ in range(m)]),
            y=torch.tensor(
                [float(target) for target, m in zip(a, n, strict=True) for _ in range(m)]
            ),
            domain=torch.zeros(sum(n), dtype=torch.int64),
            test=torch.zeros(sum(n), dtype=torch.bool),
            classes=tuple(str(c) for c in range(int(max(a)) + 1)),
            domains=("one",),
        )
        none = np.arange(0)
        self.federation = Federation(data, tuple(Client(r, none, none) for r in rows))

    def worker(
        self, method: Method, w: float, b: float | None = None, **training: object
    ) -> ClientWorker:
        """A worker with this world. Without `b` the head is fixed at 0."""
        model = Scalar(w, b or 0.0)
        model.head.value.requires_grad_(b is not None)
        return ClientWorker(
            method, self.federation, model, Training(**{"batch": 1000, **training}), seed=0
        )

    def run(
        self,
        method: Method,
        w: float,
        *,
        lr: float,
        steps: int,
        rounds: int = 1,
        b: float | None = None,
        **schedule: object,
    ) -> tuple[Payload, list[Payload]]:
        """Server and client states after some rounds. Without `b` the head is fixed at 0."""
        worker = self.worker(method, w, b, lr=lr, steps=steps)
        executor = Inplace(worker)
        engine = Engine(worker, executor, Schedule(rounds=rounds, **schedule))
        engine.run()
        executor.close()
        return engine.server, [engine.store.get(k) for k in range(len(self.federation))]


@pytest.fixture
def parabolas(monkeypatch: pytest.MonkeyPatch) -> type[Parabolas]:
    """Worlds where the cross-entropy is a parabola, so that every number can be found by hand."""

    def parabola(logits: Tensor, y: Tensor, class_weights: None = None) -> Tensor:
        return (logits[:, 1] / 2 * (logits[:, 0] - y) ** 2).mean()

    monkeypatch.setattr(F, "cross_entropy", parabola)
    return Parabolas


@pytest.fixture(scope="session")
def tiny_vit(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a small random ViT, for 32x32 images by default; options change its config."""
    transformers = pytest.importorskip(
        "transformers", reason="the extra 'encoders' is not installed"
    )
    root, made = tmp_path_factory.mktemp("vits"), {}

    def save(**options: int) -> Path:
        small = {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 24,
        }
        config = {**small, "image_size": 32, "patch_size": 8, **options}
        token = json.dumps(config)
        if token not in made:
            made[token] = root / str(len(made))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                transformers.ViTModel(
                    transformers.ViTConfig(**config), add_pooling_layer=False
                ).save_pretrained(made[token])
            side = {"height": config["image_size"], "width": config["image_size"]}
            told = {"size": side, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2}
            (made[token] / "preprocessor_config.json").write_text(json.dumps(told))
        return made[token]

    return save


@pytest.fixture
def place() -> Callable[..., ClientWorker]:
    """A worker in the contract's small world, which has BatchNorm and dropout.

    The world has four clients, three classes, and a fourth class that no client has.
    """

    def make(method: Method, data: Federation | None = None, **training: object) -> ClientWorker:
        settings = Training.model_validate({**method.traits.training, "batch": 8, **training})
        return small_world.place(method, data, settings)

    return make


@pytest.fixture
def fedloom(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path):
    """Call the command line in this process; gives (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedloom", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            main()
            raise SystemExit(0)
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return call

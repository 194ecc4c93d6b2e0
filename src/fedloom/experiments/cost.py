"""What a table costs before it is run: runs, steps, floating-point operations and time."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..client.context import ClientContext
from ..client.scaling import without_scale
from ..client.training import Training
from ..core import private_torch
from ..core.device import find as find_devices
from ..core.lookup import make
from ..data.dataset import Dataset
from ..data.federation import Client, Federation
from ..engine.checkpoint import Store
from ..engine.config import Config, build
from ..engine.engine import Engine
from ..engine.networks import entries
from ..engine.schedule import Schedule
from ..engine.setup import Setup
from ..executors.inplace import Inplace
from ..models import Split, Task
from ..models import build as build_model
from .flops import flop_counter
from .plan import folder_of
from .sketch import Sketch, sketch
from .unseen import UNSEEN

BACKWARDS = 3  # a step's operations, of those of its forward pass
EVALUATED = 2  # a client's models per evaluation: before and after training, or its own and common


@dataclass(frozen=True)
class Speed:
    """How fast a machine is: products and convolutions, and what any operation costs besides."""

    name: str
    flops: float  # per second
    operation: float  # seconds
    told: str  # where these numbers come from

    def seconds(self, work: Work) -> float:
        """How long some work takes."""
        return work.flops / self.flops + work.operations * self.operation


@dataclass(frozen=True)
class Work:
    """What is to be computed."""

    steps: float = 0.0
    operations: float = 0.0  # calls of kernels
    flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.steps + other.steps,
            self.operations + other.operations,
            self.flops + other.flops,
        )


# Half of what the card's makers promise for fp32 without tensor cores is rarely reached; small
# networks wait for kernels to be launched, of which each takes about as long as said here.
A100 = Speed("an NVIDIA A100", 8e12, 1e-5, "8 TFLOP/s and 10 microseconds per operation assumed")


@dataclass
class Cost:
    """What the runs of a table that are not finished cost."""

    runs: int = 0
    finished: int = 0
    work: Work = field(default_factory=Work)
    unknown: dict[str, int] = field(default_factory=dict)  # why -> runs that are not counted

    def line(self, here: Speed, of: str = "cost") -> str:
        """The cost in a sentence."""
        parts = [f"{self.runs} runs to do"]
        if self.finished:
            parts[0] += f", {self.finished} finished"
        if self.runs > sum(self.unknown.values()):
            work = self.work
            parts.append(f"{amount(work.steps).strip()} steps, {amount(work.flops)}FLOP")
            for speed in (here, A100):
                parts.append(f"about {span(speed.seconds(work))} on {speed.name} ({speed.told})")
        line = "; ".join(parts)
        for reason, runs in self.unknown.items():
            line += f"; not counted are {runs} runs: {reason}"
        return f"{of}: {line}"

    def plain(self, here: Speed) -> dict[str, Any]:
        """The cost as plain values."""
        times = {speed.name: speed.seconds(self.work) for speed in (here, A100)}
        return {
            "runs": self.runs,
            "finished": self.finished,
            **asdict(self.work),
            "seconds": times,
            "assumed": {speed.name: speed.told for speed in (here, A100)},
            "unknown": self.unknown,
        }


def cost_of(configs: Sequence[Config], out: Path) -> Cost:
    """What is left to do of these runs, and what it costs; equal runs count once."""
    cost = Cost()
    seen: set[Path] = set()
    features: set[str] = set()
    for config in configs:
        folder = folder_of(out, config)
        if folder in seen:
            continue
        seen.add(folder)
        if (folder / "summary.json").exists():
            cost.finished += 1
            continue
        cost.runs += 1
        try:
            cost.work += _work_of(config, features)
        except Exception as error:  # whatever it is, a cost that is not known stops no table
            reason = str(error).rstrip(".")
            cost.unknown[reason] = cost.unknown.get(reason, 0) + 1
    return cost


def _work_of(config: Config, features: set[str]) -> Work:
    """The work of a run, with that of its encoder unless another run's has it done."""
    dealt = _sketched(_data_only(config))
    schedule = config.schedule
    share = (schedule.ratio + (schedule.ratio_max or schedule.ratio)) / 2
    rounds = schedule.rounds * share * _passes(config.method, json.dumps(config.hyper))
    evaluations = -(-schedule.rounds // schedule.eval_every) * EVALUATED
    nets = [_network(key) for key in _network_keys(config, dealt)]
    work = _encoding(config, dealt, features)
    for place, net in enumerate(nets):  # dealt out in turn, as if domains came in that order too
        train, test = dealt.train[place :: len(nets)], dealt.test[place :: len(nets)]
        work += _trained(config.training, train, rounds, net)
        work += Work(
            operations=evaluations * len(test) * net.operations,
            flops=evaluations * sum(test) * net.flops,
        )
    return work


def _trained(training: Training, sizes: Sequence[int], rounds: float, net: Work) -> Work:
    """The steps of clients of these sizes with this network."""
    steps = sum(training.planned(n, 1.0) for n in sizes)
    samples = float(sum(sizes) * training.epochs)
    if training.steps:
        samples = float(steps * training.batch)
    return Work(
        rounds * steps,
        rounds * steps * BACKWARDS * net.operations,
        rounds * samples * BACKWARDS * net.flops,
    )


def _encoding(config: Config, dealt: Sketch, features: set[str]) -> Work:
    """The pass of a frozen encoder over all samples, which happens once."""
    if not config.encoder or config.data_key() in features:
        return Work()
    features.add(config.data_key())
    total = Work()
    for name in config.encoder.split(","):
        one = _encoder(name.strip())
        images = dealt.samples * config.views
        total += Work(operations=images / 64 * one.operations, flops=images * one.flops)
    return total


def _data_only(config: Config) -> str:
    """The part of a config that says who has which samples, as a text."""
    return json.dumps(
        {
            "data": config.data,
            "partition": config.partition,
            "clients": config.clients,
            "validation": config.validation,
            "split": config.split,
            "merged_share": config.merged_share,
            "hold_out": config.hold_out,
            "new_clients": config.new_clients,
            "source": config.source.model_dump(mode="json"),
            "partitioning": config.partitioning,
            "execution": {"data_root": config.execution.data_root},
        },
        sort_keys=True,
    )


@lru_cache(maxsize=256)
def _sketched(data: str) -> Sketch:
    return sketch(build(json.loads(data)))


# ------------------------------------------------------------------------------ counting


class _Operations(private_torch.Mode):
    """Counts calls of kernels."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


@torch.no_grad()
def _counted(module: Any, sample: Tensor) -> Work:
    """What a network does with one sample."""
    module.eval()
    operations = _Operations()
    with flop_counter() as flops, operations:
        module(sample)
    return Work(operations=operations.count, flops=float(flops.get_total_flops()))


def _network_keys(config: Config, dealt: Sketch) -> list[str]:
    """What each of the config's networks is made from, as a text."""
    shape = list(dealt.shape)
    if config.encoder and not config.pixels:
        shape = [sum(_dim(name.strip()) for name in config.encoder.split(","))]
    several: Sequence[Mapping[str, Any]] = [{"model": config.model, **config.network}]
    if config.networks:
        several = entries(config.networks)
    keys = []
    for entry in several:
        told: Mapping[str, Any] = {
            "model": entry["model"],
            "network": {name: value for name, value in entry.items() if name != "model"},
            "shape": shape,
            "classes": dealt.classes,
            "vocabulary": dealt.vocabulary,
        }
        keys.append(json.dumps(told, sort_keys=True))
    return keys


@lru_cache(maxsize=64)
def _network(key: str) -> Work:
    """One sample's forward pass through the network of a config."""
    told = json.loads(key)
    if told["network"].get("vit") in UNSEEN:  # beside which the prompts hardly count
        return _counted(*UNSEEN[told["network"]["vit"]].made())
    task = Task(tuple(told["shape"]), told["classes"], told["vocabulary"])
    with torch.random.fork_rng(devices=[]):
        model = build_model(told["model"], task, **told["network"])
    sample = torch.zeros(1, *told["shape"])
    if told["vocabulary"]:
        sample = sample.long()
    return _counted(model, sample)


def _dim(name: str) -> int:
    """How many features a frozen encoder gives."""
    from ..encoders import image

    return UNSEEN[name].dim if name in UNSEEN else image(name).dim


@lru_cache(maxsize=16)
def _encoder(name: str) -> Work:
    """One image's way through a frozen encoder."""
    from ..encoders import image

    if name in UNSEEN:
        return _counted(*UNSEEN[name].made())
    encoder = image(name)
    first = encoder.base or encoder
    side = max(first.preprocess.size, 64)
    blank = torch.zeros(1, 3, side, side, dtype=torch.uint8)
    work = _counted(first.module, first.preprocess(blank))
    if encoder.base:  # whose features it goes on from
        work += _counted(encoder.module, torch.zeros(1, encoder.base.dim))
    return work


class _Passes(private_torch.Mode):
    """Counts samples on their way through the first layer of the small network, and back."""

    samples = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.convolution.default and args[1].shape[1] == 1:
            self.samples += len(args[0])
        elif function is torch.ops.aten.convolution_backward.default and args[2].shape[1] == 1:
            self.samples += (BACKWARDS - 1) * len(args[0])
        return function(*args, **(kwargs or {}))


@lru_cache(maxsize=128)
def _passes(method: str, hyper: str) -> float:
    """How many times as often as in FedAvg a method's local training goes through the network.

    It is counted on a small network. Methods on features of a dual encoder train heads, whose work
    hardly counts.
    """
    traits = make(method, json.loads(hyper)).traits
    if not traits.trains:
        return 0.0
    if traits.world == "dual":
        return 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about two clients, who are not the user's
        return _local_passes(method, json.loads(hyper)) / _local_passes("fedavg", {})


def _local_passes(method: str, hyper: Mapping[str, Any]) -> float:
    """The samples that go through the network in a client's second round in a small world."""
    given = {
        "method": method,
        "hyper": hyper,
        "partition": "given",
        "model": "given",
        "training": {"batch": 8, "epochs": 1, "augment": []},
    }
    with torch.random.fork_rng(devices=[]):
        setup = Setup.from_config(build(given), federation=_small_world(), model=_small_network())
    worker, store = setup.worker, Store(None)
    executor = Inplace(worker)
    try:
        engine = Engine(worker, executor, Schedule(rounds=1), [], store)
        engine.run(None)
        server = engine.server.replace(round=2)
        down = worker.arrived(setup.method.download(server, 0))
        local = ClientContext(worker, 0, 2)
        worker.adopt(0, worker.arrived(server))
        state = without_scale(worker.arrived(store.get(0)))
        with _Passes() as passes:
            setup.method.client(down, state, local)
    finally:
        executor.close()
    return passes.samples


def _small_network() -> Split:
    body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    return Split(body, nn.Linear(8 * 64, 3), 8 * 64)


def _small_world() -> Federation:
    """Two clients of two domains with sixteen small images each."""
    n = 64
    rows = np.arange(n)
    data = Dataset(
        name="small",
        x=(torch.arange(n * 64).reshape(n, 1, 8, 8) % 251).to(torch.uint8),
        y=torch.arange(n) % 3,
        domain=torch.arange(n) // (n // 2),
        test=torch.zeros(n, dtype=torch.bool),
        classes=("one", "two", "three"),
        domains=("left", "right"),
    )
    left = Client(rows[:16], rows[16:24], rows[24:32], "left")
    right = Client(rows[32:48], rows[48:56], rows[56:], "right")
    return Federation(data, (left, right))


# ------------------------------------------------------------------------------ speeds and words


@lru_cache(maxsize=4)
def this_machine(device: str = "cpu") -> Speed:
    """How fast this machine is: the best of some convolutions, on all of its cores or on a card."""
    place = find_devices(device)[0].torch
    x = torch.zeros(8, 64, 32, 32, device=place)
    weight = torch.zeros(64, 64, 3, 3, device=place)
    operations = 2 * 8 * 64 * 64 * 9 * 32 * 32
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        F.conv2d(x, weight, padding=1).sum().item()
        times.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    usual = 2 / 3 * operations / min(times)  # networks have other layers too
    name = f"this machine's {device}"
    if device == "cpu":
        usual *= os.cpu_count() or 1
        name = "this machine"
    return Speed(
        name, usual, 1e-5, f"{amount(usual)}FLOP/s, two thirds of what a convolution reaches"
    )


def amount(number: float) -> str:
    """A large number in short: 1.2 M, 35 T."""
    for size, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} "


def span(seconds: float) -> str:
    """A time in the unit that suits it."""
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 90:
        return "2 minutes"
    return "a minute"

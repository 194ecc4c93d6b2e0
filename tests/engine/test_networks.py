"""Clients with networks that differ."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom
from fedloom.client.networks import Named, Networks
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make, methods_with, names
from fedloom.core.method import Method
from fedloom.data.federation import Client, Federation
from fedloom.deploy import export, load, trained
from fedloom.engine.config import build, parse_set
from fedloom.engine.engine import Engine
from fedloom.engine.networks import different, owned
from fedloom.engine.schedule import Schedule
from fedloom.engine.setup import Setup
from fedloom.executors.base import Executor
from fedloom.executors.inplace import Inplace
from fedloom.executors.pool import Pool
from fedloom.executors.stacked import Vmap
from fedloom.experiments.cost import cost_of
from fedloom.experiments.flops import flops_per_round
from fedloom.models import Split
from fedloom.testing.small_world import Trace, federation, network

ACCEPTING = ["fedpcl", "fedproto", "fedsa", "fedtgp", "lg-fedavg", "local"]
SMALL: dict[str, Any] = {"limit_train": 4, "limit_test": 4, "rounds": 2}
THREE: dict[str, Any] = {
    "networks": "cnn,resnet10,mlp",
    "hidden": [64],
    "features": 64,
    "network.width": 8,
}


def flat(width: int = 96, layers: type[nn.Module] = nn.ReLU) -> Split:
    """A network for the small world that is nothing like its usual one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, width), layers())
        return Split(body, nn.Linear(width, 4), width)


def mixed(method: Method, *modules: nn.Module) -> ClientWorker:
    """A worker in the small world; these networks, or two that differ, are dealt out in turn."""
    modules = modules or (network(), flat())
    named = tuple(Named(f"number {i}", {}) for i in range(len(modules)))
    turns = tuple(k % len(modules) for k in range(4))
    training = Training(**{**method.traits.training, "batch": 8})
    return ClientWorker(method, federation(), Networks(modules, named, turns), training, seed=7)


def traced(worker: ClientWorker, executor: Executor, rounds: int = 2) -> Trace:
    """What is left of a run."""
    seen = Trace()
    try:
        Engine(worker, executor, Schedule(rounds=rounds), [seen]).run()
    finally:
        executor.close()
    return seen


# ------------------------------------------------------------------------------ who accepts them


def test_these_methods_accept_them() -> None:
    assert methods_with(lambda traits: traits.networks != "same") == ACCEPTING


@pytest.mark.parametrize("name", ACCEPTING)
def test_a_method_that_accepts_them_gives_the_same_in_a_pool(name: str) -> None:
    method = make(name)
    worker = mixed(method)
    seen = traced(worker, Inplace(worker))
    assert len(worker.crew) == 2
    other = mixed(method)
    pooled = traced(other, Pool(other, 2))
    assert pooled.states == seen.states
    assert pooled.metrics == seen.metrics
    assert pooled.server.encode() == seen.server.encode()
    kept = [len(state) for state in seen.states[-1]]
    assert kept[0] == kept[2] != kept[1] == kept[3]  # each has weights of its own network


@pytest.mark.parametrize("name", sorted(set(names()) - set(ACCEPTING)))
def test_all_others_refuse_and_name_those_that_accept(name: str) -> None:
    with pytest.raises(FedloomError, match="all need the same network.*" + ", ".join(ACCEPTING)):
        build({"method": name}, {"networks": "cnn,mlp"})
    with pytest.raises(FedloomError, match="all need the same network"):
        mixed(make(name))


def test_a_client_alone_does_as_in_a_run_in_which_all_have_its_network() -> None:
    method = make("local")
    worker = mixed(method)
    seen = traced(worker, Inplace(worker))
    for place, module in enumerate((network(), flat())):
        training = Training(batch=8)
        alike = ClientWorker(method, federation(), module, training, seed=7)
        one = traced(alike, Inplace(alike))
        for k in (place, place + 2):
            assert seen.states[-1][k] == one.states[-1][k]


def test_a_stack_holds_clients_of_one_network_only() -> None:
    # Two networks whose tensors have the same shapes: only the activation differs.
    method = make("local")
    one, other = flat(16), flat(16, nn.Tanh)
    plain, stacked = mixed(method, one, other), mixed(method, one, other)
    seen, together = traced(plain, Inplace(plain)), traced(stacked, Vmap(stacked))
    before = [line["personal"]["accuracy_mean"] for line in seen.metrics]
    assert [line["personal"]["accuracy_mean"] for line in together.metrics] == pytest.approx(before)
    for k in range(4):
        a, b = seen.states[-1][k], together.states[-1][k]
        decoded = [
            fedloom.core.payload.Payload.decode(bytes(data)).tree("model") for data in (a, b)
        ]
        for name, tensor in decoded[0].items():
            torch.testing.assert_close(decoded[1][name], tensor, atol=1e-5, rtol=0)


# ------------------------------------------------------------------------------ refusals


def test_features_of_other_widths_are_refused_where_they_are_compared() -> None:
    with pytest.raises(FedloomError, match="number 0 has 96, number 1 has 20"):
        mixed(make("fedproto"), network(), flat(20))
    assert len(mixed(make("local"), network(), flat(20)).crew) == 2


@pytest.mark.parametrize("name", ["fedsa", "fedtgp"])
def test_weights_that_travel_by_a_setting_are_refused(name: str) -> None:
    with pytest.raises(FedloomError, match="send weights, and those of number 0, number 1 do not"):
        mixed(make(name, {"share": True}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"networks": 5}, "networks is a list of models' names"),
        ({"networks": [{"hidden": [64]}]}, "networks is a list of models' names"),
        ({"networks": "cnn,mpl"}, "did you mean 'mlp'"),
        ({"networks": ["cnn", {"model": "mlp", "hiden": 3}]}, "did you mean 'hidden'"),
        ({"networks": "cnn,mlp", "model": "cnn"}, "say one or the other"),
        ({"networks": "cnn,mlp", "stem": "small"}, "belongs to the model resnet18"),
    ],
)
def test_what_names_no_networks_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(FedloomError, match=words):
        build({"method": "local"}, given)


def test_a_domain_without_a_network_is_refused() -> None:
    none = np.arange(0)
    world = federation()
    with pytest.raises(FedloomError, match="unknown domain among networks 'bright'"):
        owned({"plain": {"model": "cnn"}, "brigt": {"model": "mlp"}}, world)
    nowhere = Federation(world.data, (Client(np.arange(3), none, none),))
    with pytest.raises(FedloomError, match="client 0 has samples of several domains"):
        owned({"plain": {"model": "cnn"}}, nowhere)
    elsewhere = Federation(world.data, (Client(none, none, none), world.clients[1]))
    assert owned({"plain": {"model": "cnn"}, "bright": {"model": "mlp"}}, elsewhere) == [0, 1]


# ------------------------------------------------------------------------------ naming them


def test_options_go_to_all_networks_that_have_them() -> None:
    named = ["cnn", {"model": "resnet10", "width": 4}, "mlp"]
    config = build({"method": "local"}, {"networks": named, "width": 8, "hidden": [20]})
    assert config.networks == [
        {"model": "cnn", "width": 8, "features": 512, "norm": False},
        {"model": "resnet10", "width": 4, "norm": "batch"},
        {"model": "mlp", "hidden": [20]},
    ]
    assert (config.model, config.network) == ("cnn,resnet10,mlp", {})
    again = build(json.loads(config.model_dump_json(exclude_none=True)))
    assert again.hash() == config.hash()
    later = build(json.loads(config.model_dump_json(exclude_none=True)), {"width": 2})
    assert [one.options.get("width") for one in different(later.networks or [])] == [2, 2, None]


def test_one_network_under_two_names_is_the_model() -> None:
    config = build({"method": "fedavg"}, {"networks": ["mlp", {"model": "mlp"}], "hidden": [20]})
    assert config.hash() == build({"method": "fedavg", "model": "mlp"}, {"hidden": [20]}).hash()


def test_they_are_dealt_out_in_turn_or_by_domain() -> None:
    world = federation()  # of the domains plain, bright, plain, bright
    in_turn = build({"method": "local"}, parse_set(["networks=cnn,mlp,cnn"])).networks
    assert in_turn and len(different(in_turn)) == 2
    assert owned(in_turn, world) == [0, 1, 0, 0]
    by_domain = parse_set(['networks={bright = "cnn", plain = "mlp"}'])
    config = build({"method": "local"}, by_domain)
    assert config.networks
    assert owned(config.networks, world) == [1, 0, 1, 0]


def test_python_gives_modules_and_names() -> None:
    world = federation()
    # The usual cnn needs larger images than these.
    run = fedloom.run("local", world, networks=[flat(20), "mlp", flat(30)], rounds=1, hidden=[8])
    assert [member["network"] for member in run.federation["clients"]] == [
        "given",
        "mlp",
        "given",
        "given",
    ]
    assert run.config.model == "given,mlp"
    with pytest.raises(FedloomError, match="only the Python script"):
        Setup.from_config(run.config, federation=world)


# ------------------------------------------------------------------------------ runs


DIES = """
import os, signal, fedloom

class Killer:
    def after_round(self, engine, record):
        return None

    def after_client(self, engine, done, total):
        if engine.round == 2 and done == 2:
            os.kill(os.getpid(), signal.SIGKILL)

fedloom.run({method!r}, "digits4", out={out!r}, callbacks=[Killer()], **{settings!r})
"""


def test_killed_and_resumed_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """fedproto with cnn, resnet10 and mlp, stopped by SIGKILL in the middle of a round."""
    settings = {**SMALL, **THREE, "rounds": 3, "clients": 4}
    calm = fedloom.run("fedproto", "digits4", out=tmp_path / "calm", **settings)
    script = DIES.format(method="fedproto", out=str(tmp_path / "killed"), settings=settings)
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert not (tmp_path / "killed/summary.json").exists()
    fedloom.resume(tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")
    assert len(contents(tmp_path / "calm")) > 5
    assert [m["network"] for m in calm.federation["clients"]] == ["cnn", "resnet10", "mlp", "cnn"]


def contents(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in (folder / "checkpoint").iterdir()}
    return files | {"metrics": (folder / "metrics.jsonl").read_bytes()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fedloom.Run:
    """Two rounds of fedproto on digits4 with three networks."""
    out = tmp_path_factory.mktemp("three") / "run"
    return fedloom.run("fedproto", "digits4", out=out, clients=4, **SMALL, **THREE)


def test_a_clients_model_is_exported_with_its_own_network(
    finished: fedloom.Run, tmp_path: Path
) -> None:
    assert finished.folder
    for k, model in enumerate(("cnn", "resnet10", "mlp")):
        served = trained(finished.folder, k)
        whole, description = load(export(served, tmp_path / str(k)))
        assert description["model"] == model
        x = served.raw.take(torch.arange(6))
        torch.testing.assert_close(whole(x), served.predict(x), atol=1e-5, rtol=1e-5)


def test_operations_are_those_of_each_clients_own_network(finished: fedloom.Run) -> None:
    images = Setup.from_config(finished.config).federation
    mixed = flops_per_round(finished, images)
    alone = []
    for place in range(3):
        clients = list(images.clients)
        for k in range(4):
            if k % 3 != place:
                none = np.arange(0)
                clients[k] = Client(none, none, clients[k].test, clients[k].domain)
        alone.append(flops_per_round(finished, Federation(images.data, tuple(clients))))
    assert all(alone)
    assert mixed == pytest.approx(sum(alone))  # type: ignore[arg-type]
    assert len({round(number or 0) for number in alone}) == 3


def test_what_a_run_costs_is_counted_by_network(tmp_path: Path) -> None:
    def flops(**settings: Any) -> float:
        config = build({"method": "local"}, {**SMALL, "clients": 4, **settings})
        return cost_of([config], tmp_path).work.flops

    both = flops(networks="cnn,mlp")
    assert flops(model="mlp") < both < flops(model="cnn")
    assert both == pytest.approx((flops(model="mlp") + flops(model="cnn")) / 2)

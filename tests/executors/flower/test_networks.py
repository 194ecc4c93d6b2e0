"""Sites whose networks differ."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedloom
from fedloom.core.errors import FedloomError
from fedloom.engine.config import build
from fedloom.executors.flower import client, server
from fedloom.executors.flower.settings import Settings, flat, parse
from tests.executors.flower.test_app import SMALL, federation, hospitals, pictures_of

MIXED = {**SMALL, "networks": ["cnn", {"model": "mlp", "hidden": [20, 16]}], "network.width": 4}


def test_networks_survive_flowers_flat_keys() -> None:
    for named in ("cnn,mlp", {"photo": "cnn", "street": {"model": "mlp", "hidden": [9]}}):
        config = build({"method": "local"}, {"networks": named})
        again, _ = parse(json.loads(json.dumps(flat(config, Settings()))))
        assert again.what() == config.what()
        assert again.networks == config.networks


def test_sites_take_what_the_run_names_as_in_one_process(tmp_path: Path) -> None:
    small = {key: value for key, value in MIXED.items() if key != "width"}
    config = build({"method": "fedproto", "clients": 4, "partition": "domains"}, small)
    grid, settings = federation(tmp_path, config, {k: {"partition-id": k} for k in range(4)})
    made = server.serve(grid, config, settings)
    alone = fedloom.run("fedproto", partition="domains", clients=4, **small)
    assert [m["personal"] for m in made.metrics] == [m["personal"] for m in alone.metrics]


def sites(tmp_path: Path, method: str, networks: list[str]) -> tuple:
    """The grid of sites with their own files, each of which names its own network."""
    config = build({"method": method, "clients": 2, "data": "own", "model": "mlp"}, {"hidden": [8]})
    nodes = {}
    for k, network in enumerate(networks):
        data = pictures_of(tmp_path / f"secret-{k}" / f"ward-{k}.npz", k)
        nodes[k] = {"partition-id": k, "data": data, "network": network}
    return config, nodes, *federation(tmp_path, config, nodes)


def test_each_site_names_its_own(tmp_path: Path) -> None:
    named = ["{model = 'mlp', hidden = [8]}", "{model = 'mlp', hidden = [30, 8]}"]
    config, nodes, grid, settings = sites(tmp_path, "fedproto", named)
    made = server.serve(grid, config, settings)
    assert len(made.metrics) == 10 and made.metrics[-1]["lost"] == []
    for k, layers in ((0, 1), (1, 2)):
        context = SimpleNamespace(node_config=nodes[k], run_config=grid.run_config)
        tensors = client.from_config(context).worker.tensors
        assert len([name for name in tensors if name.startswith("body")]) == 2 * layers


def test_features_of_another_width_are_refused_by_the_server(tmp_path: Path) -> None:
    named = ["mlp", "{model = 'mlp', hidden = [12]}"]
    config, _, grid, settings = sites(
        tmp_path, "fedproto", ["{model = 'mlp', hidden = [8]}", named[1]]
    )
    made = server.serve(grid, config, settings)
    assert all(line["lost"] == [1] for line in made.metrics)


def test_a_method_with_one_network_lets_no_site_have_another(tmp_path: Path) -> None:
    _, nodes, grid, _ = sites(tmp_path, "fedavg", ["mlp", "mlp"])
    context = SimpleNamespace(node_config=nodes[1], run_config=grid.run_config)
    with pytest.raises(FedloomError, match="clients of fedavg all need the same network"):
        client.from_config(context)


def test_a_site_with_its_own_samples_has_the_network_of_its_number(tmp_path: Path) -> None:
    folder = hospitals(
        tmp_path,
        "fedproto",
        {"networks": ["mlp", {"model": "mlp", "hidden": [30, 8]}], "hidden": [8]},
    )
    assert fedloom.Run.load(folder).metrics[-1]["lost"] == []

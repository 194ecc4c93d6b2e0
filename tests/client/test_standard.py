"""Frozen features are standardised with statistics that clients report once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedloom
from fedloom.client.standard import (
    GROUP,
    LENGTH,
    OFFSET,
    joined,
    merged,
    reported,
    standard_in,
    told,
    with_group,
)
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.data.dataset import Dataset
from fedloom.data.federation import Client, Federation, federate
from fedloom.deploy import export, load, personalise, predict, trained
from fedloom.engine.checkpoint import Store
from fedloom.engine.config import Config, build, stored
from fedloom.engine.setup import Setup
from fedloom.engine.swings import swings, warn_of_swings
from fedloom.executors.flower import client, server
from fedloom.executors.flower.grid import InProcessGrid
from fedloom.executors.flower.settings import Settings, flat

WIDTH = 6
SETTINGS: dict[str, Any] = {"model": "linear", "rounds": 3, "batch": 8, "seed": 1}


def vectors(n: int = 120, encoder: str | None = "some-encoder") -> Dataset:
    """Features of very different scales, of which only the smallest tells the class."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = torch.randn(n, WIDTH, generator=rng)
    x[:, 0] += 3 * (y == 0) - 3 * (y == 1)
    scale = torch.tensor([0.1, 1.0, 50.0, 1.0, 1.0, 0.0])
    x = x * scale + torch.tensor([5.0, 0.0, -100.0, 0.0, 0.0, 2.0])
    test = torch.arange(n) % 4 == 0
    return Dataset(x, y, domain=torch.arange(n) % 2, test=test, encoder=encoder)


@pytest.fixture
def world() -> Federation:
    return federate(vectors(), "dirichlet", clients=4, beta=1.0, seed=0)


def test_reports_are_merged_exactly() -> None:
    x = 100 + torch.randn(500, 4, generator=torch.Generator().manual_seed(1))
    parts = [reported([part], 4) for part in x.split([1, 200, 99, 200])]
    standard = merged(parts)
    exact = x.double()
    deviation = exact.std(0, unbiased=False)
    assert torch.allclose(standard.mean.double(), exact.mean(0), rtol=1e-7, atol=0)
    assert torch.allclose(
        standard.scale.double(), (LENGTH / 4) ** 0.5 / deviation, rtol=1e-6, atol=0
    )
    # Whoever reports together says the same as all apart, to the last bit of a float.
    together = merged([reported([x[:300], x[300:]], 4)])
    assert torch.equal(standard.mean, together.mean)
    assert torch.equal(standard.scale, together.scale)
    assert float(standard(x).square().sum(1).mean()) == pytest.approx(LENGTH, rel=1e-3)


def test_a_feature_that_never_varies_is_not_blown_up() -> None:
    x = vectors().x
    assert isinstance(x, torch.Tensor)
    standard = merged([reported([x], WIDTH)])
    assert standard(x)[:, 5].abs().max() == 0
    assert standard.scale[5] < 40 * standard.scale[1]
    one = merged([reported([x[:1]], WIDTH)])  # a single sample: nothing is known of its spread
    assert torch.isfinite(one(x)).all()


def test_sums_that_no_samples_have_are_refused() -> None:
    honest = reported([torch.ones(4, 2)], 2)
    lie = honest.replace(squares=torch.full((2,), 3.0, dtype=torch.float64))
    with pytest.raises(FedloomError, match="no samples can have"):
        merged([honest, lie])


def test_features_learn_where_they_did_not(world: Federation) -> None:
    last = {}
    for standardise in (False, True):
        run = fedloom.run("fedavg", world, standardise=standardise, **SETTINGS)
        last[standardise] = run.summary["personal"]["accuracy_weighted"]["last"]
    assert last[True] > 0.6 > last[False] + 0.2


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "scaffold", "fedproto", "ditto", "local"])
def test_the_same_on_every_executor_and_after_a_stop(
    name: str, world: Federation, tmp_path: Path
) -> None:
    usual = fedloom.run(name, world, out=tmp_path / "a", report=False, **SETTINGS)
    assert usual.config.standardise is True
    pool = fedloom.run(name, world, executor="pool", **SETTINGS)
    assert pool.metrics == usual.metrics
    stacked = fedloom.run(name, world, executor="vmap", **SETTINGS)
    for mine, theirs in zip(stacked.metrics, usual.metrics, strict=True):
        assert mine["personal"]["nll_mean"] == pytest.approx(
            theirs["personal"]["nll_mean"], abs=1e-4
        )

    class Stop:
        def after_round(self, engine: Any, record: Any) -> None:
            if engine.round == 2:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fedloom.run(name, world, out=tmp_path / "b", report=False, callbacks=[Stop()], **SETTINGS)
    fedloom.run(name, world, out=tmp_path / "b", report=False, **SETTINGS)
    lines = [(tmp_path / f / "metrics.jsonl").read_bytes() for f in "ab"]
    assert lines[0] == lines[1]


def test_it_is_counted_once_in_each_direction(world: Federation) -> None:
    runs = {s: fedloom.run("fedavg", world, standardise=s, **SETTINGS) for s in (False, True)}
    plain, standard = runs[False].metrics, runs[True].metrics
    assert standard[0]["floats"]["down"] == plain[0]["floats"]["down"] + 2 * WIDTH
    assert standard[0]["bytes"]["up"] >= plain[0]["bytes"]["up"] + 4 * 2 * WIDTH * 8
    assert standard[0]["bytes"]["down"] >= plain[0]["bytes"]["down"] + 4 * 2 * WIDTH * 4
    for mine, theirs in zip(standard[1:], plain[1:], strict=True):
        assert mine["bytes"] == theirs["bytes"] and mine["floats"] == theirs["floats"]


def test_without_it_runs_are_what_they_were(world: Federation) -> None:
    """Off, a run on features is the run on the same vectors without an encoder."""
    plain = federate(vectors(encoder=None), "dirichlet", clients=4, beta=1.0, seed=0)
    before = fedloom.run("fedavg", plain, **SETTINGS)
    assert before.config.standardise is False
    off = fedloom.run("fedavg", world, standardise=False, **SETTINGS)
    assert off.metrics == before.metrics


def test_a_client_alone_uses_its_own_statistics_and_sends_nothing(world: Federation) -> None:
    run = fedloom.run("local", world, **SETTINGS)
    assert run.summary["bytes"]["up"]["total"] == run.summary["bytes"]["down"]["total"] == 0


def test_late_joiners_change_nothing(world: Federation, tmp_path: Path) -> None:
    settings = {**SETTINGS, "rounds": 6, "ratio": 0.25}
    seen = []

    class Watch:
        def after_round(self, engine: Any, record: Any) -> None:
            standard = standard_in(engine.server)
            assert standard is not None
            seen.append((int(engine.server.tensor("known").sum()), standard.mean, standard.scale))

    fedloom.run("fedavg", world, callbacks=[Watch()], **settings)
    assert seen[-1][0] > seen[0][0], "somebody has to join late"
    for _, mean, scale in seen:
        assert torch.equal(mean, seen[0][1]) and torch.equal(scale, seen[0][2])


def test_whoever_remembers_is_not_told_again() -> None:
    method = make("fedavg")
    reports = {k: Payload(size=3, **{GROUP: reported([torch.randn(3, 2)], 2)}) for k in range(2)}
    server = joined(method, Payload(sizes=torch.zeros(2, dtype=torch.int64)), reports)
    assert server.tensor("sizes").tolist() == [3, 3]
    down = Payload(model=1.0)
    assert standard_in(told(down, server, Payload())) is not None
    assert told(down, server, Payload(anything=1)) is down
    assert told(down, Payload(), Payload()) is down


# ------------------------------------------------------------------------------ the setting


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, False),
        ({"encoder": "vit-mini"}, True),
        ({"encoder": "vit-mini", "standardise": False}, False),
        ({"encoder": "vit-mini", "pixels": True, "model": "vpt"}, False),
        ({"encoder": "vit-mini", "method": "local"}, True),
        ({"encoder": "vit-mini", "method": "fedmix"}, False),
        ({"encoder": "lite-clip", "method": "zeroshot"}, False),
        ({"encoder": "vit-mini", "method": "fedpcl"}, True),
        ({"encoder": "vit-mini", "method": "fedpcl", "hyper": {"perturb": "dp"}}, False),
        ({"encoder": "vit-mini", "format": 1}, False),  # the config of a run from before
    ],
)
def test_auto(given: dict[str, Any], wanted: bool) -> None:
    assert build(given).standardise is wanted
    assert build(given).toml().count(f"standardise = {str(wanted).lower()}") == 1


def test_off_leaves_the_names_of_runs_as_they_were() -> None:
    old = build({"encoder": "vit-mini", "standardise": False})
    body = old.what()
    body.pop("standardise")
    assert stored(body | {"format": 1}).hash() == old.hash()
    assert build({"encoder": "vit-mini"}).hash() != old.hash()
    assert build({}).hash() == build({"standardise": False}).hash()
    assert Config().standardise == "auto"


def test_where_it_makes_no_sense_it_is_refused(world: Federation) -> None:
    with pytest.raises(FedloomError, match="zeroshot wants features as they are"):
        build({"method": "zeroshot", "standardise": True})
    with pytest.raises(FedloomError, match="standardise is for features and other vectors"):
        fedloom.run("fedavg", "digits4", clients=4, rounds=1, limit_train=1, standardise=True)


# ------------------------------------------------------------------------------ in use


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two domains with light and dark images."""
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for domain, shift in (("north", 0), ("south", 40)):
        for label, grey in (("dark", 20), ("light", 150)):
            folder = tmp_path / "pictures" / domain / label
            folder.mkdir(parents=True)
            for i in range(10):
                noise = rng.integers(0, 30, (8, 8, 3))
                Image.fromarray((grey + shift + noise).astype(np.uint8)).save(folder / f"{i}.png")
    return tmp_path / "pictures"


@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_an_exported_model_standardises_too(name: str, pictures: Path, tmp_path: Path) -> None:
    run = fedloom.run(
        name, str(pictures), rounds=2, encoder="vit-mini", out=tmp_path / "run", report=False
    )
    assert run.config.standardise is True
    served = trained(tmp_path / "run", client=1)
    images = served.raw.take(torch.arange(20))
    features = served.worker.samples(torch.arange(20))
    wanted = served.predict(features)
    export(served, tmp_path / "model")
    module, about = load(tmp_path / "model")
    assert about["input"]["standardised"] is True
    with torch.no_grad():
        assert torch.allclose(module(images), wanted, atol=1e-4)
    own = predict(tmp_path / "run", pictures / "south", client=1)
    assert predict(tmp_path / "model", pictures / "south") == own


def test_a_newcomer_gets_what_the_others_have(pictures: Path, tmp_path: Path) -> None:
    fedloom.run(
        "fedavg-ft", str(pictures), rounds=2, encoder="vit-mini", out=tmp_path / "run", report=False
    )
    checkpoint = Store(tmp_path / "run" / "checkpoint").load()
    assert checkpoint.server is not None
    standard = standard_in(checkpoint.server)
    made = personalise(tmp_path / "run", str(pictures / "north"))
    assert standard is not None and made.worker.standard is not None
    assert torch.equal(made.worker.standard.mean, standard.mean)


def test_a_flower_federation_gives_the_same_numbers(pictures: Path, tmp_path: Path) -> None:
    config = build({"data": str(pictures), "encoder": "vit-mini"}, {"rounds": 3, "clients": 2})
    settings = Settings(out=str(tmp_path / "run"), wait=0, timeout=5)
    nodes = {k: {"partition-id": k, "state": str(tmp_path / "state")} for k in range(2)}
    grid = InProcessGrid(client.app, nodes, flat(config, settings))
    made = server.serve(grid, config, settings)
    alone = fedloom.run("fedavg", str(pictures), clients=2, rounds=3, encoder="vit-mini")
    assert alone.config.standardise is True
    assert [m["personal"] for m in made.metrics] == [m["personal"] for m in alone.metrics]
    assert [m["bytes"] for m in made.metrics] == [m["bytes"] for m in alone.metrics]


# ------------------------------------------------------------------------------ swings


def lines(*accuracies: float) -> list[dict[str, Any]]:
    return [{"round": r, "personal": {"accuracy_mean": a}} for r, a in enumerate(accuracies, 1)]


def test_a_swing_is_a_large_fall() -> None:
    assert swings(lines(0.1, 0.9, 0.85)) == []  # learning fast is no swing
    ((fall, start, end),) = swings(lines(0.1, 0.9, 0.5, 0.6))
    assert (round(fall, 2), start, end) == (0.4, 2, 3)
    with pytest.warns(UserWarning, match=r"by 40 points from round 2 to round 3.* lr=0\.01 "):
        warn_of_swings(lines(0.1, 0.9, 0.5), 100, 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_swings(lines(0.1, 0.9, 0.5), 99, 0.05)  # too few samples to say so
        warn_of_swings(lines(0.1, 0.9, 0.7), 1000, 0.05)


def test_a_run_warns_of_swings() -> None:
    """Now a client trains that has the right labels, now one that has wrong ones."""
    right = vectors(800, encoder=None)
    assert isinstance(right.x, torch.Tensor)
    data = Dataset(torch.cat([right.x, right.x]), torch.cat([right.y, (right.y + 1) % 3]))
    train, test, none = np.arange(600), np.arange(600, 800), np.arange(0)
    world = Federation(data, (Client(train, none, test), Client(train + 800, none, test)))
    with pytest.warns(UserWarning, match="accuracy fell by 30 points or more"):
        fedloom.run(
            "fedavg", world, model="linear", rounds=8, epochs=3, ratio=0.5, standardise=True
        )


def test_a_private_head_sees_an_offset_and_a_shared_one_does_not(world: Federation) -> None:
    lengths = {}
    for name, model in (("fedavg", "mlp"), ("fedper", "mlp")):
        config = build({"method": name, "partition": "given", "model": model, "standardise": True})
        worker = Setup.from_config(config, federation=world).worker
        x = worker.samples(torch.arange(len(world.data.y)))
        server = with_group(Payload(), merged([reported([x], WIDTH)]))
        worker.adopt(0, server)
        lengths[name] = float(worker.prepare(x).mean(0).square().sum())
    assert lengths["fedavg"] == pytest.approx(0, abs=1e-3)
    assert lengths["fedper"] == pytest.approx(OFFSET, rel=1e-3)


def test_a_method_that_shares_nothing_on_a_network_is_local(world: Federation) -> None:
    """FedPer on a linear model has nothing but its private head."""
    alone, fedper = (fedloom.run(name, world, **SETTINGS) for name in ("local", "fedper"))
    assert [m["personal"] for m in fedper.metrics] == [m["personal"] for m in alone.metrics]

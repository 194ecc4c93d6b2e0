"""Federations of features: what is in them, how they train, and what cannot be encoded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fedloom
from fedloom import encoders
from fedloom.core.errors import FedloomError
from fedloom.data.federation import Dataset, Federation, federate
from fedloom.data.views import Views, WithPixels, split_pixels
from fedloom.encoders import IMAGE, Cache, Encoder, Preprocess, encode
from fedloom.engine.config import build


def images(n: int = 60) -> Dataset:
    g = torch.Generator().manual_seed(0)
    return Dataset(
        name="noise",
        x=torch.randint(0, 256, (n, 3, 8, 8), generator=g, dtype=torch.uint8),
        y=torch.arange(n) % 3,
        domain=torch.zeros(n, dtype=torch.int64),
        test=torch.arange(n) % 5 == 0,
        classes=("a", "b", "c"),
        domains=("one",),
    )


def encoder(name: str = "own", dim: int = 4, size: int = 8) -> Encoder:
    torch.manual_seed(dim)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, dim))
    return Encoder(name, dim, Preprocess(size), lambda: net)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, dim in (("tiny-a", 4), ("tiny-b", 5)):
        monkeypatch.setitem(IMAGE._entries, name, lambda name=name, dim=dim: encoder(name, dim, 32))


def test_several_encoders_stand_side_by_side() -> None:
    world = federate(images(), "iid", clients=3)
    a, b = encoder("a", 4), encoder("b", 7)
    made = world.encode(encoders.images([a, b]))
    assert made.clients == world.clients and made.data.kind == "vector"
    assert torch.equal(
        made.data.x, torch.cat([a.encode(world.data.x), b.encode(world.data.x)], dim=1)
    )
    assert torch.equal(world.encode(a).data.x, a.encode(world.data.x))
    assert made.data.encoder == "a,b" and world.data.encoder is None
    x, y = made.samples(1)
    assert x.shape == (len(y), 11) and world.data.x.dtype == torch.uint8


def test_progress_counts_all_the_work() -> None:
    told: list[tuple[int, int]] = []
    encode(images(), [encoder("a"), encoder("b", 5)], progress=lambda *now: told.append(now))
    assert told[-1] == (120, 120) and [d for d, _ in told] == sorted(d for d, _ in told)
    told.clear()
    encode(images(), [encoder("a"), encoder("b", 5)], progress=lambda *now: told.append(now))
    assert not told


def test_what_cannot_be_encoded_is_named() -> None:
    data = images()
    with pytest.raises(
        FedloomError, match="takes images of bytes; noise has vector samples of float32"
    ):
        encode(replace(data, x=torch.zeros(60, 4)), [encoder()])
    with pytest.raises(
        FedloomError, match="takes images of bytes; noise has image samples of float32"
    ):
        encode(replace(data, x=torch.zeros(60, 3, 8, 8)), [encoder()])
    with pytest.raises(FedloomError, match="at least one encoder"):
        encode(data, [])
    for options in ({"views": 3}, {"augment": ("flip",)}, {"views": 0}):
        with pytest.raises(FedloomError, match="several views"):
            encode(data, [encoder()], **options)
    with pytest.raises(FedloomError, match="one encoder and one view only"):
        encode(data, [encoder("a"), encoder("b", 5)], pixels=True)


def test_views_are_drawn_in_training_and_not_in_evaluation() -> None:
    made = encode(images(), [encoder()], views=3, augment=("crop", "flip"))
    assert isinstance(made.x, Views) and made.x.shape == (60, 4) and made.kind == "vector"
    rows = torch.arange(60)
    plain = encode(images(), [encoder()]).x
    assert torch.equal(made.x[rows], plain)
    one = made.x.drawn(rows, torch.Generator().manual_seed(0))
    assert torch.equal(one, made.x.drawn(rows, torch.Generator().manual_seed(0)))
    assert not torch.equal(one, made.x.drawn(rows, torch.Generator().manual_seed(1)))
    hits = torch.stack([(one == view).all(1) for view in made.x.views])
    assert hits.any(0).all() and (hits.sum(1) > 5).all()


def test_pixels_stay_beside_features() -> None:
    data, own = images(), encoder(size=6)
    made = encode(data, [own], pixels=True)
    assert isinstance(made.x, WithPixels) and made.x.shape == (60, 3 * 36 + 4)
    rows = torch.tensor([5, 2, 9])
    pixels, features = split_pixels(made.x[rows], 6)
    assert torch.equal(pixels, own.preprocess(data.x[rows])) and torch.equal(
        features, own.encode(data.x)[rows]
    )
    with pytest.raises(FedloomError, match="more than 108 numbers"):
        split_pixels(torch.zeros(2, 50), 6)


SETTINGS = {"clients": 4, "rounds": 2, "batch": 16, "steps": 2}


def metrics(run: fedloom.Run) -> list[dict]:
    return json.loads(json.dumps(run.metrics))


def test_a_run_with_encoders_is_the_same_on_every_executor(registered) -> None:
    runs = [
        fedloom.run(
            "fedavg", "digits4", partition="iid", encoder="tiny-a,tiny-b", executor=e, **SETTINGS
        )
        for e in ("inplace", "pool")
    ]
    assert metrics(runs[0]) == metrics(runs[1])
    assert runs[0].config.model == "linear" and runs[0].config.encoder == "tiny-a,tiny-b"
    assert len(Cache().entries()) == 2


def test_a_run_with_views_is_the_same_on_every_executor(registered) -> None:
    more = {**SETTINGS, "encoder": "tiny-a", "views": 2, "augment": ["flip"], "partition": "iid"}
    runs = [fedloom.run("fedavg", "digits4", executor=e, **more) for e in ("inplace", "pool")]
    plain = fedloom.run("fedavg", "digits4", **{**more, "views": 1, "augment": []})
    assert metrics(runs[0]) == metrics(runs[1]) != metrics(plain)


def test_a_run_with_pixels_is_the_same_on_every_executor(registered) -> None:
    more = {**SETTINGS, "encoder": "tiny-a", "pixels": True, "partition": "iid"}
    runs = [fedloom.run("fedavg", "digits4", executor=e, **more) for e in ("inplace", "pool")]
    assert metrics(runs[0]) == metrics(runs[1])
    assert runs[0].summary["bytes"]["up"]["per_round"] > 4 * 4 * 10 * (
        3 * 32 * 32 + 4
    )  # clients, bytes, classes, inputs


def test_a_federation_that_is_given_is_encoded_too(registered) -> None:
    world: Federation = federate(images(), "iid", clients=3)
    with pytest.raises(FedloomError, match="views and pixels need a frozen encoder"):
        fedloom.run("fedavg", world, views=2, rounds=1)
    made = fedloom.run("fedavg", world, model="linear", encoder="tiny-a", rounds=1)
    assert made.summary["bytes"]["up"]["total"] < 3 * 1000  # a head of 4 x 3 numbers, not of images


def test_the_encoder_is_part_of_what_a_run_is() -> None:
    plain, a, b = (
        build({"encoder": e, "model": "linear"}) for e in (None, "vit-mini", "efficientnet-lite0")
    )
    assert (
        len({plain.hash(), a.hash(), b.hash(), build({"encoder": "vit-mini", "views": 2}).hash()})
        == 4
    )
    assert build({"encoder": "vit-mini"}).model == "linear" and 'encoder = "vit-mini"' in a.toml()


def test_an_unknown_encoder_stops_a_run_before_it_starts(tmp_path) -> None:
    with pytest.raises(FedloomError, match="did you mean 'vit-mini'"):
        fedloom.run("fedavg", "digits4", encoder="vitmini", rounds=1)

"""FedFomo: usefulness by hand, who is sent to whom, what is mixed, and on which data."""

import dataclasses

import numpy as np
import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.fedfomo import FedFomo
from fedloom.parts.mixtures import usefulness
from fedloom.testing import small_world
from fedloom.testing.small_world import trace


def test_usefulness_by_hand() -> None:
    """L(ref) = 2, losses 1.5, 2.5, 1.0 and distances 1, 1, 2 give shares 0.5, 0, 0.5.

    A model at ref counts nothing.
    """
    omega = usefulness(2.0, torch.tensor([1.5, 2.5, 1.0, 2.0]), torch.tensor([1.0, 1.0, 2.0, 0.0]))
    assert omega.tolist() == [0.5, -0.5, 0.5, 0.0]
    positive = omega.clamp(min=0)
    assert (positive / positive.sum()).tolist() == [0.5, 0.0, 0.5, 0.0]


def server(affinity: list[float], round: int = 10) -> Payload:
    """A server where client 0 has these affinities to clients 0, 1, ...; all have sent a model."""
    n = len(affinity)
    table = torch.zeros(n, n)
    table[0] = torch.tensor(affinity)
    models = Payload({str(j): Tree({"w": torch.tensor(float(j))}) for j in range(n)})
    return Payload(affinity=table, models=models, round=round, seed=3)


def test_the_most_useful_models_are_sent_but_never_its_own() -> None:
    down = FedFomo(models=2).download(server([9.0, -1.0, 0.5, 0.0, 2.0]), 0)
    assert sorted(down) == ["models/2/w", "models/4/w"]
    assert down.tree("models/4")["w"].item() == 4.0


def test_exploration_fades() -> None:
    """Client 1 is liked best by far; others are sent at times in round 1, never from round 7 on."""
    method = FedFomo(models=1)
    first = {
        next(iter(method.download(server([0, 5.0, 0, 0, 0], 1).replace(seed=s), 0)))
        for s in range(60)
    }
    later = {
        next(iter(method.download(server([0, 5.0, 0, 0, 0], 7).replace(seed=s), 0)))
        for s in range(60)
    }
    assert len(first) > 2 and later == {"models/1/w"}


def test_ties_are_broken_at_random_but_the_same_way_twice() -> None:
    method = FedFomo(models=1, epsilon=0.0)
    seen = [next(iter(method.download(server([0.0] * 5, r), 0))) for r in range(1, 40)]
    assert len(set(seen)) == 4
    assert seen == [next(iter(method.download(server([0.0] * 5, r), 0))) for r in range(1, 40)]


def test_affinity_takes_raw_usefulness_and_old_models_are_dropped() -> None:
    up = Payload(model=Tree({"w": torch.tensor(1.0)}), omega=Payload({"2": -0.5, "3": 0.25}))
    after = FedFomo().aggregate(server([0, 1.0, 1.0, 1.0]), iter([(0, up)]))
    assert after.tensor("affinity")[0].tolist() == [0.0, 1.0, 0.5, 1.25]
    assert [n for n in after if n.startswith("models/")] == ["models/0/w"]


def mixed(place, offers: dict[str, float], data=None):
    """What client 0 makes of offers; each is a move from ref in the direction of training."""
    method = FedFomo()
    worker = place(method, data)
    local = ClientContext(worker, 0, 2)
    local.load()
    ref = local.tree("shared")
    names = set(local.parameters())
    local.fit(epochs=4, lr=0.02)
    good = local.tree("shared")
    step = (good - ref).only(names)
    sent = {
        n: Payload({k: t for k, t in (ref | (ref.only(names) + s * step)).items()})
        for n, s in offers.items()
    }
    state = Payload(ref=ref, model=ref)
    start, omega = method.mix(Payload(models=Payload(sent)), state, local)
    along = (start - ref).only(names).dot(step) / step.dot(step)
    return along.item(), omega, start, ref


def test_helpful_models_are_mixed_in_and_harmful_ones_are_not(place) -> None:
    along, omega, *_ = mixed(place, {"1": 1.0, "2": -1.0})
    assert omega["1"] > 0 > omega["2"]
    assert along == pytest.approx(
        1.0, abs=1e-3
    )  # the only useful one, in full: differences, not added to the old model


def test_if_nothing_helps_the_own_model_stays(place) -> None:
    _, omega, start, ref = mixed(place, {"2": -1.0, "3": -0.5})
    assert max(omega.values()) < 0
    assert start.equal(ref)


def test_models_are_weighed_on_validation_data(place) -> None:
    """Other validation labels make a helpful model harmful; without any, the own model stays."""
    whole = small_world.federation()
    y = whole.data.y.clone()
    rows = whole.clients[0].validation
    y[rows] = (y[rows] + 1) % 3
    spoilt = dataclasses.replace(whole, data=dataclasses.replace(whole.data, y=y))
    assert mixed(place, {"1": 1.0})[1]["1"] > 0 > mixed(place, {"1": 1.0}, spoilt)[1]["1"]
    first = dataclasses.replace(whole.clients[0], validation=np.arange(0))
    without = dataclasses.replace(whole, clients=(first, *whole.clients[1:]))
    _, omega, start, ref = mixed(place, {"1": 1.0}, without)
    assert not omega and start.equal(ref)


def test_nobody_with_validation_data_is_an_error(place) -> None:
    whole = small_world.federation()
    clients = tuple(dataclasses.replace(c, validation=np.arange(0)) for c in whole.clients)
    worker = place(FedFomo(), dataclasses.replace(whole, clients=clients))
    with pytest.raises(FedloomError, match="validation"):
        worker.method.init(worker)


def test_it_downloads_m_models_and_keeps_what_it_was_trained_from(place) -> None:
    seen = trace(FedFomo(models=2))
    one = seen.metrics[0]["bytes"]["up"] / 4
    assert seen.metrics[0]["bytes"]["down"] == 0
    assert seen.metrics[1]["bytes"]["down"] == pytest.approx(4 * 2 * one, rel=0.2)
    state = Payload.decode(seen.states[-1][0])
    assert state.tree("ref").keys() == state.tree("model").keys() and not state.tree("ref").equal(
        state.tree("model")
    )

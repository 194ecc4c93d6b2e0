"""FedPCL: what travels, what stays, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedloom
from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.methods.fedpcl import FedPCL
from fedloom.models import Task, build


def test_a_model_without_a_body_to_train_is_refused_before_the_first_round(tmp_path) -> None:
    with pytest.raises(FedloomError, match=r"fedpcl trains the body .* take --model projection"):
        fedloom.run("fedpcl", model="linear", clients=4, rounds=1, out=tmp_path / "A")
    assert not (tmp_path / "A" / "metrics.jsonl").exists()


def vectors(
    owned: list[range], width: int = 24, per_class: int = 8, shift: float = 1.0
) -> Federation:
    """Clients that own these classes, each with its own shift of the features."""
    rng = torch.Generator().manual_seed(3)
    centres = 2 * torch.randn(10, width, generator=rng)
    x, y, clients = [], [], []
    for k, classes in enumerate(owned):
        start = sum(map(len, y))
        labels = torch.tensor([c for c in classes for _ in range(2 * per_class)])
        move = shift * torch.randn(width, generator=rng)
        x.append(centres[labels] + move + 0.5 * torch.randn(len(labels), width, generator=rng))
        y.append(labels)
        rows = start + np.arange(len(labels))
        clients.append(Client(rows[::2], np.arange(0), rows[1::2], f"d{k}"))
    n = sum(map(len, y))
    domain, test = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.bool)
    names = tuple("abcdefghij")
    return Federation(
        Dataset(torch.cat(x), torch.cat(y), domain, test, names, ("d",), "v"), tuple(clients)
    )


def worker(method: FedPCL, owned: list[range], **training: object) -> ClientWorker:
    torch.manual_seed(0)
    settings = Training(**{**method.traits.training, "steps": 10, **training})
    return ClientWorker(
        method, vectors(owned), build("projection", Task((24,), 10)), settings, seed=0
    )


def run(method: FedPCL, owned: list[range], rounds: int = 2, **schedule: object) -> Engine:
    place = worker(method, owned)
    engine = Engine(place, Inplace(place), Schedule(rounds=rounds, **schedule))
    engine.run()
    return engine


def test_projection_has_the_papers_sizes() -> None:
    for width, total in ((512, 133_632), (1536, 395_776)):
        assert sum(p.numel() for p in build("projection", Task((width,), 10)).parameters()) == total


def test_2560_floats_go_up_for_ten_classes() -> None:
    method = FedPCL()
    place = worker(method, [range(10), range(4)])
    place.load()
    down = method.download(method.init(place), 0)
    up = method.client(down, Payload(), ClientContext(place, 0, 1)).upload
    assert (
        up.tensor("prototypes").numel() == 2560 and up.tensor("prototypes").dtype == torch.float32
    )
    few = method.client(down, Payload(), ClientContext(place, 1, 1)).upload
    assert few.tensor("prototypes").numel() == 4 * 256
    assert (
        0 <= up.nbytes - 10 * (256 * 4 + 8 + 8) < 400
    )  # a class: its row, its number, its count; and a header
    assert "model" not in {name.split("/")[0] for name in up}


def test_2560_floats_are_what_a_run_counts_on_the_wire() -> None:
    made = fedloom.run("fedpcl", vectors([range(10)] * 3), model="projection", rounds=2, steps=2)
    first, second = made.metrics
    assert second["floats"] == {
        "up": 2560.0,
        "down": 2560.0 * (3 + 1),
    }  # down: everybody's sets and the common one
    sample = Payload(
        prototypes=torch.zeros(10, 256),
        classes=torch.arange(10),
        counts=torch.zeros(10, dtype=torch.int64),
    )
    assert second["bytes"]["up"] == 3 * len(sample.encode())
    assert first["floats"]["up"] == 2560.0 and made.summary["floats"] == second["floats"]
    avg = fedloom.run("fedavg", vectors([range(10)] * 3), model="projection", rounds=1, steps=1)
    assert avg.summary["floats"]["up"] == 24 * 256 + 2560


def test_the_first_round_only_computes_prototypes() -> None:
    engine = run(FedPCL(), [range(5), range(3, 8)], rounds=1)
    assert torch.equal(
        engine.store.get(0).tree("model")["body.1.weight"], engine.worker.first["body.1.weight"]
    )
    again = run(FedPCL(), [range(5), range(3, 8)], rounds=2)
    assert not torch.equal(
        again.store.get(0).tree("model")["body.1.weight"], engine.worker.first["body.1.weight"]
    )


def test_downloads_are_every_set_padded_and_the_common_one() -> None:
    engine = run(FedPCL(), [range(5), range(3, 8)], rounds=1)
    down = engine.worker.method.download(engine.server, 0)
    assert down.tensor("sets").shape == (2, 10, 256) and down.tensor("common").shape == (10, 256)
    assert down.tensor("known").tolist() == [True] * 8 + [False] * 2  # classes 8 and 9 are nobody's
    assert torch.equal(down.tensor("sets")[1, 0], down.tensor("common")[0])
    assert torch.equal(down.tensor("sets")[0, 0], down.tensor("common")[0])  # the only owner
    assert torch.equal(down.tensor("sets")[0, 3], engine.store.get(0).tensor("prototypes")[3])


def test_projections_meet_only_through_prototypes() -> None:
    """With the same download, another client's projection changes nothing."""
    method = FedPCL()
    engine = run(method, [range(5), range(3, 8)], rounds=2)
    down, state = method.download(engine.server, 0), engine.store.get(0)
    first = method.client(down, state, ClientContext(engine.worker, 0, 3))
    method.client(down, engine.store.get(1), ClientContext(engine.worker, 1, 3))
    assert method.client(down, state, ClientContext(engine.worker, 0, 3)).state.equal(first.state)


def test_absent_clients_keep_their_prototypes_at_the_server() -> None:
    engine = run(FedPCL(), [range(5), range(3, 8)], rounds=2, dropouts={2: [1]})
    assert torch.equal(engine.server.tensor("every")[1], engine.store.get(1).tensor("prototypes"))
    assert engine.server.tensor("owned")[1].sum() == 40


@pytest.mark.parametrize("candidates", ["owned", "padded"])
def test_predicts_among_owned_classes_unless_padded(candidates: str) -> None:
    method = FedPCL(candidates=candidates)
    engine = run(method, [range(5), range(3, 8)])
    down = method.download(engine.server, 0)
    x, _ = engine.worker.federation.samples(1, "test")
    guessed = method.personal(down, engine.store.get(0), ClientContext(engine.worker, 0, 3))(
        x
    ).argmax(1)
    assert (guessed.max() <= 4) == (candidates == "owned")


@pytest.mark.parametrize(
    "loss", ["both", "global", "local", "official", "supcon", "ce", "ce+distance"]
)
def test_every_loss_learns(loss: str) -> None:
    made = fedloom.run(
        FedPCL(loss=loss),
        vectors([range(10)] * 3),
        model="projection",
        rounds=8,
        steps=20,
        batch=32,
    )
    accuracies = [m["personal"]["accuracy_mean"] for m in made.metrics]
    assert accuracies[-1] > 0.6
    losses = [m["loss"] for m in made.metrics if any(m["loss"].values())]  # not the first
    assert len(losses) >= 7 and sum(losses[-1].values()) < sum(losses[0].values())

"""FedPACT: what its paper states, in numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedloom.client.context import ClientContext
from fedloom.client.worker import ClientWorker
from fedloom.core.method import Update
from fedloom.core.payload import Payload
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.engine.config import build
from fedloom.engine.engine import Engine, first
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.methods.fedpact import FedPACT
from fedloom.parts.pooling import pool_means, prototypes
from fedloom.testing import small_world

Place = Callable[..., ClientWorker]


def started(worker: ClientWorker) -> Payload:
    """The server once everybody has said hello."""
    server = first(worker)
    hellos = {
        k: worker.method.hello(ClientContext(worker, k, 1))
        for k in range(worker.clients)
        if len(worker.federation.clients[k].train)
    }
    return worker.method.join(server, hellos).replace(round=1)


def run(worker: ClientWorker, rounds: int = 2, watchers: tuple = (), **schedule: object) -> Engine:
    executor = Inplace(worker)
    engine = Engine(worker, executor, Schedule(rounds=rounds, **schedule), watchers)
    engine.run()
    executor.close()
    return engine


def test_global_prototypes_are_the_means_of_pooled_samples() -> None:
    """Counts 3 and 1 give shares .75 and .25; a class that nobody has stands at its text row."""
    text = torch.eye(2, 3)
    server = Payload(text=text, sums=torch.zeros(2, 3), counts=torch.zeros(2, dtype=torch.int64))
    a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 6.0, 7.0])
    hellos = {
        0: Payload(means=torch.stack([a, torch.zeros(3)]), counts=torch.tensor([3, 0])),
        1: Payload(means=torch.stack([b, torch.zeros(3)]), counts=torch.tensor([1, 0])),
    }
    found = prototypes(pool_means(server, hellos))
    assert torch.equal(found[0], 0.75 * a + 0.25 * b) and torch.equal(found[1], text[1])


def test_they_equal_the_means_over_all_training_samples(place: Place) -> None:
    worker = place(FedPACT())
    server = started(worker)
    data = worker.federation.data
    rows = torch.from_numpy(np.concatenate([c.train for c in worker.federation.clients]))
    for c in range(3):
        own = rows[data.y[rows] == c]
        assert torch.allclose(
            prototypes(server)[c], F.normalize(data.x[own], dim=1).mean(0), atol=1e-6
        )


def test_a_cache_and_a_head_travel_and_nothing_else(place: Place) -> None:
    """N x C floats each way in every round after the first, measured; class means once before."""
    method = FedPACT(server_epochs=1)
    worker = place(method)
    engine = run(worker, rounds=2)
    floats = 4 * worker.classes * worker.width
    for k in range(worker.clients):
        down = method.download(engine.server, k)
        assert sorted(down) == ["head", "scale"] and floats <= down.nbytes <= floats + 200
        update = method.client(down, engine.store.get(k), ClientContext(worker, k, 3))
        assert list(update.upload) == ["cache"] and floats <= update.upload.nbytes <= floats + 200
    hello = method.hello(ClientContext(worker, 0, 1))
    assert sorted(hello) == ["counts", "means", "size"]


@pytest.mark.parametrize("classes,width,floats", [(10, 1024, 10_240), (397, 512, 203_264)])
def test_the_papers_numbers_of_floats(classes: int, width: int, floats: int) -> None:
    head = Payload(head=torch.zeros(classes, width))
    assert 4 * floats < head.nbytes < 4 * floats + 200


def test_without_weight_personal_is_common(place: Place) -> None:
    method = FedPACT(alpha=0.0, server_epochs=3)
    worker = place(method, lr=0.01)
    server = run(worker).server
    x = worker.federation.data.x[:9]
    common = method.common(server, worker)
    assert common is not None
    for k in range(worker.clients):
        state = Payload(start=prototypes(server), residual=torch.zeros(4, 64))
        assert torch.equal(
            method.personal(method.download(server, k), state, ClientContext(worker, k, 1))(x),
            common(x),
        )


def test_the_first_cache_is_the_global_prototypes_and_the_text_is_what_the_encoder_says(
    place: Place,
) -> None:
    method = FedPACT()
    worker = place(method)
    server = started(worker)
    down = method.download(server, 2)
    assert torch.equal(down.tensor("head"), F.normalize(server.tensor("text"), dim=1))
    cache = method.cache(down, Payload())
    assert torch.allclose(cache.rows, F.normalize(prototypes(server), dim=1))
    assert cache.scale == 10.0 and method.common(server, worker)(
        worker.federation.data.x[:5]
    ).shape == (5, 4)


def test_a_client_trains_its_cache_and_goes_on_from_it(place: Place) -> None:
    method = FedPACT(server_epochs=0)
    worker = place(method, lr=0.01)
    server = started(worker)
    down = method.download(server, 1)
    one = method.client(down, Payload(), ClientContext(worker, 1, 1))
    assert one.state.tensor("residual").abs().sum() > 0 and torch.equal(
        one.state.tensor("start"), prototypes(server)
    )
    assert torch.allclose(one.upload.tensor("cache").norm(dim=1), torch.ones(4))
    two = method.client(
        Payload(head=down.tensor("head"), scale=10.0), one.state, ClientContext(worker, 1, 2)
    )
    assert torch.equal(two.state.tensor("start"), one.state.tensor("start"))
    assert not torch.equal(two.state.tensor("residual"), one.state.tensor("residual"))


def test_the_printed_variant_has_rows_of_any_length_and_scale_one(place: Place) -> None:
    given = build({"method": "fedpact", "preset": "printed", "model": "linear"})
    assert (
        given.hyper["unit"] is False
        and given.hyper["scale"] == 1.0
        and given.training.weight_decay == 0.0
    )
    method = FedPACT(**given.hyper)
    worker = place(method, lr=0.05, weight_decay=0.0)
    engine = run(worker)
    server = engine.server
    assert torch.equal(method.head(server), server.tensor("text") + server.tensor("residual"))
    assert not torch.allclose(server.tensor("caches")[0].norm(dim=1), torch.ones(4), atol=1e-3)
    assert method.download(server, 0).number("scale") == 1.0


def test_the_server_lowers_its_loss_and_raises_margins(place: Place) -> None:
    method = FedPACT(
        text="hash", server_epochs=30, server_lr=0.01
    )  # text that says nothing, to begin with
    worker = place(method)
    server = run(worker).server
    figures = method.figures(server, worker)
    plain = method.figures(server.replace(residual=torch.zeros(4, 64)), worker)
    assert figures["margin"] > plain["margin"] + 0.3 and plain["margin_improved"] == 0.0
    assert figures["margin_improved"] > 0.5
    assert figures["exp_margin"] < figures["exp_margin_text"] == plain["exp_margin"]
    assert figures["local_improved"] >= 0.5 and plain["local_improved"] == 0.0
    assert set(figures) == {
        "alignment_least",
        "alignment_mean",
        "margin",
        "margin_improved",
        "local_margin_least",
        "local_margin_mean",
        "local_improved",
        "exp_margin",
        "exp_margin_text",
    }


def test_without_server_epochs_the_head_stays(place: Place) -> None:
    worker = place(FedPACT(server_epochs=0))
    server = run(worker).server
    assert (
        torch.equal(server.tensor("residual"), torch.zeros(4, 64)) and server.tensor("told").all()
    )


def test_sizes_weigh_clients_and_equal_clients_do_not_matter(place: Place) -> None:
    """With identical caches pi drops out: whatever the sizes, the head is the same."""
    method = FedPACT(server_epochs=5, server_lr=0.01)
    worker = place(method)
    server = started(worker)
    cache = F.normalize(torch.randn(4, 64, generator=torch.Generator().manual_seed(0)), dim=1)
    alike = server.replace(caches=cache.repeat(4, 1, 1), told=torch.ones(4, dtype=torch.bool))
    full = FedPACT(server_epochs=5, server_lr=0.01, server_batch=16)  # all 16 prototypes in a step
    heads = [
        full.align(alike.replace(sizes=torch.tensor(sizes))).tensor("residual")
        for sizes in ([1, 1, 1, 1], [9, 1, 4, 2])
    ]
    assert torch.allclose(*heads, atol=1e-6) and heads[0].abs().sum() > 0


def test_an_absent_class_is_trained_from_its_text_or_left_out(place: Place) -> None:
    worker = place(FedPACT())
    assert (started(worker).tensor("counts") == 0).tolist() == [False, False, False, True]
    sizes = []

    class Counting(FedPACT):
        def align(self, server: Payload) -> Payload:
            found = super().align(server)
            sizes.append(found.tensor("residual")[3].abs().sum().item())
            return found

    for orphans in ("text", "skip"):
        run(place(Counting(orphans=orphans, server_epochs=2, server_lr=0.01, lam=0.0)), rounds=1)
    assert (
        sizes[0] > 0 and sizes[1] > 0
    )  # left out as a target, its row is still pushed away by others


def few(shots: int, classes: int = 3, width: int = 8) -> Federation:
    """Two clients with disjoint classes, one without test samples, and a class that nobody has."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], shots + 2)
    x = np.eye(width)[y] + 0.1 * rng.normal(size=(len(y), width))
    data = Dataset(
        torch.tensor(x, dtype=torch.float32),
        torch.tensor(y),
        torch.zeros(len(y), dtype=torch.int64),
        torch.zeros(len(y), dtype=torch.bool),
        ("zero", "one", "two")[:classes],
        ("all",),
        "few",
        encoder="checks",
    )
    none, half = np.arange(0), shots + 2
    clients = (
        Client(np.arange(shots), none, np.arange(shots, half)),
        Client(np.arange(half, half + shots), none, none),
        Client(none, none, np.arange(half + shots, 2 * half)),
    )
    return Federation(data, clients)


@pytest.mark.parametrize("shots", [1, 4])
def test_one_shot_missing_classes_no_test_samples_no_training_samples(shots: int) -> None:
    world = few(shots)
    method = FedPACT(text="hash", server_epochs=5, server_lr=0.01)
    from torch import nn

    from fedloom.client.training import Training
    from fedloom.models import Split

    worker = ClientWorker(
        method,
        world,
        Split(nn.Flatten(), nn.Linear(8, 3), 8),
        Training(**method.traits.training),
        seed=0,
    )
    records = []

    class Seen:
        def after_round(self, engine: Engine, record: object) -> None:
            records.append(record)

    engine = run(worker, watchers=(Seen(),))
    record = records[-1]
    assert record["clients"]["before"][1] is None and record["clients"]["before"][0] is not None
    assert record["personal"]["accuracy_mean"] == np.mean(
        [a for a in record["clients"]["before"] if a is not None]
    )
    down = method.download(
        engine.server, 2
    )  # never took part: it uses the prototypes it would be sent
    assert torch.equal(down.tensor("prototypes"), prototypes(engine.server))
    assert torch.isfinite(engine.server.tensor("residual")).all()


def test_time_on_the_server_is_counted_apart(place: Place) -> None:
    class SlowServer(FedPACT):
        def align(self, server: Payload) -> Payload:
            time.sleep(0.2)
            return server

    class SlowClients(FedPACT):
        def client(self, down: Payload, state: Payload, local: ClientContext) -> Update:
            time.sleep(0.4)
            return super().client(down, state, local)

    spent = run(place(SlowServer()), rounds=1).spent
    assert set(spent) == {"clients", "server", "evaluation"} and spent["server"] >= 0.2
    spent = run(place(SlowClients(server_epochs=0)), rounds=1).spent
    assert spent["clients"] >= 1.6 > spent["server"]


def test_the_figures_are_in_the_metrics_and_in_the_summary(place: Place) -> None:
    from fedloom.metrics.summary import summarise_run

    seen = small_world.trace(FedPACT(server_epochs=2))
    assert all(set(m["figures"]) >= {"alignment_least", "margin"} for m in seen.metrics)
    timing = [
        {
            "seconds": 1.0,
            "peak_rss_mb": 1.0,
            "spent": {"clients": 0.5, "server": 0.25, "evaluation": 0.1},
        }
    ] * 3
    told = summarise_run(seen.metrics, timing)
    values = [m["figures"]["alignment_least"] for m in seen.metrics]
    assert told["figures"]["alignment_least"] == {
        "last": values[-1],
        "least": min(values),
        "most": max(values),
    }
    assert told["spent"] == {"clients": 1.5, "server": 0.75, "evaluation": 0.3}


def test_a_network_without_an_encoder_is_refused() -> None:
    method = FedPACT()
    ready = small_world.place(method)
    bare = replace(ready.federation, data=replace(ready.federation.data, encoder=None))
    worker = ClientWorker(method, bare, ready.given, ready.training, seed=0)
    with pytest.raises(ValueError, match="needs features of a dual encoder"):
        first(worker)

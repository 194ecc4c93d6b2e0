"""FedGCR, FedGC and +fedgr: what travels, weights and clusters in a run, prompts on a ViT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import fedloom
from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.encoders import image
from fedloom.engine.config import build
from fedloom.executors.base import Task, execute
from fedloom.executors.inplace import Inplace
from fedloom.experiments.prompts import prompted
from fedloom.parts.client_types import noted
from fedloom.testing.checks import applicable
from fedloom.testing.small_world import federation, network, trace

VIT = Callable[..., Path]
PLACES = ("dark", "bright", "loud")


def pictures(
    clients: tuple[tuple[int, str], ...] = ((12, "dark"), (6, "dark"), (9, "bright"), (12, "loud")),
) -> Federation:
    """Clients of (size, domain) whose domains differ in brightness and contrast.

    Classes differ in where the image is lit.
    """
    rng = np.random.default_rng(0)
    xs, ys, ds, owners, at = [], [], [], [], 0
    for n, domain in clients:
        y = np.arange(n + 6) % 3
        x = rng.normal(size=(n + 6, 3, 24, 24)) * {"dark": 5, "bright": 5, "loud": 60}[domain]
        x[np.arange(n + 6), :, y * 8] += 30
        xs.append(
            np.clip(x + {"dark": 40, "bright": 200, "loud": 120}[domain], 0, 255).astype(np.uint8)
        )
        ys.append(y)
        ds.append(np.full(n + 6, PLACES.index(domain)))
        rows = np.arange(at, at + n + 6)
        owners.append(Client(rows[:n], rows[:0], rows[n:], domain))
        at += n + 6
    data = Dataset(
        name="pictures",
        x=torch.from_numpy(np.concatenate(xs)),
        y=torch.from_numpy(np.concatenate(ys)),
        domain=torch.from_numpy(np.concatenate(ds)),
        test=torch.zeros(at, dtype=torch.bool),
        classes=("top", "middle", "bottom"),
        domains=PLACES,
    )
    return Federation(data, tuple(owners))


def encoded(folder: Path, world: Federation | None = None) -> Federation:
    return (world or pictures()).encode(image(f"hf:{folder}"), pixels=True)


def worker(
    world: Federation, computed: bool = False, method: str = "fedgcr", **hyper: object
) -> ClientWorker:
    made = make(method, hyper)
    return ClientWorker(
        made,
        world,
        prompted(world, computed),
        Training(**{**made.traits.training, "batch": 6}),
        seed=0,
    )


def after(where: ClientWorker, rounds: int) -> tuple[Payload, dict[int, Payload]]:
    """Server and states after some rounds with everybody, without an engine's bookkeeping."""
    method = where.method
    where.load()
    server = method.init(where).replace(round=0, seed=0)
    states: dict[int, Payload] = {k: Payload() for k in range(where.clients)}
    server = method.join(server, {k: method.hello(ClientContext(where, k, 1)) for k in states})
    for r in range(1, rounds + 1):
        server = server.replace(round=r)
        done = {
            k: execute(where, Task("client", r, (k,), method.download(server, k), states[k]))
            for k in states
        }
        server = method.aggregate(server, iter([(k, d.upload) for k, d in done.items()]))
        states = {k: d.state for k, d in done.items()}
    return server, states


# -- what travels ---------------------------------------------------------------------------------
def test_what_a_client_sends(tiny_vit: VIT) -> None:
    """ViT-B's width: prompts, GC-Net and head for ten classes, the description and one number."""
    folder = tiny_vit(
        hidden_size=768, num_hidden_layers=1, intermediate_size=8, image_size=32, patch_size=8
    )
    world = encoded(folder, pictures(((6, "dark"),)))
    world = replace(world, data=replace(world.data, classes=tuple("0123456789")))
    where = worker(world, types=1)
    server, states = after(where, 1)
    upload = execute(
        where, Task("client", 2, (0,), where.method.download(server, 0), states[0])
    ).upload
    assert upload.floats == 4_733_194 + 768 and isinstance(upload["loss"], float)
    assert sorted(n for n in upload if not n.startswith("model/")) == ["loss", "type_point"]


def test_clusters_come_down_once_there_are_any(tiny_vit: VIT) -> None:
    where = worker(encoded(tiny_vit()))
    server, states = after(where, 1)
    down = where.method.download(server, 2)
    assert down.tensor("type_centres").shape[1] == 16 and down["type"] == int(
        server.tensor("type_labels")[2]
    )
    fresh = where.method.init(where).replace(round=1, seed=0)
    assert "type" not in where.method.download(fresh, 2)
    assert {"prompt", "previous/head.bias"} <= set(states[2])
    assert torch.equal(states[2].tensor("prompt"), server.tensor("type_points")[2])


# -- the local objective --------------------------------------------------------------------------
def test_the_first_round_is_cross_entropy_alone(tiny_vit: VIT) -> None:
    where = worker(encoded(tiny_vit()))
    server, states = after(where, 1)
    server = server.replace(round=2)
    losses = execute(
        where, Task("client", 2, (0,), where.method.download(server, 0), states[0])
    ).losses
    assert set(losses) == {"ce", "group", "align"}
    first = worker(encoded(tiny_vit()))
    first.load()
    start = first.method.init(first).replace(round=1, seed=0)
    assert set(execute(first, Task("client", 1, (0,), first.method.download(start, 0))).losses) == {
        "ce"
    }
    more = worker(encoded(tiny_vit()), first_plain=True)
    assert set(execute(more, Task("client", 1, (0,), more.method.download(start, 0))).losses) == {
        "ce",
        "plain",
    }


def test_loss_parts_are_those_of_the_equations(tiny_vit: VIT) -> None:
    """With one step, the losses are those of the received weights: without dropout, z = z_0."""
    where = worker(encoded(tiny_vit()), lam_gc=1.0, lam_ra=1.0)
    server, states = after(where, 2)
    server = server.replace(round=3)
    down, local = where.method.download(server, 0), ClientContext(where, 0, 3)
    local.load(down.tree("model"))
    x, _ = next(iter(local.chunks()))
    body = where.model.eval().body
    with torch.no_grad():
        h, z = body.prompt(x), body(x)
        old = where.reference(0, states[0].tree("previous")).body(x)
    cos = torch.nn.functional.cosine_similarity
    centres = [*down.tensor("type_centres"), states[0].tensor("prompt")]
    scores = torch.stack([cos(h, c[None]) for c in centres], 1) / 0.5
    group = (scores.logsumexp(1) - scores[:, int(down["type"])]).mean().item()
    align = torch.log1p((cos(z, old) / 0.5 - cos(z, z) / 0.5).exp()).mean().item()
    local.load(down.tree("model"))
    where.training = where.training.changed(batch=12)
    local = ClientContext(where, 0, 3)
    where.method.client(down, states[0], local)
    assert local.losses()["group"] == pytest.approx(group, abs=1e-5)
    assert local.losses()["align"] == pytest.approx(align, abs=1e-5)


def test_the_weight_of_the_group_loss_may_move() -> None:
    preset = build({"method": "fedgcr", "preset": "official"}).hyper
    assert (preset["lam_gc"], preset["lam_gc_end"], preset["lam_ra"]) == (0.05, 0.1, 0.05)
    seen = {}
    for name, hyper in {
        "flat": {"lam_gc": 0.1},
        "there": {"lam_gc": 0.0, "lam_gc_end": 0.1, "lam_gc_rounds": 2},
        "half": {"lam_gc": 0.0, "lam_gc_end": 0.1, "lam_gc_rounds": 4},
    }.items():
        seen[name] = [
            m["loss"].get("group") for m in trace(make("fedgcr", hyper), rounds=2).metrics
        ]
    assert seen["flat"][0] is seen["half"][0] is None, "no clusters yet"
    assert seen["there"][1] == seen["flat"][1]
    assert seen["half"][1] == pytest.approx(seen["flat"][1] / 2, rel=0.1)


def test_described_by_some_batches_of_the_received_model(tiny_vit: VIT) -> None:
    where = worker(encoded(tiny_vit()), described="received", prompt_batches=1)
    server, _ = after(where, 1)
    where.load()
    x, y = (t[:6] for t in next(iter(ClientContext(where, 0, 1).chunks())))
    with torch.no_grad():
        h = where.model.eval().body.prompt(x)
    wanted = torch.stack([h[y == c].mean(0) for c in range(3)]).mean(0)
    assert torch.allclose(server.tensor("type_points")[0], wanted, atol=1e-6)


# -- the server -----------------------------------------------------------------------------------
def test_weights_in_a_round() -> None:
    """Two types are far apart; round 2's weights follow by hand from the server's notes."""
    method = make("fedavg+fedgr", {"types": 2})
    where = ClientWorker(method, federation(), network(), Training(batch=8), seed=7)
    server, _ = after(where, 2)
    sizes, losses, labels = (server.tensor(n) for n in ("sizes", "type_losses", "type_labels"))
    group = torch.stack([losses[labels == c].mean() for c in labels])
    wanted = sizes * (losses**0.75 * group**0.25) ** 2
    shares = server.tensor("shares")
    assert torch.allclose(shares / shares.sum(), wanted / wanted.sum())
    assert torch.equal(server.tensor("type_labels"), torch.tensor(method.groups(server)))


def test_q_minus_one_counts_by_size() -> None:
    plain, fair = trace(make("fedavg")), trace(make("fedavg+fedgr", {"group_q": -1.0}))
    assert plain.server.tree("model").keys() == fair.server.tree("model").keys()
    for name, tensor in plain.server.tree("model").items():
        assert torch.equal(tensor, fair.server.tree("model")[name]), name
    assert [m["personal"] for m in plain.metrics] == [m["personal"] for m in fair.metrics]


@pytest.mark.parametrize("base", ["fedavg", "qffl", "fedprox", "scaffold", "fedmix", "fedper"])
def test_the_plug_in_goes_round_methods(base: str) -> None:
    seen = trace(make(f"{base}+fedgr"), rounds=2)
    assert all(0 < m["clustering"] <= 1 for m in seen.metrics)


def test_methods_without_weights_of_that_sort_are_refused() -> None:
    for spec in ("local+fedgr", "afl+fedgr", "fedavg+daa+fedgr"):
        with pytest.raises(FedloomError, match="weights"):
            make(spec)


@pytest.mark.parametrize("check", applicable(make("fedavg+fedgr")), ids=str)
def test_fedavg_with_group_reweighting_passes_the_contract(check) -> None:
    check(make("fedavg+fedgr"))


def test_losses_may_be_coarse() -> None:
    assert noted(5.0, 1, coarse=True) == 1.0
    assert noted(0.7, 2, coarse=True) == 100 / 142 and noted(1000.0, 2, coarse=True) == 100.0
    assert noted(0.7, 2, coarse=False) == 0.7


# -- clients as they come -------------------------------------------------------------------------
def test_fewer_clients_than_types() -> None:
    with pytest.warns(UserWarning, match="so 9 types become 4"):
        seen = trace(make("fedgcr", {"types": 9}), rounds=2)
    assert [m["clustering"] for m in seen.metrics] == [1.0, 1.0]


def test_identical_clients() -> None:
    """In the first round all are one point; afterwards batches differ, and so may types."""
    world = federation(sizes=(16,))
    same = replace(world, clients=tuple(world.clients) * 3)
    with pytest.warns(UserWarning, match="1 different clients"):
        seen = trace(make("fedgcr", {"types": 2, "described": "received"}), same, rounds=2)
    assert all(np.isfinite(list(m["loss"].values())).all() for m in seen.metrics)


@pytest.mark.parametrize("clusterer", ["gmm", "kmeans", "finch"])
def test_a_type_that_appears_late(clusterer: str) -> None:
    """Clients of the second domain are lost until round 5.

    Their first round is CE alone, then they have a type.
    """
    late = {r: [1, 3] for r in range(1, 5)}
    seen = trace(make("fedgcr", {"clusterer": clusterer}), rounds=6, dropouts=late)
    assert seen.server.tensor("type_labels").tolist() != [-1] * 4
    assert (seen.server.tensor("type_labels") >= 0).all()
    assert all(np.isfinite(list(m["loss"].values())).all() for m in seen.metrics)
    assert seen.metrics[3]["clustering"] == 1.0, "one domain only has been heard of"


def test_an_absent_client_stays_in_its_cluster() -> None:
    away = {2: [0], 3: [0]}
    seen = trace(make("fedgcr"), rounds=3, dropouts=away)
    once = trace(make("fedgcr"), rounds=1)
    assert torch.equal(seen.server.tensor("type_points")[0], once.server.tensor("type_points")[0])
    assert seen.server.tensor("type_losses")[0] == once.server.tensor("type_losses")[0]
    assert seen.server.tensor("type_labels")[0] >= 0


def test_a_client_with_six_samples_on_prompts(tiny_vit: VIT) -> None:
    run = fedloom.run("fedgcr", encoded(tiny_vit()), model="vpt", rounds=2, batch=64)
    assert run.federation["clients"][1]["train"] == 6
    assert all(np.isfinite(list(m["loss"].values())).all() for m in run.metrics)
    assert run.summary["clustering"]["last"] == run.metrics[-1]["clustering"] <= 1


# -- prompts --------------------------------------------------------------------------------------
def test_types_are_found_by_prompts(tiny_vit: VIT) -> None:
    world = pictures(
        ((12, "dark"), (6, "dark"), (9, "bright"), (7, "bright"), (12, "loud"), (8, "loud"))
    )
    run = fedloom.run("fedgcr", encoded(tiny_vit(), world), model="vpt", rounds=2)
    assert [m["clustering"] for m in run.metrics] == [1.0, 1.0]


def test_the_first_pass_from_the_cache(tiny_vit: VIT) -> None:
    """The models are those of a computed pass, for at most 1 / 1.4 of the operations.

    All layers of this ViT cost the same.
    """
    world, work, models = encoded(tiny_vit(num_hidden_layers=3)), {}, {}
    for computed in (False, True):
        where = worker(world, computed)
        server, states = after(where, 2)
        models[computed] = server.tree("model")
        with FlopCounterMode(display=False) as counter:
            where.method.client(
                where.method.download(server.replace(round=3), 0),
                states[0],
                ClientContext(where, 0, 3),
            )
        work[computed] = counter.get_total_flops()
    assert (models[True] - models[False]).norm() <= 1e-5 * models[True].norm()
    assert work[True] / work[False] >= 1.4


def test_worker_processes_load_the_frozen_network_themselves(tiny_vit: VIT) -> None:
    options = {"model": "vpt", "rounds": 2, "batch": 6}
    one = fedloom.run("fedgcr", encoded(tiny_vit()), **options)
    two = fedloom.run("fedgcr", encoded(tiny_vit()), executor="pool", workers=2, **options)
    assert one.metrics == two.metrics


@pytest.mark.parametrize(
    "name",
    ["fedavg", "afl", "qffl", "term", "harmofl", "fedsam", "fedmix", "fedgcr", "fedavg+fedgr"],
)
def test_every_row_of_the_table_trains_prompts_on_images(name: str, tiny_vit: VIT) -> None:
    run = fedloom.run(name, pictures(), model="vpt", vit=f"hf:{tiny_vit()}", rounds=1, batch=6)
    assert run.metrics[-1]["floats"]["up"] < 3000, "the frozen network does not travel"
    assert 0 <= run.summary["sigma_type"]["last"] <= 0.5 and set(run.summary["domains"]) == set(
        PLACES
    )


def test_a_naive_mix_and_asam_on_prompts(tiny_vit: VIT) -> None:
    for name, more in (("fedmix", {"naive": True}), ("fedsam", {"adaptive": True})):
        run = fedloom.run(name, pictures(), model="vpt", vit=f"hf:{tiny_vit()}", rounds=1, **more)
        assert np.isfinite(list(run.metrics[-1]["loss"].values())).all()


def test_inplace_leaves_nothing_behind(tiny_vit: VIT) -> None:
    where = worker(encoded(tiny_vit()))
    vit = where.model.body.body.frozen.vit
    before = {n: t.clone() for n, t in vit.state_dict().items()}
    after(where, 2)
    Inplace(where).close()
    assert all(torch.equal(t, before[n]) for n, t in vit.state_dict().items())

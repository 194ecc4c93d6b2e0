"""F2DC and its two plug-ins: weights by hand, what travels, neutral modules, whose are used."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.engine.engine import first
from fedloom.methods.plugins.daa import discrepancy, domain_aware
from fedloom.models import Task, build
from fedloom.parts import decoupling
from fedloom.parts.decoupling import Correction, corrections
from fedloom.testing import small_world
from fedloom.testing.small_world import federation, network, trace, watched


# -- domain-aware weights -------------------------------------------------------------------------
def weighed(n: list[int], q: int, classes: int) -> tuple[list[float], list[float]]:
    sizes = torch.tensor(n)
    gap = discrepancy(sizes[:, None].expand(-1, classes), q)
    return gap.tolist(), domain_aware(sizes.double(), gap, 1.0, 0.4).tolist()


def test_weights_by_hand() -> None:
    gap, p = weighed([100, 300], q=2, classes=2)
    assert gap == pytest.approx([0.25, 0.25])
    assert p == pytest.approx([0.449943, 0.550057], abs=1e-6)
    gap, p = weighed([10, 20, 30], q=3, classes=10)
    assert gap == pytest.approx([0.372678, 0, 0.372678], abs=1e-6)
    assert p == pytest.approx([0.301347, 0.348050, 0.350603], abs=1e-6)


def test_weights_of_the_papers_clients() -> None:
    """PACS: two clients of photo, three of art, two of cartoon, three of sketch."""
    n = [400, 400, 492, 492, 492, 562, 562, 943, 943, 943]
    gap, p = weighed(n, q=4, classes=7)
    assert [gap[i] for i in (0, 2, 5, 7)] == pytest.approx(
        [0.34757, 0.31994, 0.29892, 0.18448], abs=1e-5
    )
    assert [p[i] for i in (0, 2, 5, 7)] == pytest.approx(
        [0.09685, 0.09815, 0.09914, 0.10452], abs=1e-5
    )
    assert sum(p) == pytest.approx(1)


def test_equal_clients_count_alike() -> None:
    assert weighed([50] * 5, q=4, classes=7)[1] == pytest.approx([0.2] * 5)
    sizes = torch.tensor([10.0, 90.0], dtype=torch.float64)
    assert domain_aware(sizes, torch.ones(2), 0.0, 0.0).tolist() == pytest.approx([0.5, 0.5])


def test_by_class_sees_what_sizes_hide() -> None:
    """Two clients have the same size, one has a single class: only the shares of classes differ."""
    counts = torch.tensor([[20, 0, 0], [10, 10, 0]])
    gap = discrepancy(counts, 2)
    # shares 2/3, 0 and 1/3, 1 against 1/2; nobody has the third class, which counts for nothing
    assert gap[0].item() == pytest.approx((0.5 * ((2 / 3 - 0.5) ** 2 + 0.5**2)) ** 0.5)
    assert gap[1].item() == pytest.approx((0.5 * ((1 / 3 - 0.5) ** 2 + 0.5**2)) ** 0.5)
    assert discrepancy(torch.full((2, 3), 20), 2).tolist() == [0, 0]


def test_the_server_averages_with_them() -> None:
    seen = trace(make("fedavg+daa"), rounds=1)
    sizes = torch.tensor([24, 40, 16, 32])
    expected = weighed(sizes.tolist(), q=2, classes=4)[1]
    assert seen.server.tensor("shares").tolist() == pytest.approx(expected)
    absent = (
        trace(make("fedavg+daa"), rounds=1, dropouts={1: [1, 3]}).server.tensor("shares").tolist()
    )
    assert [absent[1], absent[3]] == [0, 0]
    assert [absent[0], absent[2]] == pytest.approx(weighed([24, 16], q=2, classes=4)[1]), (
        "over those who answered"
    )


def test_only_counts_travel() -> None:
    """No message tells of a domain: only FedAvg's entries, and class counts with `by_class`."""
    usual = watched(make("fedavg"))[1].sent
    assert watched(make("fedavg+daa"))[1].sent == usual
    assert watched(make("fedavg+daa", {"by_class": True}))[1].sent == usual | {"class_counts"}
    world = federation()
    for method in (make("fedavg+daa"), make("fedavg+daa", {"by_class": True})):
        worker = ClientWorker(method, world, network(), Training(batch=8), seed=7)
        hellos = {k: method.hello(ClientContext(worker, k, 1)) for k in range(4)}
        server = method.join(first(worker), hellos)
        for k, hello in hellos.items():
            said = [v for v in hello.values() if isinstance(v, Tensor)]
            assert all(torch.equal(v, ClientContext(worker, k, 1).counts) for v in said)
            assert set(method.download(server, k)) == set(make("fedavg").download(server, k))
        # clients of the same counts get the same weight, whatever their domain
        renamed = ClientWorker(
            method, small_world.federation(), network(), Training(batch=8), seed=7
        )
        assert method.join(first(renamed), hellos).equal(server)


def test_how_many_domains_can_be_said() -> None:
    told = trace(make("fedavg+daa", {"domains_known": 4}), rounds=1).server
    assert told.tensor("shares").tolist() == pytest.approx(
        weighed([24, 40, 16, 32], q=4, classes=4)[1]
    )


# -- the modules ----------------------------------------------------------------------------------
def test_f2dc_is_fedavg_with_both(tmp_path: Path) -> None:
    whole, parts = (make(n) for n in ("f2dc", "fedavg+dfdc+daa"))
    ours, theirs = trace(whole), trace(parts, trained_as=whole)
    assert ours.server.equal(theirs.server)
    assert [m["clients"] for m in ours.metrics] == [m["clients"] for m in theirs.metrics]


def test_without_correction_and_losses_it_is_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    """A corrector that is zero, and stays so because the masks' noise is all it gets."""
    nothing = lambda width, hidden, depth, maps: nn.Sequential(nn.Conv2d(width, width, 1), _Zero())  # noqa: E731
    monkeypatch.setattr(decoupling, "narrowing", nothing)
    monkeypatch.setattr(
        torch, "rand_like", torch.zeros_like
    )  # the network's dropout sees the same numbers
    ours = trace(make("fedavg+dfdc", {"lam1": 0.0, "lam2": 0.0}))
    theirs = trace(make("fedavg"))
    for a, b in zip(ours.metrics, theirs.metrics, strict=True):
        assert a["clients"] == b["clients"]
        assert a["loss"]["ce"] == b["loss"]["ce"]
    model = ours.server.tree("model")
    for name, tensor in theirs.server.tree("model").items():
        assert torch.equal(model[name], tensor), name


class _Zero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0


@pytest.mark.parametrize(
    "base",
    ["fedavg", "fedprox", "moon", "fpl", "fedheal", "fedrcl", "fdse", "fedbn", "ditto", "scaffold"],
)
def test_round_any_weight_sharing_method(base: str) -> None:
    options = {
        "fedprox": {"modules": "own"},
        "moon": {"modules": "mean"},
        "fedheal": {"modules": "own"},
        "fdse": {"modules": "own"},
    }.get(base, {})
    seen = trace(make(f"{base}+dfdc", options), rounds=2)
    said = {n.split("/")[-1] for n in seen.metrics[0]["loss"]}
    assert {"decouple", "correct"} <= said
    assert all(math.isfinite(part) for part in seen.metrics[-1]["loss"].values())


def site_of(method, model: str = "resnet10", **options: object) -> ClientWorker:
    torch.manual_seed(0)
    net = build(model, Task((1, 8, 8), 4), **options)
    return ClientWorker(method, federation(), net, Training(batch=8), seed=7)


def test_bytes_are_fedavgs_when_modules_stay() -> None:
    plain, own, shared = (
        site_of(make(name, params), width=4)
        for name, params in (("fedavg", {}), ("f2dc", {"modules": "own"}), ("f2dc", {}))
    )
    down = [worker.method.download(first(worker), 0) for worker in (plain, own, shared)]
    assert down[0].nbytes == down[1].nbytes
    up = [
        worker.method.client(d, Payload(), ClientContext(worker, 0, 1)).upload
        for worker, d in zip((plain, own), down, strict=False)
    ]
    assert up[0].nbytes == up[1].nbytes
    (point,) = corrections(shared.model)
    more = sum(t.numel() for t in down[2].tree("model").values()) - sum(
        t.numel() for t in down[1].tree("model").values()
    )
    assert more == sum(t.numel() for t in point.state_dict().values())


def test_whose_modules() -> None:
    shared, mean, own = (
        trace(make("fedavg+dfdc", {"modules": m}), rounds=2) for m in ("shared", "mean", "own")
    )
    assert shared.metrics[-1]["common"] is not None
    assert mean.metrics[-1]["common"] is not None
    assert own.metrics[-1]["common"] is None, "part of the model exists at clients only"
    states = [Payload.decode(s) for s in own.states[-1]]
    kept = [s.tree("model") for s in states]
    assert all(any("decoupler" in n for n in tree) for tree in kept)
    # what clients keep with "mean" is theirs, and the server has the mean of it, weighted by size
    theirs = [Payload.decode(s).tree("modules") for s in mean.states[-1]]
    name = next(n for n in theirs[0] if n.endswith("corrector.0.weight"))
    sizes = torch.tensor([24.0, 40, 16, 32])
    expected = sum(w * t[name] for w, t in zip(sizes / sizes.sum(), theirs, strict=True))
    assert torch.allclose(mean.server.tree("model")[name], expected, atol=1e-6)
    assert not torch.equal(theirs[0][name], theirs[1][name])


def test_own_modules_need_clients_that_keep_something() -> None:
    with pytest.raises(
        FedloomError, match="keep no private tensors; modules can be shared or mean"
    ):
        trace(make("ditto+dfdc", {"modules": "own"}), rounds=1)
    worker = site_of(make("fedprox+dfdc", {"modules": "own", "mu": 1e3}), width=4)
    update = worker.method.client(
        worker.method.download(first(worker), 0), Payload(), ClientContext(worker, 0, 1)
    )
    kept = update.state.tree("model")
    assert any(not torch.equal(kept[n], worker.first[n]) for n in kept), (
        "private modules train, and are not pulled"
    )


def test_methods_look_at_their_own_layers_only() -> None:
    """FedRCL's levels and FDSE's normalisations are the network's, with or without the modules."""
    from fedloom.parts.erasers import extractor_norms
    from fedloom.parts.levels import levels

    plain, wrapped = (site_of(make(name), width=4).model.body for name in ("fedavg", "fedavg+dfdc"))
    assert len(levels(plain)) == len(levels(wrapped)) == 5
    assert len(extractor_norms(plain)) == len(extractor_norms(wrapped)) > 9


def test_left_out_of_prediction_there_is_a_common_model() -> None:
    seen = trace(make("fedavg+dfdc", {"modules": "own", "use": "plain"}), rounds=2)
    record = seen.metrics[-1]
    assert record["clients"]["common"] == record["clients"]["before"]
    partly = trace(make("fedper+dfdc", {"modules": "own", "use": "plain"}), rounds=1)
    assert partly.metrics[-1]["common"] is None, "fedper's heads exist at clients only"


def test_which_feature_is_used() -> None:
    """The same training, other features at test: the servers agree, the scores need not."""
    seen = {
        use: trace(make("f2dc", {"use": use}), rounds=2)
        for use in ("whole", "robust", "related", "plain")
    }
    first_server = seen["whole"].server
    assert all(s.server.equal(first_server) for s in seen.values())
    scores = {str(s.metrics[-1]["clients"]["common"]) for s in seen.values()}
    assert len(scores) > 1


def test_losses_reach_body_and_modules() -> None:
    worker = site_of(make("f2dc", {"points": ["features.stage2", "features.stage4"]}), width=4)
    local = ClientContext(worker, 0, 1)
    before = worker.parameters()
    fit = local.fit(steps=3)
    assert set(fit.losses) == {"ce", "decouple", "correct"}
    after = worker.parameters()
    still = [n for n in before if torch.equal(before[n], after[n])]
    assert not still, f"{still[0]} did not move"
    assert len(corrections(worker.model)) == 2


def test_losses_are_a_mean_over_points() -> None:
    one, two = (
        ClientContext(site_of(make("f2dc", {"points": p}), width=4), 0, 1).fit(steps=1).losses
        for p in (["features.stage4"], ["features.stage4", "features.stage4.0"])
    )
    assert two["correct"] < 1.9 * one["correct"], "not a sum"


def test_vectors_take_the_maps_place() -> None:
    worker = site_of(make("f2dc"), "mlp", hidden=[12])
    (point,) = corrections(worker.model)
    assert [type(m) for m in point.decoupler] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert set(ClientContext(worker, 0, 1).fit(steps=2).losses) == {"ce", "decouple", "correct"}


def test_official_preset() -> None:
    from fedloom.engine.config import build as configured

    config = configured({"method": "f2dc", "preset": "official", "model": "resnet10"})
    assert (
        config.hyper["module_depth"],
        config.hyper["bottleneck"],
        config.hyper["random_mask"],
    ) == (3, 50, True)
    assert (config.training.lr, config.training.momentum) == (0.1, 0.0)
    sizes = trace(make("f2dc", {"weights": "size"}), rounds=1)
    plain = trace(make("fedavg+dfdc"), rounds=1, trained_as=make("f2dc"))
    assert sizes.server.tree("model").equal(plain.server.tree("model"))


def test_maps_as_targets_are_refused() -> None:
    from dataclasses import replace

    world = federation()
    data = replace(world.data, y=world.data.y[:, None, None].expand(-1, 8, 8).contiguous())
    worker = ClientWorker(
        make("f2dc"), replace(world, data=data), network(), Training(batch=8), seed=7
    )
    with pytest.raises(FedloomError, match="these have maps as targets"):
        ClientContext(worker, 0, 1).fit(lambda batch: batch.features.mean(), steps=1)


def test_correction_of_the_resident_model_is_one_module() -> None:
    assert [type(m) for m in corrections(site_of(make("moon+dfdc"), width=4).model)] == [Correction]

"""Noise on what is sent, and what it is worth."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from pydantic import ValidationError

import fedloom
from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.core.rng import torch_rng
from fedloom.methods._bases import Perturbed
from fedloom.methods.fedpcl import FedPCL
from fedloom.methods.fedproto import FedProto
from fedloom.models import Task, build
from fedloom.parts.privacy import account, epsilon


class Client:
    """As much of a `Local` as noise needs."""

    def rng(self, purpose: str) -> torch.Generator:
        return torch_rng(0, 1, 2, purpose)


ROWS = torch.tensor([[3.0, 4.0, 0.0], [0.3, 0.0, 0.4]]).repeat_interleave(
    20_000, 1
)  # of lengths 5 and 0.5, times 141
CLIENT: ClientContext = Client()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "mean", "deviation"),
    [("gaussian", 0.0, 0.05), ("laplace", 0.0, 0.05 * 2**0.5), ("exponential", 0.05, 0.05)],
)
def test_noise_is_of_the_kind_and_scale_asked_for(kind: str, mean: float, deviation: float) -> None:
    noise = Perturbed(perturb=kind).perturbed(ROWS, CLIENT) - 0.9 * ROWS
    assert noise.mean().item() == pytest.approx(mean, abs=0.002)
    assert noise.std().item() == pytest.approx(deviation, rel=0.03)
    again = Perturbed(perturb=kind).perturbed(ROWS, CLIENT)
    assert torch.equal(again, Perturbed(perturb=kind).perturbed(ROWS, CLIENT))


def test_dp_cuts_long_prototypes_and_adds_normal_noise() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    tiny = Perturbed(perturb="dp", bound=1.0, spread=1e-9).perturbed(rows, CLIENT)
    torch.testing.assert_close(tiny, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    much = Perturbed(perturb="dp", bound=1.0, spread=2.0).perturbed(0 * ROWS, CLIENT)
    assert much.std().item() == pytest.approx(2.0, rel=0.02) and abs(much.mean().item()) < 0.03


def test_what_is_promised() -> None:
    assert Perturbed().promise() is Perturbed(perturb="gaussian").promise() is None
    assert Perturbed(perturb="dp", spread=4.0, bound=0.5, failure=1e-6).promise() == (4.0, 1e-6)
    with pytest.raises(ValidationError, match="bound"):
        Perturbed(bound=0)


def exact_delta(epsilon: float, multiplier: float) -> float:
    """The smallest delta of one Gaussian mechanism (Balle and Wang, 2018)."""
    phi = torch.distributions.Normal(0, 1).cdf
    a, b = 1 / (2 * multiplier), epsilon * multiplier
    low, high = phi(torch.tensor([a - b, -a - b], dtype=torch.float64)).tolist()
    return low - math.exp(epsilon) * high


def test_epsilon_is_safe_and_near_the_exact_one() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    for multiplier, releases in ((5.0, 10), (20.0, 1000), (2.0, 1)):
        told = epsilon(multiplier, releases, 1e-5)
        whole = multiplier / releases**0.5  # Gaussian mechanisms compose to one
        assert exact_delta(told, whole) <= 1e-5 < exact_delta(0.85 * told, whole)
    assert epsilon(1.0, 0, 1e-5) == 0.0
    found = account((5.0, 1e-5), [10, 40, 10])
    assert found["epsilon"][0] == found["epsilon"][2] < found["epsilon"][1] == found["epsilon_max"]


def test_a_run_states_epsilon_for_each_client(tmp_path) -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    made = fedloom.run(
        "fedpcl",
        partition="pathological",
        clients=4,
        model="projection",
        rounds=3,
        eval_every=3,
        flatten=True,
        size=8,
        limit_train=6,
        classes_per_client=5,
        perturb="dp",
        spread=20.0,
        dropouts={2: [1]},
        out=tmp_path / "R",
    )
    told = made.summary["privacy"]
    owned = [sum(n > 0 for n in c["counts"]) for c in made.federation["clients"]]
    assert told["releases"] == [3 * owned[0], 2 * owned[1], 3 * owned[2], 3 * owned[3]]
    assert told["noise_multiplier"] == 10.0 and told["delta"] == 1e-5
    assert told["epsilon"][0] == epsilon(10.0, 3 * owned[0], 1e-5) > told["epsilon"][1] > 0
    page = (tmp_path / "R/report.html").read_text()
    assert f"client 1: {2 * owned[1]} prototypes sent, epsilon {told['epsilon'][1]:.4g}" in page


def test_no_promise_is_told_where_there_is_none(tmp_path) -> None:
    made = fedloom.run(
        "fedavg", model="linear", rounds=1, limit_train=2, limit_test=2, out=tmp_path / "R"
    )
    assert (
        made.summary["privacy"] is None
        and "<h2>Privacy" not in (tmp_path / "R/report.html").read_text()
    )


def test_without_the_accountant_a_promise_is_refused_before_training(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(FedloomError, match=r"pip install 'fedloom\[privacy\]'"):
        fedloom.run(
            "fedpcl", model="linear", rounds=1, perturb="dp", limit_train=2, out=tmp_path / "R"
        )
    assert not (tmp_path / "R").exists()


@pytest.mark.parametrize(("cls", "name"), [(FedPCL, "prototypes"), (FedProto, "protos/0")])
def test_methods_send_perturbed_prototypes_and_keep_their_own(cls, name) -> None:
    from fedloom.data.catalogue import Source, load
    from fedloom.data.federation import federate

    federation = federate(
        load("digits4", Source(flatten=True, size=8, limit_train=4)), "domains", clients=4
    )
    sent, kept = {}, {}
    for kind in ("none", "laplace"):
        method = cls(perturb=kind, shrink=0.0)
        torch.manual_seed(0)
        model = build("projection", Task(tuple(federation.data.x.shape[1:]), 10))
        worker = ClientWorker(method, federation, model, Training(steps=1), seed=0)
        worker.load()
        update = method.client(
            method.download(method.init(worker), 0), Payload(), ClientContext(worker, 0, 1)
        )
        sent[kind], kept[kind] = update.upload.tensor(name), update.state
    noise = sent["laplace"] - sent["none"]
    assert noise.abs().mean().item() == pytest.approx(0.05, rel=0.25)
    assert kept["laplace"].equal(kept["none"])

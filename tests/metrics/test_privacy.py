"""What a promise of privacy has cost."""

from __future__ import annotations

import math
import sys

import pytest
import torch

import fedloom
from fedloom.core.errors import FedloomError
from fedloom.core.method import Promise
from fedloom.metrics.distribution import MANY
from fedloom.metrics.privacy import account, epsilon


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
    found = account(Promise(5.0, 1e-5), [10, 40, 10])
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
            "fedpcl", model="mlp", rounds=1, perturb="dp", limit_train=2, out=tmp_path / "R"
        )
    assert not (tmp_path / "R").exists()


def test_very_many_clients_are_told_by_case() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    promise = Promise(5.0, 1e-5, "round")
    few = account(promise, [10, 0, 10], [0.5, 0.5, 0.25])
    many = account(promise, [10, 0, 10] + [10] * MANY, [0.5, 0.5, 0.25] + [0.5] * MANY)
    assert few["releases"] == [10, 0, 10] and "clients" not in few
    assert many["releases"] == [0, 10, 10] and many["rates"] == [0.5, 0.25, 0.5]
    assert many["clients"] == [1, 1, MANY + 1]
    assert many["epsilon"] == [0.0, few["epsilon"][2], few["epsilon"][0]]

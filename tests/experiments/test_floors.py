"""What needs no model: chance, the most frequent class of all, the most frequent class of each."""

from __future__ import annotations

import pytest

from fedloom.experiments.floors import without_model

CLIENTS = [  # most frequent in training: 0, then 2 and 2; over all clients: 2
    {"domain": "a", "counts": [5, 1, 0], "test_counts": [3, 1, 0]},
    {"domain": "b", "counts": [0, 1, 7], "test_counts": [0, 2, 2]},
    {"domain": "b", "counts": [0, 0, 2], "test_counts": [0, 0, 8]},
    {"domain": "c", "counts": [0, 9, 0], "test_counts": [0, 0, 0]},  # no test samples
]


def test_accuracies_without_a_model_by_hand() -> None:
    found = without_model({"classes": ["x", "y", "z"], "clients": CLIENTS[:3]})
    third = pytest.approx(1 / 3)
    assert set(found["chance"].values()) == {found["chance"]["accuracy"]}
    assert found["chance"]["domain_avg"] == third
    common = found["majority"]
    assert common["personal.accuracy_weighted"] == pytest.approx(10 / 16)
    assert common["personal.accuracy_mean"] == pytest.approx((0 + 0.5 + 1) / 3)
    assert common["domains.a"] == 0 and common["domains.b"] == pytest.approx(10 / 12)
    assert common["domain_avg"] == pytest.approx(5 / 12)
    own = found["own majority"]
    assert own["personal.accuracy_weighted"] == pytest.approx(13 / 16)
    assert own["domain_avg"] == pytest.approx((0.75 + 10 / 12) / 2)


def test_a_client_without_test_samples_counts_as_training_data_only() -> None:
    found = without_model({"classes": ["x", "y", "z"], "clients": CLIENTS})
    assert found["majority"]["personal.accuracy_weighted"] == pytest.approx(3 / 16)  # class 1 now
    assert "domains.c" not in found["majority"]


def test_clients_without_a_domain_have_accuracies_all_the_same() -> None:
    clients = [{"domain": None, "counts": [1, 0], "test_counts": [1, 1]}]
    found = without_model({"classes": ["x", "y"], "clients": clients})
    assert found["own majority"]["personal.accuracy_mean"] == 0.5

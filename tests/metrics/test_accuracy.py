"""Accuracies and their spreads, against numbers worked out by hand."""

import math

import numpy as np
import pytest

from fedloom.metrics.accuracy import accuracies, summarise

FIGURES = {
    "accuracy_mean",
    "accuracy_weighted",
    "accuracy_std",
    "worst_client",
    "domains",
    "domain_avg",
    "domain_std",
    "sigma_type",
    "sigma_client",
}


def scores(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64)


def test_accuracies() -> None:
    found = accuracies(scores((3, 4), (0, 5), (0, 0), (2, 2)))
    assert found.tolist()[:2] == [0.75, 0.0] and np.isnan(found[2]) and found[3] == 1.0
    assert len(accuracies(np.zeros((0, 2), dtype=np.int64))) == 0


def test_one_client_per_domain() -> None:
    """Accuracies 0.5, 0.75 and 1.0: mean 0.75, deviations 0.25, 0 and 0.25."""
    found = summarise(scores((5, 10), (15, 20), (70, 70)), ["b", "c", "a"])
    assert set(found) == FIGURES
    assert found["domains"] == {"a": 1.0, "b": 0.5, "c": 0.75}
    assert list(found["domains"]) == ["a", "b", "c"]
    assert found["accuracy_mean"] == pytest.approx(0.75)
    assert found["accuracy_weighted"] == pytest.approx(90 / 100)
    assert found["accuracy_std"] == pytest.approx(math.sqrt(0.125 / 3))  # ddof 0
    assert found["worst_client"] == 0.5
    assert found["domain_avg"] == pytest.approx(0.75)
    assert found["domain_std"] == pytest.approx(0.25)  # ddof 1: sqrt(0.125 / 2)
    assert found["sigma_type"] == pytest.approx(math.sqrt(0.125 / 3))  # ddof 0
    assert found["sigma_client"] == pytest.approx(math.sqrt(0.125 / 3))


def test_spreads_as_the_papers_give_them() -> None:
    """FedAvg on PACS in the F2DC paper: the spread of domain accuracies, 11.73, is with ddof 1."""
    percent = (60.98, 52.49, 74.63, 77.46)
    found = summarise(
        scores(*((round(100 * p), 10_000) for p in percent)), ["photo", "art", "cartoon", "sketch"]
    )
    assert round(100 * found["domain_avg"], 2) == 66.39
    assert round(100 * found["domain_std"], 2) == 11.73
    assert round(100 * found["sigma_type"], 2) == 10.16


def test_clients_of_a_domain_are_pooled() -> None:
    """Domain a: (1 + 27) / (2 + 38) = 0.7, not the mean of 0.5 and 27/38; domain b: 0.3."""
    found = summarise(scores((1, 2), (3, 10), (27, 38)), ["a", "b", "a"])
    assert found["domains"] == pytest.approx({"a": 0.7, "b": 0.3})
    assert found["domain_avg"] == pytest.approx(0.5)
    assert found["domain_std"] == pytest.approx(math.sqrt(0.08))
    assert found["sigma_type"] == pytest.approx(0.2)
    # Clients count with their domain's accuracy: 0.7, 0.3, 0.7, mean 17/30.
    assert found["sigma_client"] == pytest.approx(
        math.sqrt((2 * (0.7 - 17 / 30) ** 2 + (0.3 - 17 / 30) ** 2) / 3)
    )
    own = [0.5, 0.3, 27 / 38]
    mean = sum(own) / 3
    assert found["accuracy_mean"] == pytest.approx(mean)
    assert found["accuracy_std"] == pytest.approx(math.sqrt(sum((a - mean) ** 2 for a in own) / 3))
    assert found["accuracy_weighted"] == pytest.approx(31 / 50)
    assert found["worst_client"] == pytest.approx(0.3)


def test_clients_without_test_samples_are_left_out() -> None:
    with_empty = summarise(
        scores((0, 0), (5, 10), (0, 0), (8, 10), (0, 0)), ["a", "a", "b", "b", "c"]
    )
    assert with_empty == summarise(scores((5, 10), (8, 10)), ["a", "b"])
    assert with_empty["domains"] == {"a": 0.5, "b": 0.8}  # c has no samples at all
    assert with_empty["worst_client"] == 0.5


def test_nobody_has_test_samples() -> None:
    assert summarise(scores((0, 0), (0, 0)), ["a", None]) == {}
    assert summarise(np.zeros((0, 2), dtype=np.int64), []) == {}


def test_with_one_domain_clients_count_with_their_own_accuracy() -> None:
    found = summarise(scores((5, 10), (9, 10)), ["a", "a"])
    assert found["domains"] == {"a": 0.7}
    assert found["domain_avg"] == 0.7
    assert found["domain_std"] is None
    assert found["sigma_type"] is None
    assert found["sigma_client"] == found["accuracy_std"] == pytest.approx(0.2)


def test_clients_of_no_single_domain() -> None:
    found = summarise(scores((5, 10), (9, 10)), [None, None])
    assert found["domains"] == {}
    assert found["domain_avg"] is found["domain_std"] is found["sigma_type"] is None
    assert (
        found["sigma_client"] == found["accuracy_std"] == pytest.approx(0.2)
    )  # each with its own accuracy


def test_some_clients_have_a_domain() -> None:
    """Domain a pools (1, 2) and (5, 8) to 0.6; the third client has no domain and keeps 0.9."""
    found = summarise(scores((1, 2), (5, 8), (9, 10), (6, 10)), ["a", "a", None, "b"])
    assert found["domains"] == pytest.approx({"a": 0.6, "b": 0.6})
    assert found["sigma_type"] == pytest.approx(0.0)
    assert found["sigma_client"] == pytest.approx(0.3 * math.sqrt(3) / 4)  # of 0.6, 0.6, 0.9, 0.6
    assert found["accuracy_weighted"] == pytest.approx(21 / 30)


def test_figures_are_plain_values() -> None:
    found = summarise(scores((1, 2), (5, 8), (9, 10)), ["a", "a", "b"])
    values = [*(v for k, v in found.items() if k != "domains"), *found["domains"].values()]
    assert all(type(v) is float for v in values)


def test_each_client_needs_its_domain() -> None:
    with pytest.raises(ValueError, match="1 domains for 2 clients"):
        summarise(scores((1, 2), (5, 8)), ["a"])

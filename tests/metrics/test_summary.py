"""A run's summary: which rounds are chosen, and what is read at them."""

import copy
from typing import Any

import numpy as np
import pytest

from fedloom.metrics.accuracy import summarise
from fedloom.metrics.summary import SPREADS, summarise_run

TIMING = [
    {"round": 1, "seconds": 1.25, "peak_rss_mb": 100.0},
    {"round": 2, "seconds": 0.5, "peak_rss_mb": 140.04},
    {"round": 3, "seconds": 0.25, "peak_rss_mb": 120.0},
]


def figures(*correct: int) -> dict[str, Any]:
    """The figures of clients with ten test samples each, two in each of the domains a and b."""
    scores = np.array([(c, 10) for c in correct], dtype=np.int64).reshape(-1, 2)
    return summarise(scores, ["a", "a", "b", "b"][: len(correct)])


def record(
    round: int,
    correct: tuple[int, ...],
    held: float | None,
    after: tuple[int, ...] | None = None,
    common: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    before = figures(*correct)
    return {
        "round": round,
        "personal": before,
        "before": before,
        "after": figures(*(after or correct)),
        "common": figures(*common) if common else None,
        "validation": {"personal": held, "common": None},
        "bytes_total": {"up": 100 * round, "down": 300 * round},
        "floats": {"up": 10.0 * round, "down": 20.0},
    }


# Test accuracy is best in round 4 (mean 0.8), validation accuracy in round 2; round 6 is the last.
RUN = [
    record(2, (5, 5, 5, 9), 0.9, after=(6, 6, 6, 6), common=(1, 1, 1, 1)),
    record(4, (8, 8, 6, 10), 0.7, after=(7, 7, 7, 7), common=(2, 2, 4, 4)),
    record(6, (7, 5, 6, 6), 0.8, after=(8, 8, 8, 9), common=(3, 3, 3, 3)),
]


def at(last: Any, best: Any, held: Any) -> dict[str, Any]:
    return {"last": last, "best": best, "best_by_validation": held}


def test_which_rounds_are_chosen() -> None:
    assert summarise_run(RUN, TIMING)["chosen_rounds"] == at(6, 4, 2)


def test_what_is_read_at_them() -> None:
    found = summarise_run(RUN, TIMING)
    assert found["personal"]["accuracy_mean"] == pytest.approx(at(0.6, 0.8, 0.6))
    assert found["personal"]["accuracy_weighted"] == pytest.approx(at(0.6, 0.8, 0.6))
    # Deviations from the mean: (.1, -.1, 0, 0), (0, 0, -.2, .2) and (-.1, -.1, -.1, .3).
    assert found["personal"]["accuracy_std"] == pytest.approx(at(0.005**0.5, 0.02**0.5, 0.03**0.5))
    assert found["before"]["accuracy_mean"] == pytest.approx(at(0.6, 0.8, 0.6))
    assert found["after"]["accuracy_mean"] == pytest.approx(at(0.825, 0.7, 0.6))
    assert found["domains"] == {
        "a": pytest.approx(at(0.6, 0.8, 0.5)),
        "b": pytest.approx(at(0.6, 0.8, 0.7)),
    }
    assert found["domain_avg"] == pytest.approx(at(0.6, 0.8, 0.6))
    assert found["domain_std"] == pytest.approx(at(0.0, 0.0, 0.02**0.5))  # ddof 1 of 0.5 and 0.7
    assert found["sigma_type"] == pytest.approx(at(0.0, 0.0, 0.1))
    assert found["sigma_client"] == pytest.approx(at(0.0, 0.0, 0.1))
    assert found["worst_client"] == pytest.approx(at(0.5, 0.6, 0.5))
    assert set(SPREADS) <= set(found)


def test_the_common_model_is_read_at_the_rounds_of_the_personal_one() -> None:
    common = summarise_run(RUN, TIMING)["common"]
    assert common["accuracy"] == pytest.approx(at(0.3, 0.3, 0.1))
    assert common["domains"] == {
        "a": pytest.approx(at(0.3, 0.2, 0.1)),
        "b": pytest.approx(at(0.3, 0.4, 0.1)),
    }
    assert common["sigma_type"] == pytest.approx(at(0.0, 0.1, 0.0))
    assert set(common) == {"accuracy", "domains", *SPREADS}


def test_there_may_be_no_common_model() -> None:
    assert summarise_run([record(1, (5, 5, 5, 5), 0.5)], [])["common"] is None


def test_without_validation_data() -> None:
    metrics = [
        record(1, (5, 5, 5, 5), None),
        record(2, (9, 9, 9, 9), None),
        record(3, (6, 6, 6, 6), None),
    ]
    found = summarise_run(metrics, [])
    assert found["chosen_rounds"] == at(3, 2, None)
    assert found["personal"]["accuracy_mean"] == pytest.approx(at(0.6, 0.9, None))
    assert found["after"]["accuracy_mean"]["best_by_validation"] is None
    assert found["domains"]["a"] == pytest.approx(at(0.6, 0.9, None))
    assert found["worst_client"] == pytest.approx(at(0.6, 0.9, None))


def test_validation_may_be_zero() -> None:
    """An accuracy of 0 is a number, not a missing one."""
    found = summarise_run([record(1, (0, 0, 0, 0), 0.0), record(2, (0, 0, 0, 0), None)], [])
    assert found["chosen_rounds"] == at(2, 1, 1)
    assert found["personal"]["accuracy_mean"] == at(0.0, 0.0, 0.0)
    assert found["domains"]["b"] == at(0.0, 0.0, 0.0)


def test_of_equal_rounds_the_first_is_chosen() -> None:
    metrics = [record(r, (5, 5, 5, 5), 0.5) for r in (1, 2, 3)]
    assert summarise_run(metrics, [])["chosen_rounds"] == at(3, 1, 1)


def test_one_domain_has_no_spread() -> None:
    found = summarise_run([record(1, (5, 7), 0.5)], [])
    assert list(found["domains"]) == ["a"]
    assert found["domain_std"] == found["sigma_type"] == at(None, None, None)
    assert found["domain_avg"] == pytest.approx(at(0.6, 0.6, 0.6))


def test_cost() -> None:
    found = summarise_run(RUN, TIMING)
    assert found["bytes"] == {
        "up": {"total": 600, "per_round": 100.0},
        "down": {"total": 1800, "per_round": 300.0},
    }
    assert found["floats"] == {"up": 60.0, "down": 20.0}  # of the last round
    assert found["seconds"] == 2.0
    assert found["peak_rss_mb"] == 140.0


def test_nothing_was_measured() -> None:
    found = summarise_run([], [])
    assert found["chosen_rounds"] == {}
    assert found["common"] is None
    assert found["bytes"] == {
        "up": {"total": 0, "per_round": 0},
        "down": {"total": 0, "per_round": 0},
    }
    assert (found["seconds"], found["peak_rss_mb"]) == (0, 0.0)


def test_nobody_has_test_samples() -> None:
    metrics = [{**record(3, (), 0.5), "common": {}}]
    found = summarise_run(metrics, TIMING)
    assert found["chosen_rounds"] == {}
    assert found["personal"] == found["domains"] == {}
    assert found["bytes"]["up"] == {"total": 300, "per_round": 100.0}


def test_metrics_are_not_changed() -> None:
    before = copy.deepcopy((RUN, TIMING))
    summarise_run(RUN, TIMING)
    assert before == (RUN, TIMING)

"""What is decided from accuracies, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import pytest

from fedloom.metrics.gains import Accuracies, gain
from fedloom.report.verdict import (
    Kind,
    Samples,
    Verdict,
    client_names,
    judge,
    mean_accuracy,
    named,
    sentence,
    who,
)

WOBBLE = (0.0, 0.012, -0.008, 0.004)


def flat(mean: float, clients: int = 3) -> Accuracies:
    """Accuracies of four seeds that lie a little round a mean."""
    return {seed: [mean + shift] * clients for seed, shift in enumerate(WOBBLE)}


def shaky(mean: float) -> Accuracies:
    """Accuracies that depend on the seed more than on anything else."""
    return {seed: [mean + 12 * shift] * 3 for seed, shift in enumerate(WOBBLE)}


def level(mean: float) -> Accuracies:
    return {seed: [mean] * 3 for seed in range(len(WOBBLE))}


CASES: dict[str, tuple[Mapping[str, Accuracies], tuple[str, str]]] = {
    "a method that is surely better": (
        {"local": level(0.5), "fedavg": level(0.4), "ditto": flat(0.6)},
        ("federate", "ditto"),
    ),
    "FedAvg if nothing beats it by much": (
        {"local": level(0.5), "fedavg": flat(0.6), "ditto": flat(0.604)},
        ("federate", "fedavg"),
    ),
    "not FedAvg if the other is surely and clearly better": (
        {"local": level(0.5), "fedavg": level(0.6), "ditto": flat(0.63)},
        ("federate", "ditto"),
    ),
    "alone if everything is worse": (
        {"local": level(0.7), "fedavg": flat(0.3), "ditto": flat(0.6)},
        ("alone", "ditto"),
    ),
    "alone if the gain is not worth the traffic": (
        {"local": {s: [0.7] * 3 for s in range(4)}, "fedavg": {s: [0.702] * 3 for s in range(4)}},
        ("alone", "fedavg"),
    ),
    "longer if it leans that way": (
        {"local": level(0.5), "fedavg": shaky(0.56)},
        ("longer", "fedavg"),
    ),
    "alone if it could be anything": (
        {"local": level(0.5), "fedavg": shaky(0.49)},
        ("alone", "fedavg"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_judge(case: str) -> None:
    results, expected = CASES[case]
    assert tuple(judge(results, level(0.1))) == expected


def test_a_method_that_catches_up_wants_more_rounds() -> None:
    results = {"local": level(0.5), "fedavg": flat(0.48)}
    assert judge(results, rises={"local": 0.0, "fedavg": 0.1}).kind == "longer"
    assert judge(results, rises={"local": 0.09, "fedavg": 0.095}).kind == "alone"
    assert judge(results, rises={"local": 0.0, "fedavg": 0.015}).kind == "alone"


def test_nothing_is_learned_by_naming_the_most_frequent_class() -> None:
    results = {"local": flat(0.3), "fedavg": flat(0.31)}
    assert judge(results, level(0.31)).kind == "nothing"
    assert judge(results, level(0.2)).kind != "nothing"


def verdict(kind: str, ours: Accuracies, alone: Accuracies, method: str = "ditto") -> Verdict:
    found = gain(ours, alone)
    assert found is not None
    means = (mean_accuracy(ours), mean_accuracy(alone))
    return Verdict(kind, method, found, *means, majority=0.1, rounds=8, rise=0.03)  # type: ignore[arg-type]


def test_the_conclusion_comes_first_and_has_its_figures() -> None:
    told = sentence(verdict("federate", flat(0.6), level(0.5)))
    assert told.startswith("Pick ditto: clients gain 10.2 points")
    assert "60.2 % instead of 50.0 % alone" in told
    assert "4 seeds, paired over 3 clients" in told
    told = sentence(verdict("alone", flat(0.3), level(0.5)))
    assert told.startswith("Do not federate: even ditto, the best tried, costs 19.8 points")
    told = sentence(verdict("longer", shaky(0.56), level(0.5)))
    assert told.startswith("Train longer: after 8 rounds ditto is ahead of training alone, but not")
    assert "brought 3.0 points" in told
    told = sentence(verdict("nothing", level(0.1), level(0.11)))
    assert told.startswith("Nothing can be learned")
    assert "11.0 % against 10.0 %" in told


@pytest.mark.parametrize("samples", ["test samples", "held-out training samples"])
def test_every_verdict_says_what_its_figures_are_of(samples: Samples) -> None:
    for kind in get_args(Kind):
        found = replace(verdict(kind, shaky(0.56), level(0.5)), samples=samples)
        assert f"on {samples}" in sentence(found)
        assert f"on {samples}" in sentence(replace(found, probe=0.7))
        assert "samples" not in sentence(replace(found, samples=""))


def test_a_lead_that_only_test_data_make_sure_is_no_contradiction() -> None:
    told = sentence(verdict("longer", flat(0.6), level(0.5)))
    assert "is ahead of training alone, but on validation data was not surely so (60.2 %" in told


def test_figures_that_do_not_bear_out_the_decision_are_said_to_be_in_doubt() -> None:
    assert "with doubt" in sentence(verdict("federate", shaky(0.5), level(0.5)))
    tested = replace(verdict("alone", flat(0.6), level(0.5)), samples="test samples")
    assert "with doubt" in sentence(tested)


def test_who_gains_and_who_loses_by_name() -> None:
    found = gain({0: [0.7, 0.2, 0.505, None]}, {0: [0.5, 0.5, 0.5, 0.5]})
    assert found is not None
    assert who(found, ["a", "b", "c", "d"]) == (["a +20.0"], ["b -30.0"])
    assert named(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_clients_are_called_by_their_domain_if_it_is_theirs_alone() -> None:
    names = client_names(["mnist", None, "svhn", "svhn"])
    assert names == ["mnist", "client 1", "client 2 (svhn)", "client 3 (svhn)"]

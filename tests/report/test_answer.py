"""The answer on the first screen, from made-up runs for which it is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedloom.metrics.registry import METRICS
from fedloom.report import RunData
from fedloom.report.answer import Answer, answer
from fedloom.report.conclusion import overview
from fedloom.report.export import table
from fedloom.report.page import Page

Make = Callable[..., RunData]
BASE = [0.50, 0.55, 0.60, 0.65]


def comparison(make: Make, seeds: int = 3, **gains: Sequence[float]) -> list[RunData]:
    """`local`, and methods whose clients lie these amounts above it, with a little noise."""
    runs = []
    for seed in range(seeds):
        base = [value + 0.001 * seed for value in BASE]
        runs.append(make("local", base, seed, up=0))
        for place, (method, each) in enumerate(gains.items()):
            noise = 0.002 * (seed - 1) * (-1) ** place
            values = [value + gain + noise for value, gain in zip(base, each, strict=True)]
            runs.append(make(method, values, seed))
    return runs


def said(runs: list[RunData], **options: Any) -> Answer:
    found = answer(Page(runs, "t", **options))
    assert found is not None
    return found


def with_metric(run: RunData, name: str, values: Sequence[float]) -> RunData:
    """The run with another headline and each client's value of it."""
    key = METRICS.find(name).key
    mean = sum(values) / len(values)
    lines = []
    for line in run.metrics:
        own = {"headline": {"before": list(values), "after": list(values)}}
        lines.append({**line, **own, "personal": {**line["personal"], key: mean}})
    return replace(run, metrics=lines, config={**run.config, "schedule": {"metric": name}})


def with_majority(runs: list[RunData], share: float) -> list[RunData]:
    for run in runs:
        for line in run.metrics:
            line["personal"]["majority_mean"] = share
    return runs


def test_a_sure_winner_is_picked_with_whom_it_helps_and_what_it_costs(make: Make) -> None:
    found = said(comparison(make, fedbn=[0.1, 0.12, 0.08, -0.02], moon=[-0.05] * 4))
    assert found.line.startswith("Pick fedbn: clients gain 7.0 points on average over training")
    assert "over 3 seeds, paired over 4 clients" in found.line
    text = " ".join(found.more)
    assert "3 of 4 clients gain a point or more over training alone: client 1 (sketch) +12" in text
    assert "; 1 lose as much: client 3 (sketch) -2.0." in text
    assert "fedbn sends 2 MB up and 2 MB down per round, 8 MB in 2 rounds" in text


def test_what_is_no_better_than_alone_is_not_worth_a_federation(make: Make) -> None:
    assert said(comparison(make, fedbn=[-0.1] * 4)).line.startswith(
        "Do not federate: even fedbn, the best tried, costs 10.0 points"
    )
    level = said(comparison(make, fedbn=[0.001] * 4)).line
    assert level.startswith("Do not federate: fedbn, the best tried, is not measurably better")


def test_one_seed_is_too_early(make: Make) -> None:
    found = said(comparison(make, seeds=1, fedbn=[0.1] * 4))
    assert found.line.startswith("Too early to say: fedbn, the best tried, is 9.8 points ahead of")
    assert "one seed, which proves nothing" in found.line
    assert found.more[-1].startswith("Next: the same comparison with --seeds 0,1,2")


def test_the_simpler_method_is_picked_unless_another_is_surely_better(make: Make) -> None:
    found = said(comparison(make, fedavg=[0.1] * 4, moon=[0.1, 0.11, 0.09, 0.101]))
    assert found.line.startswith("Pick fedavg:")
    assert found.more[0].startswith("moon has a better mean, but not so surely")


def test_nothing_above_the_majority_class_is_nothing_learned(make: Make) -> None:
    runs = with_majority(comparison(make, fedbn=[0.01] * 4), 0.7)
    assert said(runs).line.startswith("Nothing can be learned from these data as they are")
    chart = overview(Page(runs, "t"))
    assert chart is not None and chart.figure.rule == pytest.approx(70.0)
    assert chart.figure.rule_name == "majority class 70.0 %"
    assert said(with_majority(comparison(make, fedbn=[0.1] * 4), 0.1)).line.startswith("Pick")


def test_where_there_is_no_run_of_local_nobody_is_told_to_federate(make: Make) -> None:
    one = said([make("fedavg", BASE)])
    assert one.line == "fedavg reaches 57.5 % accuracy on average over its clients."
    assert any("No run of local is on this page" in text for text in one.more)
    two = said([make("fedavg", BASE), make("moon", [0.9] * 4)])
    assert two.line.startswith("Of 2 methods moon comes first: it reaches 90.0 %")
    assert answer(Page([], "t")) is None


def test_another_reference_takes_the_place_of_local(make: Make) -> None:
    runs = comparison(make, fedavg=[0.2] * 4, fedbn=[0.1] * 4)
    found = said(runs, against="fedavg")
    assert found.line.startswith("Stay with fedavg: even fedbn, the best tried, costs 10.0 points")
    page = Page(runs, "t", against="fedavg")
    assert page.ranking.gain == "gain_over_fedavg"
    gains = {entry.name: page.ranking.values(page.ranking.gain)[entry.number][0]
             for entry in page.entries}  # fmt: skip
    assert gains["fedbn"] == pytest.approx(-0.1) and gains["fedavg"] is None


@pytest.mark.parametrize(("metric", "unit"), [("nll", "0.500"), ("ece", "50.0 points")])
def test_less_is_better_where_the_metric_says_so(make: Make, metric: str, unit: str) -> None:
    """Fedbn has half the loss of local, and the lower accuracy."""
    runs = []
    for seed in range(3):
        local = make("local", [0.9] * 4, seed)
        fedbn = make("fedbn", [0.5] * 4, seed)
        runs.append(with_metric(local, metric, [1.0 + 0.01 * seed] * 4))
        runs.append(with_metric(fedbn, metric, [0.5 + 0.01 * seed] * 4))
    page = Page(runs, "t")
    found = said(runs)
    assert found.line.startswith(f"Pick fedbn: clients gain {unit} on average over training alone")
    assert METRICS.find(metric).in_a_sentence in found.line and "accuracy" not in found.line
    (test,) = page.ranking.tests
    assert (test["a"], test["wins"], test["gap"]) == ("fedbn", 12, pytest.approx(0.5))
    assert (
        f"fedbn beats local by {unit} in {METRICS.find(metric).in_a_sentence}" in test["sentence"]
    )
    better = page.ranking.values(page.ranking.better_off)
    assert [better[entry.number][0] for entry in page.entries] == [None, 1.0]


def test_the_headline_is_the_round_chosen_on_validation_data(make: Make) -> None:
    run = make("fedavg", BASE, rounds=3, chosen_rounds={"best_by_validation": 1})
    early = [0.9, 0.8, 0.7, 0.6]
    run.metrics[0]["clients"]["before"] = early
    assert run.by_validation and run.clients == early
    assert run.figure("accuracy_mean") == run.metrics[0]["personal"]["accuracy_mean"]
    assert run.last_value("accuracy_mean") == run.metrics[2]["personal"]["accuracy_mean"]
    without = make("fedavg", BASE, rounds=3, chosen_rounds={"best_by_validation": None})
    assert not without.by_validation and without.clients == BASE


def test_a_method_that_still_improves_is_called_so(make: Make) -> None:
    last = {"chosen_rounds": {"best_by_validation": 6}}
    runs = []
    for seed in range(3):
        runs += [make("local", BASE, seed, rounds=6, **last)]
        runs += [make("fedbn", [v + 0.1 for v in BASE], seed, rounds=6, **last)]
    assert any("still improving in its last round" in text for text in said(runs).more)
    runs[1].summary["chosen_rounds"] = {"best_by_validation": 3}
    assert not any("still improving" in text for text in said(runs).more)


def test_the_latex_table_marks_what_is_significantly_worse(make: Make) -> None:
    runs = comparison(make, fedbn=[0.1, 0.12, 0.08, 0.09])
    rows = table(Page(runs, "A title"))
    assert r"\label{tab:a-title}" in rows and "significantly worse than the first method" in rows
    marked = [line for line in rows.splitlines() if "^{*}" in line and "&" in line]
    assert len(marked) == 1 and marked[0].startswith("Local &")
    assert "^{*}" not in table(Page(comparison(make, seeds=1, fedbn=[0.1] * 4), "t"))

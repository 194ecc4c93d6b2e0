"""The page follows the headline metric, and calls a tie a tie and a loss a loss."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedloom.metrics.registry import METRICS
from fedloom.report import RunData, render
from fedloom.report.conclusion import cards
from fedloom.report.export import table
from fedloom.report.page import Page
from fedloom.report.twins import SENTENCE

Make = Callable[..., RunData]


def judged_by(metric: str, value: float, run: RunData) -> RunData:
    """The run with another headline, which has this value in every round."""
    key = METRICS.find(metric).key
    config: dict[str, Any] = {**run.config, "schedule": {"rounds": 2, "metric": metric}}
    metrics = []
    for line in run.metrics:
        metrics.append({**line, "personal": {**line["personal"], key: value}})
    chosen = {"last": value, "best": value - 0.1, "best_by_validation": value + 0.1}
    personal = {**run.summary["personal"], key: chosen}
    summary = {**run.summary, "personal": personal}
    return replace(run, config=config, metrics=metrics, summary=summary)


def two_methods(make: Make, metric: str) -> list[RunData]:
    """Local has the higher accuracy, fedavg the lower value of the other metric."""
    return [
        judged_by(metric, 1.5, make("local", [0.9, 0.8])),
        judged_by(metric, 0.5, make("fedavg", [0.6, 0.5])),
    ]


def test_the_headline_comes_first_and_orders_the_methods(make: Make) -> None:
    page = Page(two_methods(make, "nll"), "t")
    keys = [column.key for column in page.ranking.columns()]
    assert keys[:3] == ["nll", "nll_last", "nll_best"]
    assert "personal" in keys[3:6]
    assert [entry.name for entry in page.ranking.order()] == ["fedavg", "local"]  # less is better
    first, second, *_ = cards(page)
    assert (first.about, first.entry.name) == ("Best negative log-likelihood", "fedavg")
    assert (first.value, first.unit) == ("0.500", "")
    assert first.rest == ", 1.000 ahead of local"
    assert (second.about, second.entry.name) == ("Highest personal accuracy", "local")
    text = html.unescape(render(two_methods(make, "nll"), "t"))
    assert METRICS.find("nll").explanation in text
    assert "lower is better. This is the headline" in text
    heads = re.findall(r"<h3>([^<]*by[^<]*)</h3>", text)
    assert "Personal negative log-likelihood by traffic" in heads
    assert "Personal accuracy by round" in heads


def test_a_headline_in_percent_leads_the_latex_table_too(make: Make) -> None:
    page = Page(two_methods(make, "macro_f1"), "t")
    heads = table(page).splitlines()[6]
    assert heads.startswith(r"Method & Macro F1 (\%) & Personal (\%)")
    assert [entry.name for entry in page.ranking.order()] == ["local", "fedavg"]
    assert cards(page)[0].rest == ", 100.0 points ahead of fedavg"


def test_runs_with_unlike_headlines_are_compared_by_accuracy(make: Make) -> None:
    local, fedavg = two_methods(make, "nll")
    page = Page([local, judged_by("macro_f1", 0.5, fedavg)], "t")
    assert page.ranking.columns()[0].key == "personal"


def test_labels_inside_a_sentence() -> None:
    metric = METRICS.find("accuracy")
    for label, inside in (("Balanced accuracy", "balanced accuracy"), ("Macro F1", "macro F1")):
        assert replace(metric, label=label).in_a_sentence == inside
    for label in ("AUC", "IoU"):
        assert replace(metric, label=label).in_a_sentence == label


def card(runs: list[RunData], about: str) -> tuple[str, str, str]:
    """The value, the method and the rest of the card about something."""
    matching = [card for card in cards(Page(runs, "t")) if card.about == about]
    assert len(matching) == 1
    return matching[0].value, matching[0].entry.name, matching[0].rest


def test_equal_methods_are_level(make: Make) -> None:
    runs = [make(name, [0.6, 0.8]) for name in ("fedavg", "fedprox")]
    _, name, rest = card(runs, "Highest personal accuracy")
    assert (name, rest) == ("fedavg", ", level with fedprox")
    assert card(runs, "Best for the worst-off client")[2] == " and 1 more"
    # 70.04 and 70.06 print as 70.0 and 70.1, but a lead of 0.0 points is none.
    runs = [make("fedavg", [0.6004, 0.8004]), make("moon", [0.6006, 0.8006])]
    assert card(runs, "Highest personal accuracy")[2] == ", level with fedavg"
    runs = [make(name, [0.6, 0.8]) for name in ("fedavg", "fedprox")]
    runs.append(make("moon", [0.6001, 0.8]))
    _, name, rest = card(runs, "Highest personal accuracy")
    assert (name, rest) == ("moon", ", level with fedavg and 1 more")


def test_a_mean_loss_is_not_shown_as_a_gain(make: Make) -> None:
    local = make("local", [0.6, 0.8])
    mixed = [local, make("fedavg", [0.61, 0.4])]
    value, _, rest = card(mixed, "Better off than alone")
    assert value == "not on average"
    assert rest == (
        " comes closest, with a mean loss of 19.5 points; 50.0 % of the clients are better off"
    )
    # Fedprox helps fewer clients, but it helps on average: it wins.
    three = [make("local", [0.6, 0.8, 0.7]), make("fedavg", [0.61, 0.81, 0.1])]
    three.append(make("fedprox", [0.6, 0.8, 0.8]))
    value, name, rest = card(three, "Most clients better off than alone")
    assert (value, name, rest) == ("33.3", "fedprox", ", mean gain +3.3 points")
    worse = [local, make("fedavg", [0.5, 0.7]), make("fedprox", [0.55, 0.7])]
    value, name, rest = card(worse, "Better off than alone")
    assert (value, name, rest) == (
        "no client",
        "fedprox",
        " comes closest, with a mean loss of 7.5 points",
    )
    level = [local, make("fedavg", [0.8, 0.6])]
    assert card(level, "Better off than alone")[2].startswith(" comes closest, level on average")


def test_a_method_that_equals_training_alone_wins_no_card(make: Make) -> None:
    runs = [make("local", [0.6, 0.8]), make("fedper", [0.6, 0.8]), make("fedavg", [0.5, 0.7])]
    page = Page(runs, "t")
    assert [entry.name for entry in page.ranking.twins] == ["fedper"]
    named = [(card.entry.name, card.rest) for card in cards(page)]
    assert "fedper" not in str(named) and named[0] == ("local", ", 10.0 points ahead of fedavg")
    assert SENTENCE in html.unescape(render(runs, "t"))
    twice = [make("local", [0.6, 0.8], seed=1), make("fedper", [0.6, 0.9], seed=1)]
    assert Page([*runs, *twice], "t").ranking.twins == []  # not with every seed

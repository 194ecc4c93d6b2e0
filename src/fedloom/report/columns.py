"""The leaderboard's columns: how each is read from a run, how it is shown, what it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..metrics.registry import DEFAULT, Metric
from .entries import ALONE, Entry, RunData, gains, number, present
from .figures import ABSENT, Value

MINUS, SIGMA = "\u2212", "\u03c3"
Get = Callable[[RunData, Sequence[RunData]], Value]
Show = Callable[[float], str]


def percent(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.1f}"


def signed(value: float) -> str:
    """A difference in points."""
    return f"{100 * value:+.1f}".replace("-", MINUS)


def signed_as(metric: Metric) -> Show:
    """How a difference in a metric is shown."""

    def show(value: float) -> str:
        sign = "+"
        if metric.factor * value < 0:
            sign = MINUS
        return f"{sign}{metric.shown(abs(value))}"

    return show


def amount(value: float) -> str:
    """A cost with two or three digits, whatever its size."""
    if value >= 1e5:
        return f"{value:.2g}".replace("e+0", "e").replace("e+", "e")
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2g}"


def megabytes(value: float) -> str:
    """Bytes as MB."""
    return amount(value / 1e6)


def whole(value: float) -> str:
    """A count."""
    return f"{value:,.0f}"


def gigaflops(value: float) -> str:
    """Operations as GFLOP."""
    return amount(value / 1e9)


def text(value: Value, std: Value, show: Show) -> str:
    """A value with its spread over seeds; a spread of zero, as of bytes, is left out."""
    if value is None:
        return ABSENT
    if not std:
        return show(value)
    return f"{show(value)} ± {show(std).lstrip('+')}"


@dataclass(frozen=True)
class Column:
    """A column. `key` is its name in `leaderboard.json`, `higher` says whether more is better.

    A column whose `higher` is None is shown but does not rank.
    """

    key: str
    group: str
    label: str
    unit: str
    get: Get
    show: Show = percent
    higher: bool | None = True
    minor: bool = False


def cell(entry: Entry, column: Column, runs: Sequence[RunData]) -> tuple[Value, Value]:
    """A method's mean and std over seeds in a column: the comparison's own if it has them.

    The cost of a target is shown only where every seed reached it: the lucky ones alone would look
    cheap.
    """
    reached = number(entry.row, "target_reached")
    seeds = len(entry.row.get("seeds", ()))
    if column.key.endswith("_to_target") and reached is not None and reached < seeds:
        return None, None
    from_board = number(entry.row, column.key)
    if from_board is not None:
        return from_board, number(entry.row, f"{column.key}_std")
    return entry.over(lambda run: column.get(run, runs))


# -- reading a run -------------------------------------------------------------------------------
def _figure(key: str) -> Get:
    return lambda run, _: run.figure(key)


def _last(key: str) -> Get:
    return lambda run, _: run.last_value(key)


def _best(key: str) -> Get:
    return lambda run, _: run.best_value(key)


def _common(key: str) -> Get:
    return lambda run, _: run.common(key)


def _summary(*path: str) -> Get:
    return lambda run, _: number(run.summary, *path)


def _sent(way: str) -> Get:
    return lambda run, _: run.sent(way)


def _better_off(against: str) -> Get:
    """The share of clients that gain."""

    def share(run: RunData, runs: Sequence[RunData]) -> Value:
        gained = present(gains(run, runs, against))
        if not gained:
            return None
        better_off = [gain for gain in gained if gain > 0]
        return len(better_off) / len(gained)

    return share


def _mean_gain(against: str) -> Get:
    def mean(run: RunData, runs: Sequence[RunData]) -> Value:
        gained = present(gains(run, runs, against))
        if not gained:
            return None
        return fmean(gained)

    return mean


def _worst_tenth(run: RunData, _: object) -> Value:
    accuracies = sorted(present(run.accuracies))
    if not accuracies:
        return None
    tenth = math.ceil(len(accuracies) / 10)
    return fmean(accuracies[:tenth])


def _clustering(run: RunData, _: object) -> Value:
    """Whether a method that finds groups of clients finds their domains."""
    return number(run.chosen, "clustering")


def _lost(run: RunData, _: object) -> Value:
    """The share of uploads that never came, in the evaluated rounds; None if all came."""
    asked = 0
    lost = 0
    for line in run.metrics:
        asked += line.get("participants", 0)
        lost += len(line.get("lost", ()))
    if not lost:
        return None
    return lost / asked


def _seconds(run: RunData, _: object) -> Value:
    summed_up = number(run.summary, "seconds")
    rounds = present(number(line, "seconds") for line in run.timing)
    if summed_up is not None or not rounds:
        return summed_up
    return sum(rounds)


def _from_board(*_: object) -> Value:
    """A figure that only a comparison computes."""
    return None


ACCURACY = (
    Column("personal", "Accuracy", "Personal", "%", _figure("accuracy_mean")),
    Column("personal_last", "Accuracy", "last\u00a0round", "%", _last("accuracy_mean"), minor=True),
    Column("personal_best", "Accuracy", "best\u00a0on test", "%", _best("accuracy_mean"),
           higher=None, minor=True),
    Column("common", "Accuracy", "Common", "%", _common("accuracy_mean")),
    Column("dice", "Accuracy", "Dice", "%", _figure("dice")),
)  # fmt: skip
OTHERS = (
    Column("worst_client", "Fairness", "Worst client", "%", _figure("worst_client")),
    Column("worst_decile", "Fairness", "Worst tenth", "%", _worst_tenth),
    Column("domain_avg", "Fairness", "Domain average", "%", _figure("domain_avg"), minor=True),
    Column("domain_std", "Fairness", "Domain std", "points", _figure("domain_std"), higher=False),
    Column("sigma_type", "Fairness", f"{SIGMA} type", "points", _figure("sigma_type"),
           higher=False, minor=True),
    Column("sigma_client", "Fairness", f"{SIGMA} client", "points", _figure("sigma_client"),
           higher=False, minor=True),
    Column("clustering", "Fairness", "Clients by type", "%", _clustering, minor=True),
    Column("bytes_up_per_round", "Cost", "Up", "MB/round", _sent("up"), megabytes, False),
    Column("bytes_down_per_round", "Cost", "Down", "MB/round", _sent("down"), megabytes, False),
    Column("floats_up", "Cost", "Numbers up", "client, round", _summary("floats", "up"), whole,
           None, True),
    Column("lost", "Cost", "Lost", "%\u00a0of\u00a0uploads", _lost, percent, None, True),
    Column("rounds_to_target", "Cost", "To target", "rounds", _from_board, amount, False),
    Column("bytes_to_target", "Cost", "To target", "MB", _from_board, megabytes, False),
    Column("seconds_to_target", "Cost", "To target", "s", _from_board, amount, None, True),
    Column("simulated_to_target", "Cost", "To target", "simulated\u00a0s", _from_board, amount,
           False),
    Column("flops_per_round", "Cost", "Work", "GFLOP/round", _from_board, gigaflops, False, True),
    Column("seconds", "Cost", "Time", "s", _seconds, amount, None, True),
    Column("peak_rss_mb", "Cost", "Memory", "MB", _summary("peak_rss_mb"), amount, None, True),
    Column("peak_device_mb", "Cost", "On\u00a0the device", "MB", _summary("peak_device_mb"), amount,
           None, True),
)  # fmt: skip


def columns_for(metric: Metric, against: str = ALONE) -> tuple[Column, ...]:
    """All columns of runs with this headline, measured against a method."""
    gained = _gain_columns(metric, against)
    if metric.name == DEFAULT:
        return (*ACCURACY, *gained, *OTHERS)
    # A metric that has a column of its own among the others is not shown twice.
    accuracy = [column for column in ACCURACY if column.key != metric.name]
    return (*_headline_columns(metric), *gained, *accuracy, *OTHERS)


def _headline_columns(metric: Metric) -> tuple[Column, ...]:
    """The columns of a headline that is not accuracy."""

    def column(key: str, label: str, get: Get, **options: Any) -> Column:
        unit = unit_of(metric)
        return Column(key, "Headline", label, unit, get, metric.shown, **options)

    name, key, higher = metric.name, metric.key, metric.higher
    return (
        column(name, metric.label, _figure(key), higher=higher),
        column(f"{name}_last", "last\u00a0round", _last(key), higher=higher, minor=True),
        column(f"{name}_best", "best\u00a0on test", _best(key), higher=None, minor=True),
        column(f"common_{name}", "Common", _common(key), higher=higher, minor=True),
    )


def _gain_columns(metric: Metric, against: str) -> tuple[Column, Column]:
    """How much clients gain over a method, and how many of them do."""
    group = f"Against {against}"
    if against == ALONE:
        group = "Against alone"
    unit = "points"
    if metric.unit != "percent":
        unit = "number"
    return (
        Column(f"gain_over_{against}", group, "Mean gain", unit, _mean_gain(against),
               signed_as(metric)),
        Column(f"better_than_{against}", group, "Better\u00a0off", "%\u00a0of\u00a0clients",
               _better_off(against)),
    )  # fmt: skip


def headline_key(metric: Metric) -> str:
    """The key of the column that methods are ranked by."""
    if metric.name == DEFAULT:
        return "personal"
    return metric.name


def unit_of(metric: Metric) -> str:
    """What stands beside or below the name of a metric."""
    if metric.unit == "percent":
        return "%"
    return "number"


ROUND = (
    "the round chosen on validation data, or the last evaluated one of runs without validation data"
)


def notes_for(metric: Metric, against: str = ALONE) -> dict[str, str]:
    """What the columns mean."""
    notes = {**NOTES, **_gain_notes(metric, against)}
    if metric.name == DEFAULT:
        return {**notes, "Personal": f"{NOTES['Personal']} This is the headline."}
    direction = "lower"
    if metric.higher:
        direction = "higher"
    headline = (
        f"{metric.explanation} Mean over the clients, each with its own model, in {ROUND}; "
        f"{direction} is better. This is the headline: it orders the methods."
    )
    return {metric.label: headline, **notes}


def _gain_notes(metric: Metric, against: str) -> dict[str, str]:
    what = "points"
    if metric.unit != "percent":
        what = "by how much"
    whose = f"run of {against}"
    if against == ALONE:
        whose += " (training alone)"
    measured = metric.in_a_sentence
    return {
        "Mean gain": f"{what} better than the same client's {whose} in {measured}, mean over "
        "clients.",
        "Better\u00a0off": "share of clients with a gain above zero.",
    }


NOTES = {
    "Personal": f"mean test accuracy of the clients, each with its own model, in {ROUND}; every "
    "client weighs the same. All other figures are of that round too.",
    "before / after local training": "whether a client is scored with what the server sends it, or "
    "with what it holds right after training on that; each method is judged as in its paper.",
    "last\u00a0round": "the same in the last evaluated round.",
    "best\u00a0on test": "the same in the round whose headline is best on test data. This choice "
    "flatters, so it does not rank.",
    "Common": "the mean over the clients with the one model for all.",
    "Worst tenth": "mean accuracy of the worst-off tenth of the clients.",
    "Domain std": "sample std (ddof 1) of the domains' accuracies; lower is fairer.",
    f"{SIGMA} type": "population std (ddof 0) of the domains' accuracies; lower is fairer.",
    f"{SIGMA} client": "population std (ddof 0) over clients, each with its domain's accuracy, "
    "or with its own if there are not two domains; lower is fairer.",
    "±": "std over seeds (ddof 1). Without it there is one seed only.",
    "Up, Down": "what all clients together send and receive, as serialised; MB are 10⁶ bytes.",
    "Numbers up": "how many floating-point numbers a client sends in a round: what papers count.",
    "Lost": "share of the uploads asked for that never came (drop-outs), in the evaluated rounds.",
    "Dice": "for segmentation, mean over the classes but the background; accuracies are then "
    "shares of pixels.",
    "To target": "the cost of reaching the comparison's target accuracy, where all seeds reach it.",
    "Time, Memory": "depend on the machine and its load: shown, but neither ranked nor marked.",
    "On\u00a0the device": "the most memory that the run took of an accelerator.",
}  # fmt: skip

"""Advice in words and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...metrics.gains import gain, oriented
from ...metrics.registry import DEFAULT, Metric, headline
from ...report.advice_table import cells, heads
from ...report.statistics import amount
from ...report.verdict import (
    ALONE,
    RISES,
    SIMPLE,
    Verdict,
    counted,
    mean_accuracy,
    named,
    sureness,
    who,
)
from ..leaderboard_text import table_line
from .judging import Tests
from .race import COMMON, Race, Stage
from .shortlist import Shortlist
from .work import Work


@dataclass(frozen=True)
class Story:
    """Everything that the words are about."""

    verdict: Verdict
    shortlist: Shortlist
    race: Race
    last: Stage
    tests: Tests
    clients: Sequence[str]  # their names
    bytes: Mapping[str, float]  # all that the method sends, up and down
    majority: float  # the accuracy of always naming a client's most frequent class
    majority_trained: float  # the same on the training samples by which the class is chosen

    @property
    def metric(self) -> Metric:
        """What decides."""
        return headline(self.verdict.metric)

    @property
    def short(self) -> bool:
        """Whether the race was too short to dismiss anything."""
        return self.verdict.kind == "unsure"


def notes(story: Story) -> list[str]:
    """For whom, at what cost, how surely, and what else there is to know."""
    verdict = story.verdict
    found = []
    if verdict.kind != "nothing":
        found += [_for_whom(story), _cost(story)]
    found += [_how_sure(story), *_plainer(story), _majority(story)]
    if story.short:
        found.append(_too_short(story))
    rise = verdict.rise
    if verdict.kind == "federate" and rise is not None and rise >= RISES:
        found.append(
            f"It still rises: the second half of its {counted(verdict.rounds, 'round')} brought "
            f"{amount(rise, story.metric)}, so more rounds may bring more."
        )
    missed = story.tests.hardly_found(verdict.method)
    if missed:
        found.append(f"{verdict.method} finds almost no sample of: {named(missed)}.")
    for remark in story.tests.row(verdict.method).get("remarks", [])[:1]:  # seeds are much alike
        found.append(f"{verdict.method} {remark}.")
    if story.race.stopped or not story.tests:
        found.append(_stopped(story))
    return found


def _for_whom(story: Story) -> str:
    if len(story.clients) != len(story.verdict.gain.clients):
        return f"{len(story.clients)} clients are too many to be listed."
    helped, hurt = who(story.verdict.gain, story.clients, story.metric.name)
    least, samples = "a point", story.verdict.samples
    if story.metric.unit != "percent":
        least = story.metric.shown(0.01)
    text = (
        f"On {samples}, with {story.verdict.method} no client gains {least} or more over training "
        "alone"
    )
    if helped:
        text = (
            f"On {samples}, {story.verdict.method} helps {len(helped)} of {len(story.clients)} "
            f"clients by {least} or more: {named(helped)}"
        )
    if hurt:
        return f"{text}; it hurts {len(hurt)}: {named(hurt)}."
    return f"{text}; no client loses as much."


def _cost(story: Story) -> str:
    work = _work(story, story.verdict.method)
    sent = {way: number / 1e6 for way, number in story.bytes.items()}
    seconds = work.points * story.last.rounds
    time = f"{seconds / 60:.2g} minutes"
    if seconds < 100:
        time = counted(max(1, round(seconds)), "second")
    rounds, verb = f"{story.last.rounds} rounds", "send"
    if story.last.rounds == 1:
        rounds, verb = "round", "sends"
    return (
        f"Its {rounds} {verb} {sent['up']:.1f} MB up and {sent['down']:.1f} MB down, all clients "
        f"together; a round computes {work.flops / 1e9:.3g} GFLOP, and all take about {time} on "
        "two cores of a laptop."
    )


def _work(story: Story, method: str) -> Work:
    for candidate in story.shortlist.candidates:
        if candidate.method == method:
            return candidate.work
    raise KeyError(method)


def _how_sure(story: Story) -> str:
    results = story.last.results
    method = story.verdict.method
    lead = gain(results[method], results[ALONE])
    assert lead is not None
    way = "better"
    if lead.mean < 0:
        way = "worse"
    by_what = ""
    if story.metric.name != DEFAULT:
        by_what = f" by {story.metric.in_a_sentence}"
    text = (
        f"Decided{by_what} without test data: on held-out training samples {method} is "
        f"{amount(lead.mean, story.metric)} {way} than training alone "
        f"({sureness(lead, story.metric.name)})."
    )
    if story.verdict.tested:
        text += " Test data were used once, for the figures of the verdict."
    return text


def _plainer(story: Story) -> list[str]:
    """Whether FedAvg, which everybody knows, would do as well as far as one can tell."""
    verdict, results = story.verdict, story.last.results
    if verdict.kind != "federate" or verdict.method in SIMPLE or COMMON not in results:
        return []
    lead = gain(results[verdict.method], results[COMMON])
    if lead is None or lead.won:
        return []
    return [
        f"{COMMON}, a plainer choice, is {amount(lead.mean, story.metric)} behind it on held-out "
        f"training samples, not surely ({sureness(lead, story.metric.name)})."
    ]


def _majority(story: Story) -> str:
    text = (
        "Majority class: always naming a client's most frequent class is right for "
        f"{100 * story.majority:.1f} % of its {story.verdict.samples} "
        f"({100 * story.majority_trained:.1f} % of all training samples)"
    )
    metric, reached = story.metric, story.verdict.majority
    if metric.name != DEFAULT and reached is not None:
        text += f"; its {metric.in_a_sentence} is {metric.shown(reached)}{metric.sign}"
    return f"{text}."


def _too_short(story: Story) -> str:
    last = story.last
    return (
        f"The budget had room for {counted(last.rounds, 'round')} with "
        f"{counted(last.seeds, 'seed')}, which is too little to rule anything out; the command "
        "below asks for enough."
    )


def _stopped(story: Story) -> str:
    last = story.last
    text = f"The clock stopped the race after a stage of {counted(last.rounds, 'round')}"
    if not story.race.stopped:
        text = "The clock stopped the runs with test data"
    return (
        f"{text}, so these figures may differ on another machine; the same command goes on from "
        "here."
    )


def table(story: Story) -> list[dict[str, Any]]:
    """A row for each method tried, in the order in which they left the race, the last first."""
    rows = []
    for candidate in story.shortlist.candidates:
        method = candidate.method
        row: dict[str, Any] = {"method": method, "helps": list(candidate.helps)}
        row |= {"rounds": 0, "seeds": 0, "validation": None, "gain": None, "low": None}
        row |= {"high": None, "test": None, "what": "not tried: the budget is too small"}
        for stage in story.race.stages:
            if method in stage.results:
                row |= _standing(stage, method)
        row["what"] = _outcome(story, method, row)
        if method in story.tests.results:
            tested = oriented(story.tests.results[method], story.metric.higher)
            row["test"] = round(mean_accuracy(tested), 6)
        row["points_per_round"] = round(candidate.work.points, 4)
        rows.append(row)
    sign = 1 if story.metric.higher else -1
    rows.sort(key=lambda row: (-row["rounds"], -row["seeds"], -sign * (row["validation"] or 0.0)))
    return rows


def _standing(stage: Stage, method: str) -> dict[str, Any]:
    """How a method stood in a stage."""
    accuracies = stage.results[method]
    standing: dict[str, Any] = {
        "rounds": stage.rounds,
        "seeds": stage.seeds,
        "validation": round(stage.mean(method), 6),
    }
    over = gain(accuracies, stage.results[ALONE])
    if over is not None and method != ALONE:
        standing["gain"] = round(over.mean, 6)
        if over.low is not None and over.high is not None:
            standing |= {"low": round(over.low, 6), "high": round(over.high, 6)}
    return standing


def _outcome(story: Story, method: str, row: Mapping[str, Any]) -> str:
    """What became of a method, in a few words."""
    if method in story.race.failed:
        return f"failed: {story.race.failed[method]}"
    if method in story.race.twins:
        return f"equal to {story.race.twins[method]} here"
    if not row["rounds"]:
        if method in story.race.plan.methods:
            return "not tried: the clock stopped the race before"
        return str(row["what"])
    if method == story.verdict.method and story.verdict.kind == "federate":
        return "picked"
    if method in story.last.results:
        return "in the final"
    return f"out after {counted(row['rounds'], 'round')}"


def markdown(values: Mapping[str, Any]) -> str:
    """The whole advice as Markdown, the verdict first."""
    lines = [f"**{values['verdict']}**", ""]
    for note in values["notes"]:
        lines.append(f"- {note}")
    lines += ["", f"Next: `{values['next']}`", "", "## Diagnosis", ""]
    for finding in values["diagnosis"]["findings"]:
        lines.append(f"- {finding['title']}: {finding['sentence']}")
    metric = headline(values["metric"])
    lines += ["", "## Methods tried", "", table_line(heads(metric))]
    lines.append(table_line(["---", "---:", "---:", "---:", "---:", "---:", "---"]))
    for row in values["table"]:
        lines.append(table_line(cells(row, metric)))
    left_out = values["left_out"]
    if left_out:
        lines += ["", "Not tried:", ""]
        for reason, methods in left_out.items():
            lines.append(f"- {', '.join(methods)}: {reason.rstrip('.')}.")
    return "\n".join(lines) + "\n"

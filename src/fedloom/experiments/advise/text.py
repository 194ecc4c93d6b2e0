"""Advice in words and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...metrics.gains import gain
from ...report.verdict import ALONE, RISES, Verdict, mean_accuracy, named, sureness, who
from ..leaderboard_text import table_line
from .judging import Tests
from .race import Race, Stage
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


def notes(story: Story) -> list[str]:
    """For whom, at what cost, how surely, and what else there is to know."""
    verdict = story.verdict
    found = []
    if verdict.kind != "nothing":
        found += [_for_whom(story), _cost(story)]
    found += [_how_sure(story), _majority(verdict)]
    rise = verdict.rise
    if verdict.kind == "federate" and rise is not None and rise >= RISES:
        found.append(
            f"It still rises: the second half of its {verdict.rounds} rounds brought "
            f"{100 * rise:.1f} points, so more rounds may bring more."
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
    helped, hurt = who(story.verdict.gain, story.clients)
    text = f"With {story.verdict.method} no client gains a point or more over training alone"
    if helped:
        text = (
            f"{story.verdict.method} helps {len(helped)} of {len(story.clients)} clients by a "
            f"point or more: {named(helped)}"
        )
    if hurt:
        return f"{text}; it hurts {len(hurt)}: {named(hurt)}."
    return f"{text}; no client loses as much."


def _cost(story: Story) -> str:
    work = _work(story, story.verdict.method)
    sent = {way: number / 1e6 for way, number in story.bytes.items()}
    minutes = work.seconds * story.last.rounds / 60
    return (
        f"Its {story.last.rounds} rounds send {sent['up']:.1f} MB up and {sent['down']:.1f} MB "
        f"down, all clients together, and compute {work.flops / 1e9:.3g} GFLOP each, about "
        f"{minutes:.2g} minutes on two cores of a laptop."
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
    side = "above"
    if lead.mean < 0:
        side = "below"
    text = (
        f"Decided without test data: on held-out training samples {method} is "
        f"{100 * abs(lead.mean):.1f} points {side} training alone ({sureness(lead)})."
    )
    if story.verdict.tested:
        text += " Test data were used once, for the figures of the verdict."
    return text


def _majority(verdict: Verdict) -> str:
    assert verdict.majority is not None
    return (
        "Majority class: always naming a client's most frequent class is right for "
        f"{100 * verdict.majority:.1f} %."
    )


def _stopped(story: Story) -> str:
    last = story.last
    text = f"The clock stopped the race after a stage of {last.rounds} rounds"
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
            row["test"] = round(mean_accuracy(story.tests.results[method]), 6)
        row["seconds_per_round"] = round(candidate.work.seconds, 4)
        rows.append(row)
    rows.sort(key=lambda row: (-row["rounds"], -row["seeds"], -(row["validation"] or 0.0)))
    return rows


def _standing(stage: Stage, method: str) -> dict[str, Any]:
    """How a method stood in a stage."""
    accuracies = stage.results[method]
    standing: dict[str, Any] = {
        "rounds": stage.rounds,
        "seeds": stage.seeds,
        "validation": round(mean_accuracy(accuracies), 6),
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
    if not row["rounds"]:
        if method in story.race.plan.methods:
            return "equal to local with this network"
        return str(row["what"])
    if method == story.verdict.method and story.verdict.kind == "federate":
        return "picked"
    if method in story.last.results:
        return "in the final"
    return f"out after {row['rounds']} rounds"


def markdown(values: Mapping[str, Any]) -> str:
    """The whole advice as Markdown, the verdict first."""
    lines = [f"**{values['verdict']}**", ""]
    for note in values["notes"]:
        lines.append(f"- {note}")
    lines += ["", f"Next: `{values['next']}`", "", "## Diagnosis", ""]
    for finding in values["diagnosis"]["findings"]:
        lines.append(f"- {finding['title']}: {finding['sentence']}")
    lines += ["", "## Methods tried", "", table_line(HEADS)]
    lines.append(table_line(["---", "---:", "---:", "---:", "---:", "---:", "---"]))
    for row in values["table"]:
        lines.append(table_line(cells(row)))
    left_out = values["left_out"]
    if left_out:
        lines += ["", "Not tried:", ""]
        for reason, methods in left_out.items():
            lines.append(f"- {', '.join(methods)}: {reason.rstrip('.')}.")
    return "\n".join(lines) + "\n"


HEADS = ("method", "rounds", "seeds", "held-out %", "over local", "test %", "")


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of the table as texts."""
    over = "-"
    if row["gain"] is not None:
        over = f"{100 * row['gain']:+.1f}"
    if row["low"] is not None:
        over += f" ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})"
    figures = []
    for name in ("validation", "test"):
        figure = "-"
        if row[name] is not None:
            figure = f"{100 * row[name]:.1f}"
        figures.append(figure)
    counts = [str(row["rounds"]), str(row["seeds"])]
    return [row["method"], *counts, figures[0], over, figures[1], row["what"]]

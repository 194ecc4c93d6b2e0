"""The plan of a race: how many rounds, methods and seeds fit a budget, decided before it starts.

The budget in minutes is compared with counted work (`work.py`), never with a clock, so the same
question with the same budget and seed always has the same plan, and therefore the same answer. The
clock only stops a race that takes too long all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...report.verdict import ALONE
from .shortlist import ALWAYS

SHARE = 0.8  # of the budget that counted work may fill; the rest is for reading and reports
STEPS = (25, 20, 16, 12, 10, 8, 6, 5, 4, 3, 2, 1)  # rounds of the first rung
ENOUGH = 3  # first rungs shorter than this say little: fewer methods are tried instead
FINALISTS = 2  # federated methods of the last rung: FedAvg and the best other
FIRST_SEEDS = (1, 2, 3)  # seeds of each rung
WANTED_SEEDS = 5  # there is room for so many, in case of doubt
MOST_SEEDS = 8
SECONDS_PER_RUN = 1.0  # to set up, to evaluate and to save


@dataclass(frozen=True)
class Rung:
    """One stage of the race: so many methods go on to so many rounds, with so many seeds."""

    rounds: int
    methods: int  # beside `local`
    seeds: int


@dataclass(frozen=True)
class Plan:
    """All stages, the methods that start, and how many seeds there may be in the end."""

    methods: tuple[str, ...]
    rungs: tuple[Rung, ...]
    most_seeds: int
    seconds: float  # of the assumed machine
    left_out: tuple[str, ...] = ()  # for which there is no time

    @property
    def rounds(self) -> int:
        """The rounds of the last stage."""
        return self.rungs[-1].rounds

    @property
    def step(self) -> int:
        """The rounds between evaluations, which are the rounds of the first stage."""
        return self.rungs[0].rounds

    @property
    def total_rounds(self) -> int:
        """The rounds of all runs together, if every seed is needed."""
        alike = dict.fromkeys(self.methods, 1.0)
        return round(_rounds(self.rungs, self.methods, alike, self.most_seeds))

    @property
    def sentence(self) -> str:
        """What will happen."""
        stages = []
        for rung in self.rungs:
            stages.append(f"{rung.methods} for {rung.rounds} rounds")
        return (
            f"the race: {', then '.join(stages)}, each beside `{ALONE}`; up to {self.most_seeds} "
            "seeds in the end, then test data for the best"
        )

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        rungs = [vars(rung) for rung in self.rungs]
        return {**vars(self), "rungs": rungs, "seconds": round(self.seconds, 1)}

    @staticmethod
    def stored(values: Mapping[str, Any]) -> Plan:
        """A plan from its plain values."""
        rungs = tuple(Rung(**rung) for rung in values["rungs"])
        lists = {name: tuple(values[name]) for name in ("methods", "left_out")}
        return Plan(**{**values, **lists, "rungs": rungs})


def make_plan(costs: Mapping[str, float], minutes: float, rounds: int | None = None) -> Plan:
    """The longest plan that fits the budget.

    `costs` has the seconds of a round by method, in the order of the shortlist. With `rounds`, the
    last stage has as many, and only methods and seeds are chosen.
    """
    steps: Sequence[int] = STEPS
    enough = ENOUGH
    if rounds is not None:
        steps = [max(1, math.ceil(rounds / 4))]
        enough = 1
    methods = list(costs)
    left_out: list[str] = []
    while True:
        step = _longest(steps, methods, costs, minutes)
        others = [method for method in methods if method not in ALWAYS]
        if (step is not None and step >= enough) or not others:
            break
        left_out.insert(0, others[-1])
        methods.remove(others[-1])
    rungs = _rungs(step or steps[-1], len(methods) - 1, rounds)
    seeds = FIRST_SEEDS[-1]
    while seeds < MOST_SEEDS and _seconds(rungs, methods, costs, seeds + 1) <= _budget(minutes):
        seeds += 1
    seconds = _seconds(rungs, methods, costs, seeds)
    return Plan(tuple(methods), rungs, seeds, round(seconds, 1), tuple(left_out))


def _budget(minutes: float) -> float:
    return SHARE * 60 * minutes


def _longest(
    steps: Sequence[int], methods: Sequence[str], costs: Mapping[str, float], minutes: float
) -> int | None:
    """The largest number of rounds of the first rung that fits; None if none does."""
    for step in steps:
        rungs = _rungs(step, len(methods) - 1, None)
        if _seconds(rungs, methods, costs, WANTED_SEEDS) <= _budget(minutes):
            return step
    return None


def _rungs(step: int, methods: int, rounds: int | None) -> tuple[Rung, ...]:
    """Three stages: each has half the methods of the one before and twice the rounds."""
    kept = [methods, max(FINALISTS, math.ceil(methods / 2)), FINALISTS]
    most = rounds or 4 * step
    lengths = [step, min(2 * step, most), most]
    rungs = []
    for length, number, seeds in zip(lengths, kept, FIRST_SEEDS, strict=True):
        rungs.append(Rung(length, min(number, methods), seeds))
    return tuple(rungs)


def _seconds(
    rungs: Sequence[Rung], methods: Sequence[str], costs: Mapping[str, float], seeds: int
) -> float:
    """What a plan takes at most, if the dearest methods go on."""
    runs = 0
    for rung in rungs:
        runs += (rung.methods + 1) * rung.seeds
    runs += (rungs[-1].methods + 1) * (seeds - rungs[-1].seeds) + 2 * seeds
    return _rounds(rungs, methods, costs, seeds) + runs * SECONDS_PER_RUN


def _rounds(
    rungs: Sequence[Rung], methods: Sequence[str], costs: Mapping[str, float], seeds: int
) -> float:
    """What all rounds cost. In the end one method and `local` are run with test data."""
    federated = sorted((costs[method] for method in methods if method != ALONE), reverse=True)
    total = 0.0
    before: Rung | None = None
    for rung in rungs:
        per_round = costs[ALONE] + sum(federated[: rung.methods])
        total += per_round * rung.rounds * rung.seeds
        if before:  # these rounds are there already
            total -= per_round * before.rounds * before.seeds
        before = rung
    last = rungs[-1]
    per_round = costs[ALONE] + sum(federated[: last.methods])
    total += per_round * last.rounds * (seeds - last.seeds)
    tested = costs[ALONE] + federated[0]
    return total + tested * last.rounds * seeds

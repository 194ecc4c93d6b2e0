"""The plan of a race: how many rounds, methods and seeds fit a budget, decided before it starts.

The budget is a number of points, and counted work (`work.py`) is what they are spent on, so the
same question with as many points always has the same plan, and therefore the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...report.verdict import ALONE, counted
from .shortlist import ALWAYS

STEPS = (25, 20, 16, 12, 10, 8, 6, 5, 4, 3, 2, 1)  # rounds of the first rung
ENOUGH = 3  # first rungs shorter than this say little: fewer methods are tried instead
FINALISTS = 2  # federated methods of the last rung: FedAvg and the best other
WANTED_SEEDS = 5  # there is room for so many, in case of doubt
MOST_SEEDS = 8
TELLING_SEEDS = 3  # with fewer, only a gain that is sure all the same tells something
POINTS_PER_RUN = 1.0  # to set up, to evaluate and to save
LEAST = ALWAYS[:2]  # without `local` and FedAvg there is nothing to say


@dataclass(frozen=True)
class Rung:
    """One stage of the race: so many methods go on to so many rounds, with so many seeds."""

    rounds: int
    methods: int  # beside `local`
    seeds: int


@dataclass(frozen=True)
class Plan:
    """All stages, the methods that start, and how many seeds there may be in the end.

    `points` is what it costs if every seed is needed and the dearest methods go on. `telling` is
    how many rounds the last stage must have before a method that is not ahead can be dismissed.
    """

    methods: tuple[str, ...]
    rungs: tuple[Rung, ...]
    most_seeds: int
    points: float
    telling: int
    left_out: tuple[str, ...] = ()  # for which there is no room

    @property
    def rounds(self) -> int:
        """The rounds of the last stage."""
        return self.rungs[-1].rounds

    @property
    def step(self) -> int:
        """The rounds between evaluations: those of the first stage, or half of a single one's."""
        if len(self.rungs) == 1:
            return max(1, self.rounds // 2)
        return self.rungs[0].rounds

    @property
    def tells(self) -> bool:
        """Whether the race is long enough to dismiss a method."""
        return self.rounds >= self.telling and self.most_seeds >= TELLING_SEEDS

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
            stages.append(f"{rung.methods} for {counted(rung.rounds, 'round')}")
        return (
            f"the race: {', then '.join(stages)}, each beside `{ALONE}`; up to "
            f"{counted(self.most_seeds, 'seed')} in the end, then test data for the best"
        )

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        rungs = [vars(rung) for rung in self.rungs]
        return {**vars(self), "rungs": rungs, "points": round(self.points, 1)}


@dataclass(frozen=True)
class _Shape:
    """A plan without its lengths: who starts, how many seeds each stage has, and in the end."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    room: int

    def rungs(self, step: int, last: int) -> tuple[Rung, ...]:
        """Each stage has half the methods of the one before and twice the rounds."""
        started = len(self.methods) - 1
        if len(self.seeds) == 1:
            return (Rung(last, started, self.seeds[0]),)
        kept = [started, max(FINALISTS, math.ceil(started / 2)), FINALISTS]
        lengths = [step, min(2 * step, last), last]
        rungs = []
        for length, number, seeds in zip(lengths, kept, self.seeds, strict=True):
            rungs.append(Rung(length, min(number, started), seeds))
        return tuple(rungs)


def make_plan(costs: Mapping[str, float], points: float, rounds: int | None = None) -> Plan | None:
    """The best plan that fits so many points; None if they are too few for any.

    `costs` has the points of a round by method, in the order of the shortlist. With `rounds`, the
    last stage has as many, if there is any way to have them.
    """
    telling = 4 * ENOUGH
    if rounds is not None:
        telling = min(telling, rounds)
    for shape in _shapes(tuple(costs)):
        for step, last in _lengths(shape, rounds):
            rungs = shape.rungs(step, last)
            if _points(rungs, shape.methods, costs, shape.room) > points:
                continue
            seeds = shape.room
            while seeds < MOST_SEEDS:
                if _points(rungs, shape.methods, costs, seeds + 1) > points:
                    break
                seeds += 1
            left_out = tuple(method for method in costs if method not in shape.methods)
            spent = round(_points(rungs, shape.methods, costs, seeds), 1)
            return Plan(shape.methods, rungs, seeds, spent, telling, left_out)
    return None


def least_points(costs: Mapping[str, float]) -> int:
    """The points below which there is no plan at all: FedAvg and `local` for a single round."""
    return math.ceil(_points((Rung(1, 1, 1),), LEAST, costs, 1))


def telling_points(costs: Mapping[str, float], rounds: int | None = None) -> int:
    """About how many points a plan needs that is long enough to tell."""
    points = least_points(costs)
    while True:
        plan = make_plan(costs, points, rounds)
        if plan is not None and plan.tells:
            return points
        points = math.ceil(1.2 * points)


def has_room_for_more(costs: Mapping[str, float], points: float, rounds: int | None) -> bool:
    """Whether methods beside those that are always tried have a chance to be tried, too."""
    always = {method: costs[method] for method in ALWAYS if method in costs}
    plan = make_plan(always, points, rounds)
    return plan is not None and len(plan.rungs) > 1 and plan.tells


def _shapes(methods: tuple[str, ...]) -> list[_Shape]:
    """From the plan that one would like to the least that can say anything at all."""
    always = tuple(method for method in methods if method in ALWAYS)
    shapes = []
    while len(methods) > len(always):
        shapes.append(_Shape(methods, (1, 2, 3), WANTED_SEEDS))
        dropped = [method for method in methods if method not in always][-1]
        methods = tuple(method for method in methods if method != dropped)
    shapes += [
        _Shape(always, (1, 2, 3), WANTED_SEEDS),
        _Shape(always, (1, 2, 3), TELLING_SEEDS),
        _Shape(always, (TELLING_SEEDS,), TELLING_SEEDS),
        _Shape(always, (2,), 2),
        _Shape(LEAST, (2,), 2),
        _Shape(LEAST, (1,), 1),
    ]
    return shapes


def _lengths(shape: _Shape, rounds: int | None) -> list[tuple[int, int]]:
    """The rounds of the first and the last stage to be tried with a shape, the longest first."""
    in_stages = len(shape.seeds) > 1
    if rounds is not None and in_stages:
        return [(max(1, math.ceil(rounds / 4)), rounds)]
    lengths = []
    if rounds is not None:
        lengths.append((rounds, rounds))
    for step in STEPS:
        if in_stages and (step >= ENOUGH or shape.room == TELLING_SEEDS):
            lengths.append((step, 4 * step))
        elif not in_stages and (rounds is None or step < rounds):
            lengths.append((step, step))
    return lengths


def _points(
    rungs: Sequence[Rung], methods: Sequence[str], costs: Mapping[str, float], seeds: int
) -> float:
    """What a plan costs at most, if the dearest methods go on."""
    runs = 0
    for rung in rungs:
        runs += (rung.methods + 1) * rung.seeds
    runs += (rungs[-1].methods + 1) * (seeds - rungs[-1].seeds) + 2 * seeds
    return _rounds(rungs, methods, costs, seeds) + runs * POINTS_PER_RUN


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

"""From a question to an answer: diagnose, choose methods, race them, test the best, and say it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ...core.errors import FedloomError
from ...core.files import parse_object, read_regular, write_atomic
from ...data.federation import Federation
from ...report.advice_page import advice_page
from ...report.verdict import Verdict, client_names, sentence
from ..plan import Display
from .budget import fitting_points, seconds_per_point
from .diagnosis import Diagnosis, diagnose
from .judging import Tests, decide, majority_rate, run_tests, verdict_of
from .onward import next_step
from .question import Question
from .race import COMMON, Pace, Race, Stage
from .schedule import Plan, has_room_for_more, least_points, make_plan
from .shortlist import ALWAYS, MOST, Shortlist, shortlist
from .text import Story, markdown, notes, table
from .work import Work, count_work
from .world import World

FOR_THE_RACE = 0.7  # of the time; the rest is for runs with test data


@dataclass(frozen=True)
class Advice:
    """The answer: all of it is in `values`, and in the folder as `advice.json`, `.md`, `.html`."""

    values: dict[str, Any]
    folder: Path
    seconds: float = field(default=0.0, compare=False)  # that it took, here and now

    @property
    def verdict(self) -> str:
        """The conclusion in one line."""
        return str(self.values["verdict"])

    @property
    def kind(self) -> str:
        """`federate`, `alone`, `longer` or `nothing`."""
        return str(self.values["kind"])

    @property
    def method(self) -> str:
        """The method that the verdict is about."""
        return str(self.values["method"])

    @property
    def notes(self) -> list[str]:
        """For whom, at what cost, how surely."""
        return list(self.values["notes"])

    @property
    def next(self) -> str:
        """The command to go on with."""
        return str(self.values["next"])

    @property
    def diagnosis(self) -> dict[str, Any]:
        """Troubles and findings."""
        return dict(self.values["diagnosis"])

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each method tried."""
        return list(self.values["table"])

    def __str__(self) -> str:
        return markdown(self.values)

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return markdown(self.values)


def advise(question: Question, watch: Display) -> Advice:
    """Answer a question; what an earlier call has computed in the folder is used again."""
    start = time.monotonic()
    # Settings are added to it below, and the same question may be asked again.
    question = replace(question, world=question.world.copy())
    world, seed = question.world, question.seed
    world.refuse_unsuitable(seed)
    asked = _refuse_another(question)
    watch.note("looking at who has what ...")
    diagnosis = diagnose(world.real(seed), world.encoded(seed), seed)
    remarks = world.adapt(diagnosis.troubles, seed)
    watch.note("counting what methods cost ...")
    chosen, points = _shortlist(question, diagnosis, start)
    plan = make_plan(_costs(chosen), points, question.rounds)
    assert plan is not None  # there are at least as many points as the least plan needs
    _record(question.out, asked, plan, points, chosen)
    watch.total(plan.total_rounds)
    watch.note(plan.sentence)
    race = _race(question, plan, Pace(watch, question.deadline(start, FOR_THE_RACE)))
    last = race.run()
    judgement, probe = decide(world, last, diagnosis, seed, plan)
    pace = Pace(watch, question.deadline(start))
    pace.before = race.pace.before
    final = question.out / "final"
    tests = run_tests(world, last, judgement.method, seed, plan.step, final, pace)
    verdict = verdict_of(world, last, judgement, probe, tests, seed)
    trained = diagnosis.finding("classes").numbers["majority"]
    story = _story(world, verdict, chosen, race, last, tests, seed, trained)
    values = {**_values(question, story, diagnosis, remarks, points), "question": asked}
    _write(question.out, values)
    return Advice(values, question.out, round(time.monotonic() - start, 1))


def _shortlist(question: Question, diagnosis: Diagnosis, start: float) -> tuple[Shortlist, int]:
    """The methods to try, and the points that there are for it.

    Counting takes time, too: others are counted only if there is room for them.
    """
    world, seed = question.world, question.seed
    rehearsal = world.rehearsal(seed)

    @cache
    def count(method: str) -> Work:
        return count_work(world.rehearsal_config(method, seed, 1, 1), rehearsal)

    def choose(most: int) -> Shortlist:
        given = world.config(COMMON, seed), world.encoded(seed), count, question.methods
        return shortlist(diagnosis.troubles, *given, most)

    chosen = choose(0)
    points = _points(question, chosen, rehearsal, start)
    if has_room_for_more(_costs(chosen), points, question.rounds):
        return choose(MOST), points
    others = [method for method in question.methods if method not in ALWAYS] or ["all others"]
    left_out = dict.fromkeys(others, "the budget has no room for more methods")
    return replace(chosen, left_out={**left_out, **chosen.left_out}), points


def _points(question: Question, chosen: Shortlist, rehearsal: Federation, start: float) -> int:
    """The points to plan with: those asked for, those of an earlier call, or as many as fit."""
    costs = _costs(chosen)
    least = least_points(costs)
    if question.points is not None:
        if question.points < least:
            raise FedloomError(
                f"--points {question.points} is too little for even one round of local and fedavg "
                f"on these data: that takes --points {least}."
            )
        return question.points
    path = question.out / "plan.json"
    if path.exists():
        return int(parse_object(read_regular(path), path)["budget"])
    config = question.world.rehearsal_config(COMMON, question.seed, 1, 1)
    work = next(each.work for each in chosen.candidates if each.method == COMMON)
    per_point = seconds_per_point(config, rehearsal, work)
    elapsed = time.monotonic() - start
    points = fitting_points(question.minutes, elapsed, per_point, least)
    measured = {"elapsed": round(elapsed, 1), "seconds_per_point": round(per_point, 3)}
    write_atomic(question.out / "measured.json", json.dumps(measured, indent=1).encode())
    return points


def _costs(chosen: Shortlist) -> dict[str, float]:
    return {candidate.method: candidate.work.points for candidate in chosen.candidates}


def _race(question: Question, plan: Plan, pace: Pace) -> Race:
    world = question.world
    return Race(
        plan=plan,
        first_seed=question.seed,
        config_of=lambda method, seed, rounds: world.rehearsal_config(
            method, seed, rounds, plan.step
        ),
        rehearsals=world.rehearsal,
        folder=question.out / "race",
        pace=pace,
    )


def _story(
    world: World,
    verdict: Verdict,
    chosen: Shortlist,
    race: Race,
    last: Stage,
    tests: Tests,
    seed: int,
    majority_trained: float,
) -> Story:
    clients = client_names([client.domain for client in world.real(seed).clients])
    sent = race.sent(verdict.method, last)
    naming = majority_rate(world, last, tests, seed)
    return Story(verdict, chosen, race, last, tests, clients, sent, naming, majority_trained)


def _values(
    question: Question, story: Story, diagnosis: Diagnosis, remarks: list[str], points: int
) -> dict[str, Any]:
    """Everything that is to be said, as plain values."""
    verdict = story.verdict
    left_out: dict[str, list[str]] = {}  # by the reason
    for method, reason in story.shortlist.left_out.items():
        left_out.setdefault(reason, []).append(method)
    return {
        "verdict": sentence(verdict),
        "kind": verdict.kind,
        "method": verdict.method,
        "metric": verdict.metric,
        "samples": verdict.samples,
        "notes": notes(story) + remarks,
        "next": next_step(question, verdict, points, _costs(story.shortlist)),
        "complete": verdict.tested and not story.race.stopped,
        "diagnosis": diagnosis.plain(),
        "table": table(story),
        "left_out": left_out,
        "budget": points,
        "plan": story.race.plan.plain(),
        "race": [stage.plain() for stage in story.race.stages],
        "clients": _by_client(story),
    }


def _by_client(story: Story) -> list[dict[str, Any]]:
    """What each client gains; nothing where clients are too many to be listed."""
    rows: list[dict[str, Any]] = []
    if len(story.clients) != len(story.verdict.gain.clients):
        return rows
    for name, value in zip(story.clients, story.verdict.gain.clients, strict=True):
        change = None
        if value is not None:
            change = round(value, 6)
        rows.append({"client": name, "gain": change})
    return rows


def _refuse_another(question: Question) -> dict[str, Any]:
    """What is asked; a folder that holds the answer to something else is refused."""
    path = question.out / "question.json"
    asked = question.plain()
    if path.exists():
        there = parse_object(read_regular(path), path)
        for key, value in asked.items():
            if there.get(key) != value:
                raise FedloomError(
                    f"{question.out} holds the answer to another question ({key} is "
                    f"{json.dumps(there.get(key))} there, {json.dumps(value)} here): choose "
                    "another folder with --out."
                )
    return asked


def _record(out: Path, asked: dict[str, Any], plan: Plan, points: int, chosen: Shortlist) -> None:
    """Write down what is asked, what is planned, and the counted work that the plan rests on."""
    write_atomic(out / "question.json", json.dumps(asked, indent=1).encode())
    work = {candidate.method: candidate.work.plain() for candidate in chosen.candidates}
    content = json.dumps({"budget": points, **plan.plain(), "work": work}, indent=1)
    write_atomic(out / "plan.json", content.encode())


def _write(out: Path, values: dict[str, Any]) -> None:
    write_atomic(out / "advice.json", json.dumps(values, indent=1).encode())
    write_atomic(out / "advice.md", markdown(values).encode())
    write_atomic(out / "advice.html", advice_page(values).encode())

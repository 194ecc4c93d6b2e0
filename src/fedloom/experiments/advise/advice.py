"""From a question to an answer: diagnose, choose methods, race them, test the best, and say it."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...core.errors import FedloomError
from ...core.files import parse_object, read_regular, write_atomic
from ...core.version import __version__
from ...report.advice_page import advice_page
from ...report.verdict import ALONE, Verdict, client_names, sentence
from ..plan import Display
from .diagnosis import Diagnosis, diagnose
from .judging import Tests, decide, run_tests, verdict_of
from .race import Pace, Race, Stage
from .schedule import Plan, make_plan
from .shortlist import Shortlist, shortlist
from .text import Story, markdown, notes, table
from .work import Work, count_work
from .world import World

FOR_THE_RACE = 0.7  # of the time; the rest is for runs with test data


@dataclass(frozen=True)
class Question:
    """What is asked, beside the world that it is asked about.

    `command` are the options that name this world on the command line, if it was asked there.
    """

    world: World
    out: Path
    minutes: float = 20.0
    seed: int = 0
    rounds: int | None = None
    methods: tuple[str, ...] = ()
    command: str = ""

    def plain(self) -> dict[str, Any]:
        """What the answer depends on, as plain values."""
        return {
            "minutes": self.minutes,
            "seed": self.seed,
            "rounds": self.rounds,
            "methods": list(self.methods),
            "command": self.command,
            "world": self.world.fingerprint(self.seed),
            "fedloom": __version__,
        }


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
    asked = _claim(question)
    watch.note("looking at who has what ...")
    diagnosis = diagnose(world.real(seed), world.encoded(seed), seed)
    remarks = world.adapt(diagnosis.troubles, seed)
    watch.note("counting what methods cost ...")
    chosen = _shortlist(question, diagnosis)
    plan = make_plan(_costs(chosen), question.minutes, question.rounds)
    _record_plan(question.out, plan, chosen)
    watch.total(plan.total_rounds)
    watch.note(plan.sentence)
    race = _race(question, plan, Pace(watch, start + 60 * FOR_THE_RACE * question.minutes))
    last = race.run()
    judgement, probe = decide(world, last, diagnosis, seed)
    pace = Pace(watch, start + 60 * question.minutes)
    pace.before = race.pace.before
    final = question.out / "final"
    tests = run_tests(world, last, judgement.method, seed, plan.step, final, pace)
    verdict = verdict_of(world, last, judgement, probe, tests, seed)
    story = _story(world, verdict, chosen, race, last, tests, seed)
    values = {**_values(question, story, diagnosis, remarks), "question": asked}
    _write(question.out, values)
    return Advice(values, question.out, round(time.monotonic() - start, 1))


def _shortlist(question: Question, diagnosis: Diagnosis) -> Shortlist:
    world, seed = question.world, question.seed
    rehearsal = world.rehearsal(seed)

    def count(method: str) -> Work:
        return count_work(world.rehearsal_config(method, seed, 1, 1), rehearsal)

    config = world.config("fedavg", seed)
    return shortlist(diagnosis.troubles, config, world.encoded(seed), count, question.methods)


def _costs(chosen: Shortlist) -> dict[str, float]:
    return {candidate.method: candidate.work.seconds for candidate in chosen.candidates}


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
) -> Story:
    clients = client_names([client.domain for client in world.real(seed).clients])
    sent = race.sent(verdict.method, last)
    return Story(verdict, chosen, race, last, tests, clients, sent)


def _values(
    question: Question, story: Story, diagnosis: Diagnosis, remarks: list[str]
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
        "notes": notes(story) + remarks,
        "next": _next(question, verdict),
        "complete": verdict.tested and not story.race.stopped,
        "diagnosis": diagnosis.plain(),
        "table": table(story),
        "left_out": left_out,
        "plan": story.race.plan.plain(),
        "race": [stage.plain() for stage in story.race.stages],
        "clients": _by_client(story),
    }


def _by_client(story: Story) -> list[dict[str, Any]]:
    """What each client gains."""
    rows = []
    for name, value in zip(story.clients, story.verdict.gain.clients, strict=True):
        change = None
        if value is not None:
            change = round(value, 6)
        rows.append({"client": name, "gain": change})
    return rows


def _next(question: Question, verdict: Verdict) -> str:
    """The command to go on with; to those who asked in Python, the call."""
    method = verdict.method
    if verdict.kind == "alone":
        method = ALONE
    if not question.command:
        return _next_call(question, verdict, method)
    options = question.command
    for setting in question.world.chosen:
        options += f" --set {setting}"
    if verdict.kind == "nothing":
        data = shlex.quote(question.world.config(ALONE, question.seed).data)
        return f"fedloom data picture {data} --out look.png"
    if verdict.kind == "longer":
        asked = options.replace(" --data ", " ", 1)
        return (
            f"fedloom advise{asked} --rounds {2 * verdict.rounds} "
            f"--minutes {3 * question.minutes:g} --out {question.out}-longer"
        )
    return (
        f"fedloom run {method}{options} --rounds {verdict.rounds} --seed {question.seed} "
        f"--out runs/{method}"
    )


def _next_call(question: Question, verdict: Verdict, method: str) -> str:
    chosen = ""
    for setting in question.world.chosen:
        chosen += f"{setting.replace('true', 'True')}, "
    if verdict.kind == "nothing":
        return "look at the labels of some samples"
    if verdict.kind == "longer":
        return (
            f"fedloom.advise(federation, rounds={2 * verdict.rounds}, "
            f"minutes={3 * question.minutes:g}, ...)"
        )
    return f'fedloom.run("{method}", federation, rounds={verdict.rounds}, {chosen}...)'


def _claim(question: Question) -> dict[str, Any]:
    """Note the question in the folder; refuse a folder that holds the answer to another one."""
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
    write_atomic(path, json.dumps(asked, indent=1).encode())
    return asked


def _record_plan(out: Path, plan: Plan, chosen: Shortlist) -> None:
    """Write down what was planned, and the counted work that it rests on."""
    work = {candidate.method: candidate.work.plain() for candidate in chosen.candidates}
    content = json.dumps({**plan.plain(), "work": work}, indent=1)
    write_atomic(out / "plan.json", content.encode())


def _write(out: Path, values: dict[str, Any]) -> None:
    write_atomic(out / "advice.json", json.dumps(values, indent=1).encode())
    write_atomic(out / "advice.md", markdown(values).encode())
    write_atomic(out / "advice.html", advice_page(values).encode())

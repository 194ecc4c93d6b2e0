"""What to do next: the command that follows from a verdict, to be typed as it stands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from ...report.verdict import ALONE, Verdict
from .question import Question
from .schedule import telling_points
from .shortlist import ALWAYS


def next_step(question: Question, verdict: Verdict, points: int, costs: Mapping[str, float]) -> str:
    """The command to go on with; to those who asked in Python, the call.

    Its folder is named after the question, so that it is free whatever was asked before.
    """
    method = verdict.method
    if verdict.kind == "alone":
        method = ALONE
    rounds, budget = question.rounds, ("", "")
    if verdict.kind == "longer":
        rounds = 2 * verdict.rounds
        budget = _times(question, 3)
    if verdict.kind == "unsure":
        budget = _enough(question, points, costs)
    if not question.command:
        return _call(question, verdict, method, rounds, budget)
    options = question.command
    for setting in question.world.chosen:
        options += f" --set {setting}"
    if verdict.kind == "nothing":
        data = shlex.quote(question.world.config(ALONE, question.seed).data)
        return f"fedloom data picture {data} --out look.png"
    tail = f"--seed {question.seed} --out runs"
    about = question.world.fingerprint(question.seed)[:8]
    if verdict.kind in ("longer", "unsure"):
        asked = options.replace(" --data ", " ", 1)
        if question.methods:
            asked += f" --methods {shlex.quote(','.join(question.methods))}"
        if rounds is not None:
            asked += f" --rounds {rounds}"
        name, value = budget
        return f"fedloom advise{asked} --{name} {value} {tail}/advise-{about}-{name}-{value}"
    return f"fedloom run {method}{options} --rounds {verdict.rounds} {tail}/{method}-{about}"


def _times(question: Question, times: int) -> tuple[str, str]:
    """So many times the budget, as the option and its value."""
    if question.points is not None:
        return "points", str(times * question.points)
    return "minutes", f"{times * question.minutes:g}"


def _enough(question: Question, points: int, costs: Mapping[str, float]) -> tuple[str, str]:
    """A budget in which a race can tell, and at least twice this one."""
    always = {method: costs[method] for method in ALWAYS if method in costs}
    needed = max(2 * points, telling_points(always, question.rounds))
    if question.points is not None:
        return "points", str(needed)
    # A slower machine than the assumed one has fewer points for as many minutes.
    return "minutes", f"{math.ceil(needed * question.minutes / points)}"


def _call(
    question: Question,
    verdict: Verdict,
    method: str,
    rounds: int | None,
    budget: tuple[str, str],
) -> str:
    chosen = ""
    for setting in question.world.chosen:
        chosen += f"{setting.replace('true', 'True')}, "
    if verdict.kind == "nothing":
        return "look at the labels of some samples"
    if verdict.kind in ("longer", "unsure"):
        name, value = budget
        length = ""
        if rounds is not None:
            length = f"rounds={rounds}, "
        return f"fedloom.advise(federation, {length}{name}={value}, ...)"
    return f'fedloom.run("{method}", federation, rounds={verdict.rounds}, {chosen}...)'

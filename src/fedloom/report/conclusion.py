"""What a reader should know first: the facts, who leads, and what that is worth."""

from __future__ import annotations

from typing import NamedTuple

from .columns import megabytes, percent, signed, text
from .entries import Entry
from .page import Page


class Card(NamedTuple):
    """One finding: what it is about, its value, and the method it is about."""

    about: str
    value: str
    unit: str
    entry: Entry
    rest: str = ""


class Evidence(NamedTuple):
    """What the differences are worth: one sentence, or the sentences of the tests."""

    sentence: str = ""
    leader: str = ""
    about_leader: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def facts(page: Page) -> dict[str, str]:
    """Data, partition, model and so on, each with all values that occur."""
    values: dict[str, list[object]] = {}
    for run in page.runs:
        for key in ("data", "partition", "model"):
            values.setdefault(key, []).append(run.config.get(key) or run.summary.get(key))
        values.setdefault("clients", []).append(len(run.federation.get("clients") or []))
        values.setdefault("rounds", []).append(run.planned or run.summary.get("rounds"))
    listed = {}
    for key, occurring in values.items():
        listed[key] = ", ".join(dict.fromkeys(str(value) for value in occurring if value))
    seeds = [str(run.seed) for run in page.runs if run.seed is not None]
    listed["seeds"] = ", ".join(dict.fromkeys(seeds))
    settings = page.board.get("settings") or {}
    target = settings.get("target")
    if isinstance(target, int | float):
        listed["target"] = f"{percent(target)} %"
        if settings.get("target_is"):
            listed["target"] += f" ({settings['target_is']})"
    return {key: value for key, value in listed.items() if value}


def cards(page: Page) -> list[Card]:
    """Who leads, who helps most clients, who is best for the worst-off, who sends least."""
    makers = (_leader, _helper, _kindest, _cheapest)
    return [card for card in (make(page) for make in makers) if card]


def _leader(page: Page) -> Card | None:
    leader = page.ranking.top("personal")
    if leader is None:
        return None
    mean, std = page.ranking.values("personal")[leader.number]
    rest = ""
    others = [entry for entry in page.entries if entry is not leader]
    second = page.ranking.top("personal", among=others) if others else None
    if second and mean is not None:
        gap = mean - page.ranking.means("personal")[second.number]
        rest = f", {percent(gap)} points ahead of {second.name}"
    return Card("Highest personal accuracy", text(mean, std, percent), "%", leader, rest)


def _helper(page: Page) -> Card | None:
    helper = page.ranking.top("better_than_local")
    if helper is None:
        return None
    share = page.ranking.values("better_than_local")[helper.number]
    gain = page.ranking.values("gain_over_local")[helper.number]
    rest = f", mean gain {text(*gain, signed)} points"
    return Card("Most clients better off than alone", text(*share, percent), "%", helper, rest)


def _kindest(page: Page) -> Card | None:
    kindest = page.ranking.top("worst_client")
    if kindest is None or len(page.entries) < 2:
        return None
    worst = page.ranking.values("worst_client")[kindest.number]
    return Card("Best for the worst-off client", text(*worst, percent), "%", kindest)


def _cheapest(page: Page) -> Card | None:
    sent = page.ranking.means("bytes_up_per_round")
    federated = [entry for entry in page.entries if sent.get(entry.number, 0) > 0]
    if not federated:
        return None
    cheapest = min(federated, key=lambda entry: sent[entry.number])
    least = sent[cheapest.number]
    equal = sum(sent[entry.number] == least for entry in federated)
    rest = ", all clients together"
    if equal > 1:
        rest = f" and {equal - 1} more, all clients together"
    about = "Sent"
    if len(federated) > 1:
        about = "Least sent by a federated method"
    return Card(about, megabytes(least), "MB up per round", cheapest, rest)


def evidence(page: Page) -> Evidence | None:
    """Whether the leader is really ahead; None if there is nothing to compare."""
    shown = [entry for entry in page.entries if entry.shown]
    if len(shown) < 2:
        return None
    if len(page.ranking.seed_sets()) > 1:
        return Evidence(
            "The methods have not been run with the same seeds, so their means are not over the "
            "same data: nothing is marked as best."
        )
    leader = page.ranking.top("personal")
    about_leader, others = [], []
    for test in page.ranking.tests:
        if not test.get("sentence"):
            continue
        if leader and leader.method in (test.get("a"), test.get("b")):
            about_leader.append(str(test["sentence"]))
        else:
            others.append(str(test["sentence"]))
    if leader and about_leader:
        return Evidence("", leader.name, tuple(about_leader), tuple(others))
    if min(len(entry.seeds) for entry in shown) < 2:
        return Evidence(
            "One seed only, which proves nothing: another may reverse small differences. Nothing "
            "is marked as best."
        )
    return Evidence(
        "No significance test came with these runs: compare differences with the ± beside them."
    )

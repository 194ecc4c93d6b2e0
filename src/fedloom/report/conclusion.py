"""What a reader should know first: the facts, who leads, and what that is worth."""

from __future__ import annotations

from typing import NamedTuple

from ..metrics.registry import DEFAULT
from .columns import in_a_sentence, megabytes, percent, signed, text
from .entries import Entry
from .figures import Value
from .page import Page


class Card(NamedTuple):
    """One finding: what it is about, its value, and the method it is about."""

    about: str
    value: str
    unit: str
    entry: Entry
    rest: str = ""


class Evidence(NamedTuple):
    """What the differences are worth: one sentence, or the sentences of the tests.

    The question is whether a method is really ahead in accuracy, which is what the tests compare.
    """

    sentence: str = ""
    question: str = ""
    about_leader: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def facts(page: Page) -> dict[str, str]:
    """Data, partition, model and so on, each with all values that occur."""
    values: dict[str, list[str]] = {}

    def add(key: str, value: object) -> None:
        texts = values.setdefault(key, [])
        if value and str(value) not in texts:
            texts.append(str(value))

    for run in page.runs:
        for key in ("data", "partition", "model"):
            add(key, run.config.get(key) or run.summary.get(key))
        add("clients", len(run.federation.get("clients") or []))
        add("rounds", run.planned or run.summary.get("rounds"))
        if run.seed is not None:
            add("seeds", str(run.seed))
    listed = {}
    for key, texts in values.items():
        if texts:
            listed[key] = ", ".join(texts)
    if page.ranking.metric.name != DEFAULT:
        listed["headline"] = page.ranking.metric.label
    settings = page.board.get("settings") or {}
    target = settings.get("target")
    if isinstance(target, int | float):
        listed["target"] = f"{percent(target)} %"
        if settings.get("target_is"):
            listed["target"] += f" ({settings['target_is']})"
    return listed


def cards(page: Page) -> list[Card]:
    """Who leads, who helps most clients, who is best for the worst-off, who sends least."""
    drawn = [_leader(page, page.ranking.headline)]
    if page.ranking.headline != "personal":  # accuracy has a card in any case
        drawn.append(_leader(page, "personal"))
    drawn += [_helper(page), _kindest(page), _cheapest(page)]
    return [card for card in drawn if card]


def _leader(page: Page, key: str) -> Card | None:
    """The best method in a column, and how far the next one is behind."""
    ranked = page.ranking.competing(key)
    if not ranked:
        return None
    column = page.ranking.columns_by_key[key]
    mean, std = page.ranking.values(key)[ranked[0].number]
    level = page.ranking.leaders(key)[1:]
    unit, points = "", ""
    if column.unit == "%":
        unit, points = "%", " points"
    rest = ""
    if level:
        rest = f", level with {level[0].name}{_more(level)}"
    elif len(ranked) > 1:
        means = page.ranking.means(key)
        gap = abs(means[ranked[0].number] - means[ranked[1].number])
        rest = f", {column.show(gap)}{points} ahead of {ranked[1].name}"
    about = "Highest personal accuracy"
    if key != "personal":
        about = f"Best {in_a_sentence(column.label)}"
    return Card(about, text(mean, std, column.show), unit, ranked[0], rest)


def _more(entries: list[Entry]) -> str:
    """How many methods there are beside the first, whose name stands before this."""
    if len(entries) == 1:
        return ""
    return f" and {len(entries) - 1} more"


def _helper(page: Page) -> Card | None:
    """Who helps most clients and does not cost the others more; if nobody, who comes closest."""
    gains = page.ranking.values("gain_over_local")
    shares = page.ranking.values("better_than_local")
    by_share: dict[str, list[Entry]] = {}  # as printed, the largest first
    for entry in page.ranking.competing("better_than_local"):
        if _gains(gains[entry.number][0]):
            printed = text(shares[entry.number][0], None, percent)
            by_share.setdefault(printed, []).append(entry)
    if not by_share:
        return _no_helper(page)
    helpers = next(iter(by_share.values()))
    rest = _more(helpers) + _change(*gains[helpers[0].number])
    about = "Most clients better off than alone"
    return Card(about, text(*shares[helpers[0].number], percent), "%", helpers[0], rest)


def _gains(gain: Value) -> bool:
    """Whether a mean gain is one at the precision that is printed."""
    return gain is not None and gain > 0 and percent(gain) != "0.0"


def _no_helper(page: Page) -> Card | None:
    """Nobody gains on average: who comes closest, and how many it helps all the same."""
    closest = page.ranking.competing("gain_over_local")
    if not closest:
        return None
    mean, std = page.ranking.values("gain_over_local")[closest[0].number]
    share, _ = page.ranking.values("better_than_local")[closest[0].number]
    rest = f" comes closest{_change(mean, std)}"
    if not share:
        return Card("Better off than alone", "no client", "", closest[0], rest)
    rest += f"; {percent(share)} % of the clients are better off"
    return Card("Better off than alone", "not on average", "", closest[0], rest)


def _change(gain: Value, std: Value) -> str:
    """A mean gain in words; a negative one is a loss."""
    if gain is None:
        return ""
    if percent(abs(gain)) == "0.0":
        return ", level on average"
    if gain < 0:
        return f", with a mean loss of {text(-gain, std, percent)} points"
    return f", mean gain {text(gain, std, signed)} points"


def _kindest(page: Page) -> Card | None:
    kindest = page.ranking.leaders("worst_client")
    if not kindest or len(page.entries) < 2:
        return None
    mean, std = page.ranking.values("worst_client")[kindest[0].number]
    about = "Best for the worst-off client"
    return Card(about, text(mean, std, percent), "%", kindest[0], _more(kindest))


def _cheapest(page: Page) -> Card | None:
    sent = page.ranking.means("bytes_up_per_round")
    by_cost: dict[float, list[Entry]] = {}
    federated = 0
    for entry in page.entries:
        cost = sent.get(entry.number, 0.0)
        if cost > 0 and entry not in page.ranking.twins:
            by_cost.setdefault(cost, []).append(entry)
            federated += 1
    if not federated:
        return None
    least = min(by_cost)
    cheapest = by_cost[least]
    rest = f"{_more(cheapest)}, all clients together"
    about = "Sent"
    if federated > 1:
        about = "Least sent by a federated method"
    return Card(about, megabytes(least), "MB up per round", cheapest[0], rest)


def evidence(page: Page) -> Evidence | None:
    """Whether the leader is really ahead; None if there is nothing to compare."""
    if len(page.shown) < 2:
        return None
    if len(page.ranking.seed_sets()) > 1:
        return Evidence(
            "The methods have not been run with the same seeds, so their means are not over the "
            "same data: nothing is marked as best."
        )
    leader = page.ranking.competing("personal")[0]
    about_leader: list[str] = []
    others: list[str] = []
    for test in page.ranking.tests:
        if not test.get("sentence"):
            continue
        if leader.method in (test.get("a"), test.get("b")):
            about_leader.append(str(test["sentence"]))
        else:
            others.append(str(test["sentence"]))
    if about_leader:
        question = f"Is {leader.name} really ahead?"
        if page.ranking.metric.name != DEFAULT:
            question = f"Is {leader.name} really ahead in accuracy?"
        return Evidence("", question, tuple(about_leader), tuple(others))
    if min(len(entry.seeds) for entry in page.shown) < 2:
        return Evidence(
            "One seed only, which proves nothing: another may reverse small differences. Nothing "
            "is marked as best."
        )
    return Evidence(
        "No significance test came with these runs: compare differences with the ± beside them."
    )

"""What a reader should know first: the facts, who leads, and what that is worth."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..data.described import number_of
from ..metrics.registry import DEFAULT
from .answer import majority
from .columns import ROUND, megabytes, percent, signed_as, text
from .entries import ALONE, Entry, seeds_of, shown_runs
from .figures import PERCENT, Axis, Chart, Mark, Panel, Value
from .page import Page
from .statistics import level


class Card(NamedTuple):
    """One finding: what it is about, its value, and the method it is about."""

    about: str
    value: str
    unit: str
    entry: Entry
    rest: str = ""


class Evidence(NamedTuple):
    """What the differences are worth: a caution, or the sentences of the tests."""

    sentence: str = ""
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
        add("clients", number_of(run.federation))
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
        about = f"Best {page.ranking.metric.in_a_sentence}"
    return Card(about, text(mean, std, column.show), unit, ranked[0], rest)


def _more(entries: list[Entry]) -> str:
    """How many methods there are beside the first, whose name stands before this."""
    if len(entries) == 1:
        return ""
    return f" and {len(entries) - 1} more"


def _helper(page: Page) -> Card | None:
    """Who helps most clients and does not cost the others more; if nobody, who comes closest."""
    ranking = page.ranking
    gains = ranking.values(ranking.gain)
    shares = ranking.values(ranking.better_off)
    by_share: dict[str, list[Entry]] = {}  # as printed, the largest first
    for entry in ranking.competing(ranking.better_off):
        if _gains(page, gains[entry.number][0]):
            printed = text(shares[entry.number][0], None, percent)
            by_share.setdefault(printed, []).append(entry)
    if not by_share:
        return _no_helper(page)
    helpers = next(iter(by_share.values()))
    helpers.sort(key=lambda entry: -(gains[entry.number][0] or 0.0))
    rest = _more(helpers) + _change(page, *gains[helpers[0].number])
    about = f"Most clients better off than {_rival(page)}"
    return Card(about, text(*shares[helpers[0].number], percent), "%", helpers[0], rest)


def _rival(page: Page) -> str:
    """What methods are measured against, after `than`."""
    if page.ranking.against == ALONE:
        return "alone"
    return f"with {page.ranking.against}"


def _gains(page: Page, gain: Value) -> bool:
    """Whether a mean gain is one at the precision that is printed."""
    return gain is not None and gain > 0 and not level(gain, page.ranking.metric)


def _no_helper(page: Page) -> Card | None:
    """Nobody gains on average: who comes closest, and how many it helps all the same."""
    ranking = page.ranking
    closest = ranking.competing(ranking.gain)
    if not closest:
        return None
    mean, std = ranking.values(ranking.gain)[closest[0].number]
    share, _ = ranking.values(ranking.better_off)[closest[0].number]
    about = f"Better off than {_rival(page)}"
    rest = f" comes closest{_change(page, mean, std)}"
    if not share:
        return Card(about, "no client", "", closest[0], rest)
    rest += f"; {percent(share)} % of the clients are better off"
    return Card(about, "not on average", "", closest[0], rest)


def _change(page: Page, gain: Value, std: Value) -> str:
    """A mean gain in words; a negative one is a loss."""
    metric = page.ranking.metric
    if gain is None:
        return ""
    if level(gain, metric):
        return ", level on average"
    unit = ""
    if metric.unit == "percent":
        unit = " points"
    if gain < 0:
        return f", with a mean loss of {text(-gain, std, metric.shown)}{unit}"
    return f", mean gain {text(gain, std, signed_as(metric))}{unit}"


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
    leader = page.ranking.competing(page.ranking.headline)[0]
    about_leader: list[str] = []
    others: list[str] = []
    for test in page.ranking.tests:
        if leader.name in (test["a"], test["b"]):
            about_leader.append(test["sentence"])
        else:
            others.append(test["sentence"])
    caution = ""
    if min(len(entry.seeds) for entry in page.shown) < 2:
        caution = (
            "One seed only, which proves nothing: another may reverse small differences. Nothing "
            "is marked as best."
        )
    return Evidence(caution, tuple(about_leader), tuple(others))


def overview(page: Page) -> Panel | None:
    """The headline of every method with its spread, over clients and over seeds."""
    metric = page.ranking.metric
    marks: list[Mark] = []
    names: list[tuple[float, str]] = []
    for entry in page.ranking.ranked(page.ranking.headline):
        if not entry.shown:
            continue
        y = -float(len(names))
        names.append((y, entry.name))
        marks += [_clients(page, entry, y), _mean(page, entry, y)]
    if not marks:
        return None
    scale = metric.in_a_sentence
    if metric.sign:
        scale += f",{metric.sign}"
    heading = f"{metric.label} of the clients"
    chart = Chart(
        heading,
        marks,
        Axis(scale),
        Axis(ticks=names, ends=(names[-1][0] - 0.6, 0.6)),
        width=600,
        height=74 + max(30 * len(names), 90),
        **_majority_line(page),
    )
    return Panel("overview", heading, _overview_caption(page), chart)


def _clients(page: Page, entry: Entry, y: float) -> Mark:
    """A small dot for each client of each seed."""
    metric = page.ranking.metric
    points: list[float] = []
    heights: list[float] = []
    tips: list[str] = []
    for run in entry.shown:
        for client, value in enumerate(run.clients):
            if value is None:
                continue
            points.append(metric.factor * value)
            # A fixed scatter up and down, so that equal values do not hide each other.
            heights.append(y + 0.5 * ((len(points) * 0.618034) % 1 - 0.5))
            shown = f"{metric.shown(value)}{metric.sign}"
            tips.append(f"{entry.name}, client {client}, seed {run.seed}: {shown}")
    number = entry.number
    return Mark("dots", points, heights, number, entry.name, tips=tips, size=2.4, opacity=0.4)


def _mean(page: Page, entry: Entry, y: float) -> Mark:
    """A large dot at the mean, with whiskers of the std over seeds."""
    metric = page.ranking.metric
    mean, std = page.ranking.values(page.ranking.headline)[entry.number]
    assert mean is not None
    reach = None
    if std is not None:
        reach = metric.factor * std
    ends = None
    if metric.unit == "percent":
        ends = PERCENT
    tip = f"{entry.name}: {text(mean, std, metric.shown)}{metric.sign}"
    at = [metric.factor * mean]
    return Mark("dots", at, [y], entry.number, dx=[reach], ends=ends, tips=[tip], size=6.5)


def _majority_line(page: Page) -> dict[str, Any]:
    """Where a model stands that always names the most frequent class, if accuracy is drawn."""
    chance = majority(page)
    if chance is None or page.ranking.metric.name != DEFAULT:
        return {}
    return {"rule": 100 * chance, "rule_name": f"majority class {100 * chance:.1f} %"}


def _overview_caption(page: Page) -> str:
    caption = "A small dot is a client, the large one the mean over clients"
    if len(seeds_of(shown_runs(page.entries))) > 1:
        caption = (
            "A small dot is a client of a seed, the large one the mean over clients and seeds, its "
            "whiskers the std over seeds"
        )
    if any(run.spread for run in shown_runs(page.entries)):
        caption = "The dot is the mean over the clients that were scored, which are not listed"
    caption += f"; in {ROUND}."
    if _majority_line(page):
        caption += (
            " The line is the accuracy of always naming a client's most frequent class: a model "
            "left of it is worse than none."
        )
    return caption

"""The answer on the first screen: what to do, for whom it is good, what it costs, how sure."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..data.described import listed
from ..metrics.gains import Accuracies, Gain, gain, oriented
from ..metrics.registry import DEFAULT, METRICS
from .columns import megabytes
from .entries import AFTER, ALONE, Entry, RunData, likeness, number, present
from .figures import Value
from .page import Page
from .verdict import (
    Judgement,
    Verdict,
    client_names,
    counted,
    judge,
    mean_accuracy,
    named,
    sentence,
    who,
)

FEWEST_ROUNDS = 4  # with fewer evaluated rounds, nothing can be said about how a curve goes on


class Answer(NamedTuple):
    """The first line, and sentences that say more; `entry` is the method that it is about."""

    line: str
    more: tuple[str, ...]
    entry: Entry


def answer(page: Page) -> Answer | None:
    """What the runs of a page say; None if nothing is evaluated yet."""
    if not page.shown:
        return None
    rival = _rival(page)
    candidates: list[Entry] = []
    if rival:
        for entry in _candidates(page):
            if gain(page.ranking.results[entry.name], page.ranking.results[rival.name]):
                candidates.append(entry)
    if rival is None or not candidates:
        return _without_rival(page)
    verdict = _verdict(page, rival, candidates)
    entry = {entry.name: entry for entry in page.shown}[verdict.method]
    more = [
        _leader(page, entry),
        _whom(page, entry, rival, verdict.gain),
        cost(page, entry),
        _reference(page, verdict.ours),
        _tuned(page, verdict, entry),
        _rising(entry),
        _next(page, verdict),
    ]
    return Answer(sentence(verdict), tuple(filter(None, more)), entry)


# -- the decision --------------------------------------------------------------------------------
def _rival(page: Page) -> Entry | None:
    """The method that the others are measured against; None if it is not there, or twice."""
    entries = [entry for entry in page.shown if entry.method == page.ranking.against]
    if len(entries) == 1:
        return entries[0]
    return None


def _candidates(page: Page) -> list[Entry]:
    """The methods that can be picked: not the rival, not its twins, not a row without a method."""
    left_out = [*page.ranking.twins]
    candidates = []
    for entry in page.ranking.ranked(page.ranking.headline):
        named_here = entry.method not in (page.ranking.against, AFTER)
        if entry.shown and named_here and entry not in left_out:
            candidates.append(entry)
    return candidates


def _verdict(page: Page, rival: Entry, candidates: list[Entry]) -> Verdict:
    """The decision with its figures, all of test samples at the rounds that stand for the runs."""
    metric = page.ranking.metric
    results = page.ranking.results
    entries: dict[str, Entry] = {ALONE: rival}  # whatever takes the place of training alone
    for entry in candidates:
        name = entry.name
        if name == ALONE:
            name = "local itself"
        entries[name] = entry
    turned = {}
    rises = {}
    for name, entry in entries.items():
        turned[name] = oriented(results[entry.name], metric.higher)
        rise = _rise(entry, metric.higher)
        if rise is not None:
            rises[name] = rise
    decided = _judged(page, turned, rises)
    gained = gain(turned[decided.method], turned[ALONE])
    assert gained is not None
    picked = entries[decided.method].name
    return Verdict(
        decided.kind,
        picked,
        gained,
        ours=mean_accuracy(results[picked]),
        alone=mean_accuracy(results[rival.name]),
        majority=majority(page),
        rounds=max(run.round for run in rival.shown),
        rise=rises.get(decided.method),
        metric=metric.name,
        against=page.ranking.against,
    )


def _judged(page: Page, turned: dict[str, Accuracies], rises: dict[str, float]) -> Judgement:
    """What to do. One seed does not tell, unless nothing at all was learned."""
    means = {name: mean_accuracy(values) for name, values in turned.items()}
    leader = max((name for name in turned if name != ALONE), key=lambda name: means[name])
    chance = majority(page)
    if page.ranking.metric.name == DEFAULT and chance is not None:
        spreads = [page.ranking.values(page.ranking.headline)[e.number][1] for e in page.shown]
        if max(means.values()) <= chance + max(present(spreads), default=0.0):
            return Judgement("nothing", leader)
    gained = gain(turned[leader], turned[ALONE])
    if gained is None or gained.low is None:
        return Judgement("unsure", leader)
    return judge(turned, rises=rises)


def _rise(entry: Entry, higher: bool) -> float | None:
    """What the second half of the rounds has brought on validation data, as a mean over seeds."""
    rises = []
    for run in entry.shown:
        lines = [
            line for line in run.evaluated if number(line, "validation", "personal") is not None
        ]
        if len(lines) < FEWEST_ROUNDS:
            return None
        middle = number(lines[(len(lines) - 1) // 2], "validation", "personal") or 0.0
        last = number(lines[-1], "validation", "personal") or 0.0
        rises.append(last - middle)
    if not rises:
        return None
    rise = math.fsum(rises) / len(rises)
    return rise if higher else -rise


def majority(page: Page) -> Value:
    """The accuracy of always naming a client's most frequent class, as a mean over the runs."""
    key = METRICS.find("majority").key
    values = []
    for entry in page.shown:
        values += present(run.figure(key) for run in entry.shown)
    if not values:
        return None
    return math.fsum(values) / len(values)


# -- sentences -----------------------------------------------------------------------------------
def _without_rival(page: Page) -> Answer:
    """What can be said where there is nothing to measure methods against."""
    metric, ranking = page.ranking.metric, page.ranking
    first = next(entry for entry in ranking.order() if entry.shown)
    mean, std = ranking.values(ranking.headline)[first.number]
    reached = "has no test samples"
    if mean is not None:
        reached = f"reaches {metric.shown(mean)}{_spread(page, std)}{metric.sign}"
        reached += f" {metric.in_a_sentence} on average over its clients"
    start = first.name
    if len(page.shown) > 1:
        start = f"Of {len(page.shown)} methods {first.name} comes first: it"
    more = [_range(page, first), cost(page, first), _reference(page, mean), _rising(first)]
    if first.method != ranking.against:
        more.append(
            f"No run of {ranking.against} is on this page, so nothing says whether that is better "
            "than what clients reach without it."
        )
    return Answer(f"{start} {reached}.", tuple(filter(None, more)), first)


def _spread(page: Page, std: Value) -> str:
    if std is None:
        return ""
    return f" ± {page.ranking.metric.shown(std)}"


def _range(page: Page, entry: Entry) -> str:
    """How far clients are apart."""
    metric = page.ranking.metric
    values: list[float] = []
    for run in entry.shown:
        values += present(run.clients)
        if run.spread:
            values += [run.spread.least, run.spread.most]
    if len(values) < 2:
        return ""
    low, high = metric.shown(min(values)), metric.shown(max(values))
    return f"Clients range from {low} to {high}{metric.sign}."


def _leader(page: Page, picked: Entry) -> str:
    """Why the first in the table is not the one picked, if it is not."""
    first = _candidates(page)[0]
    if first is picked:
        return ""
    return (
        f"{first.name} has a better mean, but not so surely that it is worth more than the simpler "
        f"{picked.name}."
    )


def _whom(page: Page, entry: Entry, rival: Entry, gained: Gain) -> str:
    """Who gains and who loses, by name where a client is the same one with every seed."""
    metric = page.ranking.metric
    if any(run.spread for run in entry.shown):
        return ""  # nobody knows which client has which value
    clients = present(gained.clients)
    helped, hurt = who(gained, _names(entry, len(gained.clients)), metric.name)
    if not _same_clients(entry) or not clients:
        wins = page.ranking.values(page.ranking.better_off)[entry.number][0]
        if wins is None:
            return ""
        return f"{100 * wins:.0f} % of the clients are better off with {entry.name}."
    unit = "a point"
    if metric.unit != "percent":
        unit = metric.shown(0.01)
    over = rival.name
    if page.ranking.against == ALONE:
        over = "training alone"
    share = f"{len(helped)} of {len(clients)} clients"
    text = f"With {entry.name}, {share} gain {unit} or more over {over}"
    if helped:
        text += f": {named(helped)}"
    if not hurt:
        return f"{text}; nobody loses as much."
    return f"{text}; {len(hurt)} lose as much: {named(hurt)}."


def _same_clients(entry: Entry) -> bool:
    """Whether client k is the same sort of client with every seed."""
    return len({likeness(run.federation) for run in entry.shown}) == 1


def _names(entry: Entry, count: int) -> list[str]:
    """What the clients are called."""
    clients = listed(entry.shown[0].federation)
    domains: list[str | None] = [None] * count
    for k, client in enumerate(clients[:count]):
        if client.get("domain") is not None:
            domains[k] = str(client["domain"])
    return client_names(domains)


def cost(page: Page, entry: Entry) -> str:
    """What a method sends and how long it took."""
    up, _ = entry.over(lambda run: run.sent("up"))
    down, _ = entry.over(lambda run: run.sent("down"))
    if up is None or down is None:
        return ""
    if not up + down:
        text = f"{entry.name} sends nothing"
    else:
        rounds = max(run.round for run in entry.shown)
        text = (
            f"{entry.name} sends {megabytes(up)} MB up and {megabytes(down)} MB down per round, "
            f"{megabytes((up + down) * rounds)} MB in {counted(rounds, 'round')}"
        )
    seconds, _ = entry.over(_seconds)
    if seconds is not None:
        text += f"; a run took {seconds:.0f} s here"
    return f"{text}."


def _seconds(run: RunData) -> Value:
    return number(run.summary, "seconds")


def _reference(page: Page, ours: Value) -> str:
    """How far a model is above no model at all."""
    chance = majority(page)
    if chance is None:
        return ""
    text = f"Always naming a client's most frequent class gives {100 * chance:.1f} % accuracy"
    if page.ranking.metric.name == DEFAULT and ours is not None and ours < chance:
        return f"{text}, which is more than that."
    return f"{text}."


def _tuned(page: Page, verdict: Verdict, picked: Entry) -> str:
    """FedAvg's models after local training are no method's, but they point to one."""
    if verdict.kind != "federate":
        return ""
    means = page.ranking.means(page.ranking.headline)
    for entry in page.shown:
        if entry.method != AFTER or entry.number not in means or picked.number not in means:
            continue
        if page.ranking.metric.better(means[entry.number], means[picked.number]):
            return (
                f"{AFTER}, FedAvg's models after one more round of local training, is better "
                "still: try the method fedavg-ft."
            )
    return ""


def _rising(entry: Entry) -> str:
    """Whether a method was still getting better when it ended."""
    for run in entry.shown:
        best_was_last = run.by_validation and run.chosen is run.last
        if not best_was_last or len(run.evaluated) < FEWEST_ROUNDS:
            return ""
    if not entry.shown:
        return ""
    return (
        f"{entry.name} was still improving in its last round: more rounds may change these figures."
    )


def _next(page: Page, verdict: Verdict) -> str:
    """What to do to know more."""
    seeds = max(len(entry.seeds) for entry in page.shown)
    if verdict.kind == "unsure" or seeds < 2:
        return "Next: the same comparison with --seeds 0,1,2 (finished runs are reused)."
    if verdict.kind == "longer":
        return f"Next: the same comparison with --rounds {2 * verdict.rounds}."
    return ""

"""The verdict on a federation: what it is, and the words for it.

`judge` decides from each client's accuracies, `Verdict` holds what was found, and `sentence` puts
it in one line, so that the console, a page and a notebook all say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ..metrics.gains import Accuracies, Gain, gain
from ..metrics.registry import DEFAULT, headline
from .statistics import amount, level

# Pick a method, train alone, train longer before deciding, there is nothing to be learned, or: the
# figures of one seed do not tell.
Kind = Literal["federate", "alone", "longer", "nothing", "unsure"]
Samples = Literal["", "test samples", "held-out training samples"]
ALONE = "local"
# Methods that a more elaborate one must really beat, the simplest first.
SIMPLE = ("fedavg", "fedavg-ft")
WORTH = 0.005  # a smaller mean gain is not worth the traffic
CLOSE = 0.01  # a simpler method that is no further behind is preferred
RISES = 0.01  # a method that gains this much more than `local` in half the rounds may catch up
LEANS = 0.25  # p below which a gain that is not sure is worth a second look
MOST_NAMED = 5  # clients that a sentence names


class Judgement(NamedTuple):
    """What was decided, and the method that it is about."""

    kind: Kind
    method: str


@dataclass(frozen=True)
class Verdict:
    """What was found out about a federation.

    `gain` is that of the method over training alone; `ours`, `alone` and `majority` are mean
    accuracies of clients: with the method, alone, and by always naming a client's most frequent
    class. `rise` is what the second half of the rounds has brought the method. `probe` is given if
    only a linear classifier beats the most frequent class. `samples` says what the figures are of:
    test samples that had no part in the decision, or training samples set aside for it; nothing, if
    decision and figures are of the same test samples. All are of another metric if `metric` names
    one, and `against` another method if that takes the place of `local`.
    """

    kind: Kind
    method: str
    gain: Gain
    ours: float
    alone: float
    majority: float | None = None
    rounds: int = 0
    rise: float | None = None
    probe: float | None = None
    samples: Samples = ""
    metric: str = DEFAULT
    against: str = ALONE

    @property
    def tested(self) -> bool:
        """Whether the figures are of test samples that had no part in the decision."""
        return self.samples == "test samples"

    @property
    def confirmed(self) -> bool:
        """Whether the figures bear out the decision to federate, or not to."""
        if self.kind == "federate":
            return self.gain.won
        return not self.gain.won


def mean_accuracy(accuracies: Accuracies) -> float:
    """The mean over seeds of the mean over clients."""
    means = []
    for clients in accuracies.values():
        measured = [accuracy for accuracy in clients if accuracy is not None]
        if measured:
            means.append(float(np.mean(measured)))
    if not means:
        return float("nan")
    return float(np.mean(means))


def judge(
    results: Mapping[str, Accuracies],
    majority: Accuracies | None = None,
    rises: Mapping[str, float] | None = None,
) -> Judgement:
    """Decide from each method's accuracies, by seed and client; `local` must be among them.

    `majority` are the accuracies of always naming a client's most frequent class. `rises` says what
    the second half of the rounds has brought each method.
    """
    means = {method: mean_accuracy(accuracies) for method, accuracies in results.items()}
    federated = [method for method in results if method != ALONE]
    leader = max(federated, key=lambda method: means[method])
    method = _simplest(leader, results)
    best = max((leader, ALONE), key=lambda name: means[name])
    if majority is not None:
        above = gain(results[best], majority)
        if above is None or not above.won:
            return Judgement("nothing", method)
    over = gain(results[method], results[ALONE])
    assert over is not None
    if over.won and over.mean >= WORTH:
        return Judgement("federate", method)
    if over.mean >= CLOSE and over.p is not None and over.p < LEANS and not over.won:
        return Judgement("longer", method)
    if rises and not over.won:
        faster = rises.get(leader, 0.0) - rises.get(ALONE, 0.0)
        if faster >= RISES and means[leader] + faster > means[ALONE]:
            return Judgement("longer", leader)
    return Judgement("alone", method)


def _simplest(leader: str, results: Mapping[str, Accuracies]) -> str:
    """The leader, or a simpler method that is as good as far as one can tell."""
    for simple in SIMPLE:
        if simple == leader:
            return leader
        if simple not in results:
            continue
        lead = gain(results[leader], results[simple])
        if lead is None:
            continue
        if lead.mean < WORTH or (lead.mean < CLOSE and not lead.won):
            return simple
    return leader


def sentence(verdict: Verdict) -> str:
    """The verdict in one line, the conclusion first."""
    words = {
        "federate": _federate,
        "alone": _alone,
        "longer": _longer,
        "nothing": _nothing,
        "unsure": _unsure,
    }
    return words[verdict.kind](verdict)


def _federate(verdict: Verdict) -> str:
    start = f"Pick {verdict.method}"
    if not verdict.confirmed:
        return (
            f"{start}, but with doubt: it led on validation data, and test data do not confirm it "
            f"({_figures(verdict, 'instead of')}, {_sureness(verdict)})."
        )
    return (
        f"{start}: clients gain {_by(verdict)} on average over {_rival(verdict)} "
        f"({_figures(verdict, 'instead of')}, {_sureness(verdict)})."
    )


def _alone(verdict: Verdict) -> str:
    start = "Do not federate"
    if verdict.against != ALONE:
        start = f"Stay with {verdict.against}"
    evidence = f"({_figures(verdict, 'against')}, {_sureness(verdict)})"
    if verdict.gain.lost:
        cost = _by(verdict)
        return f"{start}: even {verdict.method}, the best tried, costs {cost} {evidence}."
    if verdict.gain.won and not verdict.tested:
        return (
            f"{start}: what {verdict.method}, the best tried, gains over {_rival(verdict)} is too "
            f"little to be worth it {evidence}."
        )
    if verdict.gain.won:
        return (
            f"{start}, but with doubt: {verdict.method} was no better on validation data, "
            f"and is on test data {evidence}."
        )
    outcome = "not measurably better"
    if verdict.gain.mean <= 0:
        outcome = "no better"
    return (
        f"{start}: {verdict.method}, the best tried, is {outcome} than {_rival(verdict)} "
        f"{evidence}."
    )


def _longer(verdict: Verdict) -> str:
    after = f"after {counted(verdict.rounds, 'round')}"
    if verdict.probe is not None and verdict.majority is not None:
        return (
            f"Train longer, or with another network or step size: {after} no model tried is surely "
            f"better than always naming a client's most frequent class "
            f"({_with_samples(_value(verdict.majority, verdict), verdict)}), but a linear "
            f"classifier is ({100 * verdict.probe:.1f} % accuracy, cross-validated on training "
            "samples)."
        )
    behind = f"is ahead of {_rival(verdict)}, but not surely"
    if verdict.gain.won:
        behind = f"is ahead of {_rival(verdict)}, but on validation data was not surely so"
    if verdict.gain.mean < 0:
        behind = f"is still behind {_rival(verdict)}"
    rise = ""
    if verdict.rise is not None and verdict.rise >= RISES:
        rise = f"; the second half of its rounds brought {_amount(verdict.rise, verdict)}"
    return (
        f"Train longer: {after} {verdict.method} {behind} "
        f"({_value(verdict.ours, verdict)} against {_value(verdict.alone, verdict)}, "
        f"{_sureness(verdict)}){rise}."
    )


def _nothing(verdict: Verdict) -> str:
    best = verdict.ours
    if headline(verdict.metric).better(verdict.alone, best):
        best = verdict.alone
    naming = "always naming a client's most frequent class"
    if verdict.majority is not None:
        figures = f"{_value(best, verdict)} against {_value(verdict.majority, verdict)}"
        naming += f" ({_with_samples(figures, verdict)})"
    return (
        "Nothing can be learned from these data as they are: no model tried is surely better "
        f"than {naming}."
    )


def _unsure(verdict: Verdict) -> str:
    outcome = f"level with {_rival(verdict)}"
    if not level(verdict.gain.mean, headline(verdict.metric)):
        way = "behind"
        if verdict.gain.mean > 0:
            way = "ahead of"
        outcome = f"{_by(verdict)} {way} {_rival(verdict)}"
    return (
        f"Too early to say: {verdict.method}, the best tried, is {outcome} "
        f"({_figures(verdict, 'against')}, {_sureness(verdict)})."
    )


def _rival(verdict: Verdict) -> str:
    """What the method is measured against, in words."""
    if verdict.against == ALONE:
        return "training alone"
    return verdict.against


def _figures(verdict: Verdict, between: str) -> str:
    """Both figures, such as `80.0 % instead of 75.0 % alone`."""
    rival = f"with {verdict.against}"
    if verdict.against == ALONE:
        rival = "alone"
    figures = f"{_value(verdict.ours, verdict)} {between} {_value(verdict.alone, verdict)} {rival}"
    if verdict.metric != DEFAULT:
        figures = f"{headline(verdict.metric).in_a_sentence} {figures}"
    return figures


def _sureness(verdict: Verdict) -> str:
    """How sure the gain is, after what it was measured on."""
    sure = sureness(verdict.gain, verdict.metric)
    if verdict.samples:
        return f"on {verdict.samples}, {sure}"
    return sure


def _with_samples(figures: str, verdict: Verdict) -> str:
    """Figures and what they were measured on."""
    if verdict.samples:
        return f"{figures} on {verdict.samples}"
    return figures


def sureness(gained: Gain, metric: str = DEFAULT) -> str:
    """How sure a gain is, in a few words."""
    clients = len([value for value in gained.clients if value is not None])
    if gained.low is None or gained.high is None:
        return "one seed, which proves nothing"
    judge = headline(metric)
    points = ""
    if judge.unit == "percent":
        points = " points"
    low, high = (f"{judge.factor * end:+.{judge.decimals}f}" for end in (gained.low, gained.high))
    interval = f"95 % interval {low} to {high}{points} over {gained.seeds} seeds"
    if clients == 1:  # a single one, or the mean of too many to be listed
        return interval
    return f"{interval}, paired over {clients} clients"


def who(gained: Gain, names: Sequence[str], metric: str = DEFAULT) -> tuple[list[str], list[str]]:
    """The clients that gain a point or more and those that lose one, each with its figure."""
    judge = headline(metric)
    helped: list[tuple[float, str]] = []
    hurt: list[tuple[float, str]] = []
    for name, value in zip(names, gained.clients, strict=True):
        if value is None:
            continue
        if value >= 0.01:
            helped.append((-value, f"{name} +{judge.shown(value)}"))
        elif value <= -0.01:
            hurt.append((value, f"{name} -{judge.shown(-value)}"))
    return [name for _, name in sorted(helped)], [name for _, name in sorted(hurt)]


def named(clients: Sequence[str]) -> str:
    """A list of clients that stays short."""
    if len(clients) <= MOST_NAMED:
        return ", ".join(clients)
    return f"{', '.join(clients[:MOST_NAMED])} and {len(clients) - MOST_NAMED} more"


def client_names(domains: Sequence[str | None]) -> list[str]:
    """What clients are called: by their domain if it is theirs alone, else by their number."""
    names = []
    for number, domain in enumerate(domains):
        if domain is None:
            names.append(f"client {number}")
        elif list(domains).count(domain) == 1:
            names.append(domain)
        else:
            names.append(f"client {number} ({domain})")
    return names


def counted(number: int, what: str) -> str:
    """A number of things, in words: `1 round`, `2 rounds`."""
    if number == 1:
        return f"1 {what}"
    return f"{number} {what}s"


def _value(value: float, verdict: Verdict) -> str:
    metric = headline(verdict.metric)
    return f"{metric.shown(value)}{metric.sign}"


def _amount(value: float, verdict: Verdict) -> str:
    return amount(value, headline(verdict.metric))


def _by(verdict: Verdict) -> str:
    """How much the method gains or loses on average."""
    return _amount(verdict.gain.mean, verdict)

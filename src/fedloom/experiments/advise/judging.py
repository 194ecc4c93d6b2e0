"""From the race to the verdict: decide on rehearsals, then measure the decision on test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import FedloomError
from ...engine.folder import Run
from ...metrics.gains import Accuracies, gain, oriented
from ...metrics.registry import DEFAULT, headline
from ...report.verdict import ALONE, Judgement, Samples, Verdict, judge, mean_accuracy
from ..compare import compare
from ..plan import folder_of
from .diagnosis import Diagnosis
from .race import OutOfTime, Pace, Stage, chosen_clients
from .rehearsal import majority
from .schedule import TELLING_SEEDS, Plan
from .world import World

SIGNAL = 0.05  # a linear classifier this far above the most frequent class has found something
RARELY = 0.05  # the recall of a class below which it is hardly ever found


@dataclass(frozen=True)
class Tests:
    """The runs with test data: values by method as in a `Stage`, and these runs' leaderboard."""

    results: Mapping[str, Accuracies] = field(default_factory=dict)
    board: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.results)

    def row(self, method: str) -> Mapping[str, Any]:
        """A method's row of the leaderboard; empty if it has none."""
        for row in self.board.get("rows", []):
            if row["method"] == method:
                found: Mapping[str, Any] = row
                return found
        return {}

    def hardly_found(self, method: str) -> list[str]:
        """The classes of whose test samples the method finds almost none."""
        recalls = self.row(method).get("classes", {}).get("recall", [])
        classes = self.board.get("settings", {}).get("classes", [])
        found = []
        for name, recall in zip(classes, recalls, strict=False):
            if recall is not None and recall < RARELY:
                found.append(str(name))
        return found


def decide(
    world: World, last: Stage, diagnosis: Diagnosis, seed: int, plan: Plan
) -> tuple[Judgement, float | None]:
    """The decision, from rehearsals alone.

    Where no network beats the most frequent class but a linear classifier does, there is something
    to be learned and the networks have not got there; its accuracy then comes with the decision. A
    race that was too short dismisses nothing.
    """
    metric = headline(last.metric)
    naming = oriented(majority(world.rehearsal, seeds_of(last, seed), metric), metric.higher)
    judgement = judge(last.results, naming, last.rises)
    short = last.seeds < TELLING_SEEDS or last.rounds < plan.telling
    if short and judgement.kind != "federate":
        return Judgement("unsure", judgement.method), None
    if judgement.kind != "nothing":
        return judgement, None
    linear = diagnosis.finding("agreement").numbers
    reached = max(linear.get("own", 0.0), linear.get("both", 0.0))
    if reached < linear.get("majority", 1.0) + SIGNAL:
        return judgement, None
    return Judgement("longer", judgement.method), reached


def seeds_of(last: Stage, seed: int) -> range:
    """The seeds of a stage."""
    return range(seed, seed + last.seeds)


def run_tests(
    world: World, last: Stage, method: str, seed: int, step: int, out: Path, pace: Pace
) -> Tests:
    """Run the method and `local` with test data; nothing if time is up before they are done.

    What is compared is the metric that decides. Runs that an earlier call has finished count
    whatever the time is now.
    """
    configs = []
    for each in seeds_of(last, seed):
        for name in (ALONE, method):
            configs.append(world.config(name, each, last.rounds, step))
    title = f"{method} and {ALONE} on {configs[0].data}, {configs[0].partition}"
    pace.may_stop = not all((folder_of(out, c) / "summary.json").exists() for c in configs)
    try:
        board = compare(configs, out, pace, title, report=False, dealer=world.dealer())
    except OutOfTime:
        return Tests()
    results: dict[str, dict[int, Sequence[float | None]]] = {}
    for run in board["runs"]:
        if run["error"]:
            raise FedloomError(f"{run['method']}, seed {run['seed']}: {run['error']}")
        stored = Run.load(out / run["folder"])
        clients = chosen_clients(stored.metrics, stored.config.method, stored.config)
        results.setdefault(stored.config.method, {})[run["seed"]] = clients
    higher = headline(last.metric).higher
    return Tests({name: oriented(values, higher) for name, values in results.items()}, board)


def verdict_of(
    world: World,
    last: Stage,
    judgement: Judgement,
    probe: float | None,
    tests: Tests,
    seed: int,
) -> Verdict:
    """The decision with its figures: of test data, or of rehearsals if time was up."""
    results: Mapping[str, Accuracies] = last.results
    federations = world.rehearsal
    samples: Samples = "held-out training samples"
    if tests:
        results, federations = tests.results, world.real
        samples = "test samples"
    over = gain(results[judgement.method], results[ALONE])
    if over is None:
        raise FedloomError("no client has samples to be measured on.")
    metric = headline(last.metric)
    means = {}
    for method in (judgement.method, ALONE):
        means[method] = mean_accuracy(oriented(results[method], metric.higher))
    return Verdict(
        judgement.kind,
        judgement.method,
        over,
        ours=means[judgement.method],
        alone=means[ALONE],
        majority=mean_accuracy(majority(federations, seeds_of(last, seed), metric)),
        rounds=last.rounds,
        rise=last.rises.get(judgement.method),
        probe=probe,
        samples=samples,
        metric=metric.name,
    )


def majority_rate(world: World, last: Stage, tests: Tests, seed: int) -> float:
    """The accuracy of always naming a client's most frequent class, whatever the metric."""
    federations = world.rehearsal
    if tests:
        federations = world.real
    return mean_accuracy(majority(federations, seeds_of(last, seed), headline(DEFAULT)))

"""The race: successive halving on rehearsals, and more seeds while the leader is in doubt."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import FedloomError
from ...core.lookup import find
from ...data.federation import Federation
from ...engine.config import Config
from ...engine.engine import Engine
from ...engine.folder import Run
from ...engine.run import execute
from ...metrics.gains import Accuracies, gain, oriented
from ...metrics.registry import DEFAULT, Metric, headline
from ...metrics.summary import best_by_validation, client_spread, client_values
from ...report.verdict import ALONE, SIMPLE, mean_accuracy
from ..plan import Display, name_of
from .schedule import Plan, Rung

COMMON = SIMPLE[0]  # it stays to the end: a more elaborate method must beat it
Record = dict[str, Any]
ConfigOf = Callable[[str, int, int], Config]  # of a method, a seed and a number of rounds


class OutOfTime(BaseException):
    """The budget is spent. Not an error of the run in which it happens, which can go on later."""


class Pace:
    """The display of many runs one after another, which also keeps an eye on the clock.

    When time is up no more work is begun. Work that is done counts, however late: a run that has
    just come to its end is not thrown away.
    """

    def __init__(self, watch: Display, deadline: float) -> None:
        self._watch = watch
        self._deadline = deadline
        self.before = 0  # rounds of all runs so far
        self.may_stop = True  # there is something that a verdict can rest on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watch, name)

    def begin(self, label: str, before: int = 0) -> None:
        """Start on a run, unless time is up."""
        self._stop_if_late()
        self._watch.begin(label, before=self.before + before)

    def after_round(self, engine: Engine, record: Record | None) -> None:
        """Show the round, and stop if time is up and the run has further rounds."""
        self._watch.after_round(engine, record)
        if engine.round < engine.schedule.rounds:
            self._stop_if_late()

    def _stop_if_late(self) -> None:
        if self.may_stop and time.monotonic() > self._deadline:
            raise OutOfTime


@dataclass(frozen=True)
class Stage:
    """What a finished stage of the race has shown.

    `results` are the clients' values of the headline metric, as negatives if less is better, so
    that more is always better; `mean` gives them back as they are.
    """

    rounds: int
    seeds: int
    results: Mapping[str, Accuracies]  # best first
    kept: tuple[str, ...]
    rises: Mapping[str, float]  # what the second half of the rounds has brought
    metric: str = DEFAULT

    def mean(self, method: str) -> float:
        """A method's mean value of the metric."""
        return mean_accuracy(oriented(self.results[method], headline(self.metric).higher))

    def plain(self) -> dict[str, Any]:
        """The stage as a table of plain values."""
        means = {method: round(self.mean(method), 6) for method in self.results}
        about = {"rounds": self.rounds, "seeds": self.seeds}
        return {**about, "means": means, "kept": list(self.kept)}


@dataclass
class Race:
    """A race under way; everything it computes is in run folders, where it is found again."""

    plan: Plan
    first_seed: int
    config_of: ConfigOf
    rehearsals: Callable[[int], Federation]
    folder: Path
    pace: Pace
    stages: list[Stage] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    twins: dict[str, str] = field(default_factory=dict)  # methods that equal `local` or FedAvg
    stopped: bool = False  # by the clock
    _lines: dict[tuple[str, int], list[Record]] = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        """What methods are judged by."""
        return headline(self.config_of(COMMON, self.first_seed, 1).schedule.metric)

    def run(self) -> Stage:
        """Go through all stages, and return the last one that was finished.

        The clock cannot stop it before FedAvg and `local` have got through the first stage with the
        first seed: whatever the time, there is something to say.
        """
        alive = [method for method in self.plan.methods if method != ALONE]
        self.pace.may_stop = False
        try:
            for number, rung in enumerate(self.plan.rungs):
                rungs_left = self.plan.rungs[number + 1 :]
                keep = rungs_left[0].methods if rungs_left else len(alive)
                alive = self._stage(rung, alive, keep)
            self._settle(self.plan.rungs[-1], alive)
        except OutOfTime:
            self.stopped = True
        if not self.stages:
            self._close(Rung(self.plan.rungs[0].rounds, len(alive), 1), alive, len(alive))
        return self.stages[-1]

    def _stage(self, rung: Rung, alive: Sequence[str], keep: int) -> list[str]:
        """Carry out a stage with these methods; return those that go on."""
        for seed in range(self.first_seed, self.first_seed + rung.seeds):
            for method in (ALONE, *alive):
                self._advance(method, seed, rung.rounds)
                if method == COMMON:
                    self.pace.may_stop = True
        return self._close(rung, alive, keep)

    def _close(self, rung: Rung, alive: Sequence[str], keep: int) -> list[str]:
        """Note what a stage has shown of the methods that got through it."""
        going_on = [method for method in alive if self._finished(method, rung)]
        if not going_on:
            raise FedloomError(f"no method finished its runs: {self.failed}")
        results = self._results(going_on, rung.rounds, rung.seeds)
        ranked = [method for method in results if method != ALONE]
        kept = ranked[:keep]
        if COMMON in ranked and COMMON not in kept:
            kept[-1] = COMMON
        rises = self._rises(results, rung)
        name = self.metric.name
        self.stages.append(Stage(rung.rounds, rung.seeds, results, tuple(kept), rises, name))
        return kept

    def _finished(self, method: str, rung: Rung) -> bool:
        """Whether a method got to the end of a stage with all its seeds."""
        if method in self.failed:
            return False
        seeds = range(self.first_seed, self.first_seed + rung.seeds)
        return all(self._line(method, seed, rung.rounds) is not None for seed in seeds)

    def _settle(self, last: Rung, alive: Sequence[str]) -> None:
        """Add seeds while it is in doubt who leads, or whether that is better than alone."""
        seeds = last.seeds
        while seeds < self.plan.most_seeds and self._in_doubt():
            seeds += 1
            self._stage(Rung(last.rounds, last.methods, seeds), alive, len(alive))

    def _in_doubt(self) -> bool:
        results = self.stages[-1].results
        ranked = [method for method in results if method != ALONE]
        rivals = [ALONE, *ranked[1:2]]
        for rival in rivals:
            lead = gain(results[ranked[0]], results[rival])
            if lead is not None and not lead.won and not lead.lost:
                return True
        return False

    def _advance(self, method: str, seed: int, rounds: int) -> None:
        """Take a run to a round, from wherever it is; a method that fails is out."""
        if method in self.failed:
            return
        folder = self.folder / f"{name_of(method)}-s{seed}"
        config = self.config_of(method, seed, rounds)
        there = 0
        if (folder / "config.toml").exists():
            run = Run.load(folder)
            self._lines[method, seed] = run.metrics
            if self._line(method, seed, rounds):
                return
            if run.metrics:
                there = run.metrics[-1]["round"]
            if run.config.schedule.rounds > rounds:  # an earlier call got further: go on with it
                config = self.config_of(method, seed, run.config.schedule.rounds)
            else:
                run.lengthen(config, rounds)
        self.pace.begin(f"{name_of(method)} seed {seed}", before=-there)
        try:
            run = execute(
                config, out=folder, callbacks=[self.pace], federation=self.rehearsals(seed)
            )
        except Exception as error:  # whatever a method may raise
            if method in (ALONE, COMMON):
                raise
            self.failed[method] = str(error) or type(error).__name__
            return
        finally:
            self.pace.before += rounds - there
        self._lines[method, seed] = run.metrics

    def _line(self, method: str, seed: int, rounds: int) -> Record | None:
        """The line of metrics of a round, if it is there."""
        for record in self._lines.get((method, seed), []):
            if record["round"] == rounds:
                return record
        return None

    def _results(self, methods: Sequence[str], rounds: int, seeds: int) -> dict[str, Accuracies]:
        """Values by method, the best first; `local` or FedAvg in disguise is left out.

        In every run the round is the one that validation data choose among those so far.
        """
        alone = self._accuracies(ALONE, rounds, seeds)
        plain = {ALONE: alone}
        if COMMON in methods:
            plain[COMMON] = self._accuracies(COMMON, rounds, seeds)
        results: dict[str, Accuracies] = {}
        for method in methods:
            accuracies = self._accuracies(method, rounds, seeds)
            twin = next((name for name in plain if plain[name] == accuracies), method)
            if method == COMMON or twin == method:
                results[method] = accuracies
            else:
                self.twins[method] = twin
        ranked = sorted(results, key=lambda method: -mean_accuracy(results[method]))
        return {ALONE: alone, **{method: results[method] for method in ranked}}

    def _accuracies(self, method: str, rounds: int, seeds: int) -> Accuracies:
        accuracies = {}
        for seed in range(self.first_seed, self.first_seed + seeds):
            lines = [r for r in self._lines[method, seed] if r["round"] <= rounds]
            accuracies[seed] = chosen_clients(lines, method, self.config_of(method, seed, rounds))
        return oriented(accuracies, self.metric.higher)

    def sent(self, method: str, stage: Stage) -> dict[str, float]:
        """The bytes that a method has sent up and down by the end of a stage; a mean of seeds."""
        totals = {"up": 0.0, "down": 0.0}
        for seed in range(self.first_seed, self.first_seed + stage.seeds):
            line = self._line(method, seed, stage.rounds)
            assert line is not None
            for way in totals:
                totals[way] += line["bytes_total"][way] / stage.seeds
        return totals

    def _rises(self, results: Mapping[str, Accuracies], rung: Rung) -> dict[str, float]:
        """What each method has gained since half of the rounds, as a mean over clients."""
        rises = {}
        key = self.metric.key
        sign = 1 if self.metric.higher else -1
        for method in results:
            gained = []
            for seed in range(self.first_seed, self.first_seed + rung.seeds):
                now = self._line(method, seed, rung.rounds)
                then = self._line(method, seed, rung.rounds // 2)
                if now and then and None not in (now["personal"][key], then["personal"][key]):
                    gained.append(sign * (now["personal"][key] - then["personal"][key]))
            if gained:
                rises[method] = sum(gained) / len(gained)
        return rises


def chosen_clients(lines: list[Record], method: str, config: Config) -> list[float | None]:
    """Each client's value of the headline metric in the round that validation data choose.

    Without such data it is the last. Of too many clients to be listed it is their mean.
    """
    metric, stage = config.schedule.metric, find(method).traits.stage
    record = best_by_validation(lines, headline(metric)) or lines[-1]
    spread = client_spread(record, stage, metric)
    return [spread.mean] if spread else client_values(record, stage, metric)

"""`fedloom advise`: what it finds, what it tries, what it says, and that it says it again.

The answers on digits4 take minutes; `make test-all` (FEDLOOM_ALL=1) asks for them.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import fedloom
from fedloom.cli.advise import _duration
from fedloom.cli.progress import Watch
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import find, names
from fedloom.core.method import Trouble
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.engine.folder import Run
from fedloom.experiments.advise import advice, race, text
from fedloom.experiments.advise.advice import Advice
from fedloom.experiments.advise.budget import fitting_points, seconds_per_point
from fedloom.experiments.advise.diagnosis import Diagnosis, Finding, diagnose
from fedloom.experiments.advise.judging import decide
from fedloom.experiments.advise.question import Question
from fedloom.experiments.advise.race import Pace, Stage
from fedloom.experiments.advise.rehearsal import majority, rehearsal
from fedloom.experiments.advise.schedule import Plan, Rung, least_points, make_plan, telling_points
from fedloom.experiments.advise.shortlist import NEEDS, Candidate, _place, lacking
from fedloom.experiments.advise.work import Work
from fedloom.experiments.advise.world import World
from fedloom.metrics.gains import gain
from fedloom.metrics.registry import headline
from fedloom.report.verdict import Verdict

ANSWER = ("question.json", "plan.json", "advice.json", "advice.md", "advice.html")
CLASSES = 4
SETTINGS: dict[str, Any] = {"hidden": [16], "lr": 0.1, "batch": 8, "executor": "inplace"}
ONLY_ALWAYS: dict[str, Any] = {
    "methods": ("fedavg",)
}  # others cost time to be counted, and most tests need none
Changed = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def as_it_is(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    return x, y


def permuted(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Every client calls the classes something else."""
    return x, (y + k) % CLASSES


def noise(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    return x, np.random.default_rng(k).integers(0, CLASSES, len(y))


def shifted(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Every client's samples lie somewhere else."""
    return x + 6 * np.eye(x.shape[1])[k], y


def world(
    change: Changed = as_it_is, clients: int = 4, train: int = 24, test: int = 16, name: str = "w"
) -> Federation:
    """Clouds of points, a class each, that overlap a little."""
    rng = np.random.default_rng(0)
    centres = 1.5 * rng.normal(size=(CLASSES, 8))
    xs, ys, members = [], [], []
    for k in range(clients):
        y = rng.integers(0, CLASSES, train + test)
        x, y = change(centres[y] + 1.5 * rng.normal(size=(len(y), 8)), y, k)
        xs.append(x)
        ys.append(y)
        rows = np.arange(k * len(y), (k + 1) * len(y))
        members.append(Client(rows[:train], rows[:0], rows[train:]))
    x = torch.tensor(np.concatenate(xs), dtype=torch.float32)
    data = Dataset(x, torch.tensor(np.concatenate(ys)), classes=tuple("abcd"), name=name)
    return Federation(data, tuple(members))


class Silent:
    """A display that shows nothing."""


class Stopped:
    """A clock that stands still."""

    def monotonic(self) -> float:
        return 0.0


class Late:
    """A clock by which time is always up."""

    def monotonic(self) -> float:
        return math.inf


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a race would run out of time, and tests would fail for it."""
    for module in (advice, race):
        monkeypatch.setattr(module, "time", Stopped())


def asked(federation: Federation, out: Path, **more: Any) -> Advice:
    """The answer to a question about the methods that are always tried."""
    given: dict[str, Any] = {"points": 80, "rounds": 12, **ONLY_ALWAYS} | more
    return fedloom.advise(federation, out=out, quiet=True, **given, **SETTINGS)


# -- the three verdicts that data of points can have, and "nothing" --------------------------------
@pytest.mark.slow
def test_alike_and_tiny_clients_should_federate(tmp_path: Path) -> None:
    found = asked(world(clients=10, train=12), tmp_path)
    assert found.kind == "federate"
    assert found.method in ("fedavg", "fedavg-ft")
    assert found.verdict.startswith(f"Pick {found.method}: clients gain")
    assert found.next == f'fedloom.run("{found.method}", federation, rounds=12, epochs=5, ...)'
    assert found.values["complete"]


@pytest.mark.slow
def test_clients_that_contradict_each_other_should_not(tmp_path: Path) -> None:
    found = asked(world(permuted, train=40), tmp_path, rounds=16)
    assert found.kind == "alone"
    assert found.verdict.startswith("Do not federate")
    assert '"local"' in found.next


@pytest.mark.slow
def test_from_labels_that_are_noise_nothing_can_be_learned(tmp_path: Path) -> None:
    found = asked(world(noise, train=40), tmp_path)
    assert found.kind == "nothing"
    assert found.verdict.startswith("Nothing can be learned")
    assert any(note.startswith("Majority class:") for note in found.notes)


def test_what_networks_have_not_learned_yet_is_not_nothing(tmp_path: Path) -> None:
    """With steps that are far too small no network learns, but a linear classifier does."""
    federation = world(train=40)
    settings = {**SETTINGS, "lr": 1e-6}
    given: dict[str, Any] = {"points": 40, "rounds": 2, "quiet": True, **ONLY_ALWAYS}
    found = fedloom.advise(federation, out=tmp_path, **given, **settings)
    assert found.kind == "longer"
    assert "a linear classifier is (" in found.verdict


# -- the same question, the same answer ------------------------------------------------------------
def answers(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ANSWER}


@pytest.mark.slow
def test_it_repeats_to_the_byte_and_goes_on_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = world()
    first = asked(federation, tmp_path / "first", rounds=4)
    begun = []
    real = race.execute

    def killed(*given: Any, **more: Any) -> Any:
        begun.append(more["out"])
        if len(begun) == 6:  # in the second stage, when some runs have been made longer
            raise KeyboardInterrupt
        return real(*given, **more)

    monkeypatch.setattr(race, "execute", killed)
    with pytest.raises(KeyboardInterrupt):
        asked(federation, tmp_path / "second", rounds=4)
    monkeypatch.setattr(race, "execute", real)
    assert not (tmp_path / "second" / "advice.json").exists()
    asked(federation, tmp_path / "second", rounds=4)
    assert answers(tmp_path / "first") == answers(tmp_path / "second")

    again = asked(federation, tmp_path / "first", rounds=4)  # everything is there already
    assert again == first


def test_a_folder_keeps_to_its_question(tmp_path: Path) -> None:
    def question(federation: Federation, seed: int = 0) -> Question:
        return Question(World.of(federation, {}, dict(SETTINGS)), tmp_path, seed=seed)

    asked_first = advice._refuse_another(question(world()))
    (tmp_path / "question.json").write_text(json.dumps(asked_first))
    assert advice._refuse_another(question(world())) == asked_first
    with pytest.raises(FedloomError, match=r"another question \(seed is 0 there, 1 here\)"):
        advice._refuse_another(question(world(), seed=1))
    with pytest.raises(FedloomError, match=r"another question \(world"):
        advice._refuse_another(question(world(noise)))


@pytest.mark.slow
def test_the_clock_stops_it_and_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still for the first stage and is up in the second."""
    federation = world()
    monkeypatch.setattr(advice, "seconds_per_point", lambda *_: 1.0)
    about = World.of(federation, {}, dict(SETTINGS))
    question = Question(about, tmp_path, 1.0, rounds=8, **ONLY_ALWAYS)

    class Clock:
        def monotonic(self) -> float:
            """Late once somebody has trained beyond the second round."""
            for lines in tmp_path.glob("race/*/metrics.jsonl"):
                if len(lines.read_text().splitlines()) > 1:
                    return math.inf
            return 0.0

    monkeypatch.setattr(race, "time", Clock())
    found = advice.advise(question, Watch(Console(), 1, quiet=True))
    assert not found.values["complete"]
    assert [stage["rounds"] for stage in found.values["race"]] == [2]
    assert any("The clock stopped the race" in note for note in found.notes)
    assert found.kind == "unsure" and found.verdict.startswith("Too early to say")
    assert _duration(found).endswith(
        "--points 48 with another --out carries out all that was planned"
    )
    assert "The clock stopped before all" in (tmp_path / "advice.html").read_text()
    monkeypatch.setattr(race, "time", Stopped())
    whole = advice.advise(question, Watch(Console(), 1, quiet=True))
    assert whole.values["complete"]
    assert len(whole.values["race"]) >= 3


@pytest.mark.parametrize("missing", [0, 1])
def test_a_run_that_ends_late_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """Time is up when all, or all but one, of the four runs with test data have just ended."""
    monkeypatch.setattr(advice, "seconds_per_point", lambda *_: 1.0)
    about = World.of(world(), {}, dict(SETTINGS))
    question = Question(about, tmp_path, 0.2, rounds=1, **ONLY_ALWAYS)

    class Clock:
        def monotonic(self) -> float:
            if len(list(tmp_path.glob("final/*/metrics.jsonl"))) < 4 - missing:
                return 0.0
            return math.inf

    monkeypatch.setattr(race, "time", Clock())
    found = advice.advise(question, Watch(Console(), 1, quiet=True))
    assert found.values["race"][-1]["seeds"] == 2
    assert found.values["complete"] == (missing == 0)
    assert ("on held-out training samples" in found.verdict) == (missing == 1)
    assert ("on test samples" in found.verdict) == (missing == 0)
    first = answers(tmp_path)
    monkeypatch.setattr(race, "time", Late())
    assert advice.advise(question, Watch(Console(), 1, quiet=True)) == found
    assert answers(tmp_path) == first
    monkeypatch.setattr(race, "time", Stopped())
    again = advice.advise(question, Watch(Console(), 1, quiet=True))
    assert again.values["complete"]
    assert (answers(tmp_path) == first) == (missing == 0)


def test_there_is_a_verdict_even_if_the_clock_is_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`local` and FedAvg finish the first stage whatever the clock says; nobody else begins."""
    monkeypatch.setattr(advice, "seconds_per_point", lambda *_: 1.0)
    monkeypatch.setattr(race, "time", Late())
    about = World.of(world(), {}, dict(SETTINGS))
    question = Question(about, tmp_path, 1.0, rounds=4, **ONLY_ALWAYS)
    found = advice.advise(question, Watch(Console(), 1, quiet=True))
    assert [stage["means"].keys() for stage in found.values["race"]] == [{"local", "fedavg"}]
    assert found.kind == "unsure"
    assert "one seed, which proves nothing" in found.verdict
    assert found.next == "fedloom.advise(federation, rounds=4, minutes=2, ...)"
    stopped = next(note for note in found.notes if "The clock stopped" in note)
    assert "after a stage of 1 round," in stopped


def test_a_budget_of_no_use_is_refused_with_the_least_that_does(tmp_path: Path) -> None:
    question = Question(World.of(world(), {}, dict(SETTINGS)), tmp_path, 1e-4)
    with pytest.raises(FedloomError, match=r"too little for even one round .* --minutes \d"):
        advice.advise(question, Watch(Console(), 1, quiet=True))
    assert not list(tmp_path.iterdir())  # so that the same folder can be used with more minutes
    with pytest.raises(FedloomError, match=r"--points 1 is too little .* takes --points \d") as no:
        asked(world(), tmp_path, points=1)
    least = int(str(no.value).rstrip(".").rpartition(" ")[2])
    found = asked(world(), tmp_path, points=least, rounds=None)
    assert found.kind == "unsure"
    (rung,) = found.values["plan"]["rungs"]
    assert rung["methods"] == rung["seeds"] == 1 and rung["rounds"] <= 2
    notes = " ".join(found.notes)
    assert re.search(r"room for (1 round|2 rounds) with 1 seed, which is too little", notes)


def test_a_slower_machine_has_fewer_points_and_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fitting_points(10, 0.0, 0.5, 4) == fitting_points(10, 60.0, 1.1, 4) == 480
    assert fitting_points(10, 0.0, 1.5, 4) == fitting_points(10, 0.0, 2.4, 4) == 240
    assert fitting_points(0.1, 1.0, 1.2, 4) == 4
    with pytest.raises(FedloomError, match=r"here that needs --minutes 0.13\."):
        fitting_points(0.1, 1.0, 1.3, 4)
    speeds = iter([3.0])  # asked for once only
    monkeypatch.setattr(advice, "seconds_per_point", lambda *_: next(speeds))
    question = Question(World.of(world(), {}, dict(SETTINGS)), tmp_path, 1.0, rounds=1)
    first = advice.advise(question, Watch(Console(), 1, quiet=True))
    assert first.values["budget"] == 12
    assert advice.advise(question, Watch(Console(), 1, quiet=True)) == first


def test_how_long_a_point_takes_is_measured() -> None:
    asked_about = World.of(world(train=40), {}, dict(SETTINGS))
    config = asked_about.rehearsal_config("fedavg", 0, 5, 5)
    work = Work(flops=1e9, steps=400, clients=4)
    taken = seconds_per_point(config, asked_about.rehearsal(0), work)
    assert 0 < taken < math.inf
    ten_times = replace(work, flops=work.flops * 100, steps=work.steps * 100)
    assert seconds_per_point(config, asked_about.rehearsal(0), ten_times) < taken


# -- the metric ------------------------------------------------------------------------------------
def test_the_metric_decides() -> None:
    """FedAvg is more accurate and `local` finds both classes: which is better is for the metric."""
    accurate = {"accuracy": 0.9, "balanced_accuracy": 0.5, "nll": 2.0}
    balanced = {"accuracy": 0.8, "balanced_accuracy": 0.8, "nll": 0.5}

    def lines(values: dict[str, float], metric: str, seed: int) -> list[dict[str, Any]]:
        def of(name: str) -> list[float]:
            return [values[name] + 0.001 * seed] * 3

        line = {"round": 1, "validation": {}, "personal": {f"{metric}_mean": 1.0}}
        stages = ("before", "after")
        line["clients"] = {stage: of("accuracy") for stage in stages}
        line["headline"] = {stage: of(metric) for stage in stages}
        return [line]

    kinds = {}
    for metric in accurate:
        asked_about = World.of(world(clients=3), {}, {**SETTINGS, "metric": metric})
        plan = Plan(("local", "fedavg"), (Rung(1, 1, 3),), 3, 1.0, telling=1)
        config_of = partial(asked_about.rehearsal_config, step=1)
        run = race.Race(plan, 0, config_of, asked_about.rehearsal, Path(), Pace(Silent(), 0.0))
        for seed in range(3):
            run._lines["local", seed] = lines(balanced, metric, seed)
            run._lines["fedavg", seed] = lines(accurate, metric, seed)
        run._close(plan.rungs[0], ["fedavg"], 1)
        stage = run.stages[0]
        assert stage.mean("fedavg") == pytest.approx(accurate[metric], abs=0.01)
        diagnosis = Diagnosis((Finding("agreement", "", "", {}),), ())
        kinds[metric] = decide(asked_about, stage, diagnosis, 0, plan)[0].kind
    assert kinds == {"accuracy": "federate", "balanced_accuracy": "alone", "nll": "alone"}


def test_a_method_that_equals_fedavg_takes_nobodys_place_in_the_final() -> None:
    def lines(level: float, seed: int) -> list[dict[str, Any]]:
        clients = [level + 0.01 * seed] * 3
        of = {"before": clients, "after": clients}
        personal = {"accuracy_mean": level}
        return [{"round": 1, "validation": {}, "personal": personal, "clients": of}]

    asked_about = World.of(world(clients=3), {}, SETTINGS)
    levels = {"local": 0.5, "fedavg": 0.7, "cfl": 0.7, "fedper": 0.5, "fedprox": 0.6}
    plan = Plan(tuple(levels), (Rung(1, 4, 2), Rung(2, 2, 2)), 2, 1.0, telling=1)
    config_of = partial(asked_about.rehearsal_config, step=1)
    run = race.Race(plan, 0, config_of, asked_about.rehearsal, Path(), Pace(Silent(), 0.0))
    for method, level in levels.items():
        for seed in range(2):
            run._lines[method, seed] = lines(level, seed)
    kept = run._close(plan.rungs[0], list(levels)[1:], 2)
    assert kept == ["fedavg", "fedprox"]
    assert run.twins == {"cfl": "fedavg", "fedper": "local"}
    assert list(run.stages[0].results) == ["local", "fedavg", "fedprox"]


@pytest.mark.parametrize("metric", ["balanced_accuracy", "nll"])
def test_every_word_is_about_the_metric(tmp_path: Path, metric: str) -> None:
    settings = {**SETTINGS, "metric": metric}
    given: dict[str, Any] = {"points": 40, "rounds": 4, "quiet": True, **ONLY_ALWAYS}
    found = fedloom.advise(world(clients=6, train=12), out=tmp_path, **given, **settings)
    label = headline(metric).in_a_sentence
    assert label in found.verdict
    notes = " ".join(found.notes)
    assert f"Decided by {label} without test data" in notes
    assert re.search(rf"is right for \d+\.\d % of .* \([^)]*\); its {label} is \d", notes)
    alone = next(row for row in found.table if row["method"] == "local")
    tested = []
    for folder in (tmp_path / "final").glob("local-s*"):
        tested.append(Run.load(folder).headline["personal"][f"{metric}_mean"])
    assert len(tested) >= 3
    assert alone["test"] == pytest.approx(np.mean(tested), abs=1e-6)


@pytest.mark.parametrize(("lead", "said"), [(0.02, True), (0.1, False)])
def test_a_plainer_method_that_may_do_as_well_is_named(lead: float, said: bool) -> None:
    """Differences between seeds are of about the size of the smaller lead."""
    fedavg = {seed: [0.5 + 0.02 * seed, 0.6 - 0.02 * seed] for seed in range(3)}
    better = {seed: [v + lead + 0.03 * (seed - 1) for v in fedavg[seed]] for seed in fedavg}
    stage = Stage(12, 3, {"local": fedavg, "fedavg": fedavg, "ditto": better}, ("ditto",), {})
    over = gain(better, fedavg)
    assert over is not None
    verdict = Verdict("federate", "ditto", over, ours=0.6, alone=0.5)
    story = SimpleNamespace(verdict=verdict, last=stage, metric=headline("accuracy"))
    words = text._plainer(cast(Any, story))
    assert [line.split(" behind it")[0] for line in words] == (
        ["fedavg, a plainer choice, is 2.0 points"] if said else []
    )


def test_without_a_model_every_metric_has_a_value() -> None:
    federation = world(clients=2, train=20)
    names = ("accuracy", "balanced_accuracy", "auc", "nll")
    found = {name: majority(lambda seed: federation, [0], headline(name))[0] for name in names}
    for k, client in enumerate(federation.clients):
        counts = federation.counts(k).numpy()
        labels = federation.data.y.numpy()[client.test]
        assert found["accuracy"][k] == (labels == counts.argmax()).mean()
        assert found["balanced_accuracy"][k] == pytest.approx(1 / len(set(labels)))
        assert found["auc"][k] == pytest.approx(0.5)
        shares = (counts + 1) / (counts + 1).sum()
        assert found["nll"][k] == pytest.approx(-np.log(shares[labels]).mean())


# -- test data -------------------------------------------------------------------------------------
def test_a_rehearsal_has_no_test_samples() -> None:
    federation = world(train=10)
    rehearsed = rehearsal(federation, 0.1, seed=3)
    seen = set()
    for before, after in zip(federation.clients, rehearsed.clients, strict=True):
        parts = [set(after.train), set(after.validation), set(after.test)]
        assert set.union(*parts) == set(before.train) | set(before.validation)
        assert sum(map(len, parts)) == len(before.train)
        assert len(after.test) == 2
        seen |= set.union(*parts)
    tested = set(np.concatenate([client.test for client in federation.clients]).tolist())
    assert seen and not seen & tested


def test_patients_stay_together_in_a_rehearsal() -> None:
    federation = world(train=20)
    group = torch.arange(len(federation.data.y)) // 4
    data = Dataset(
        federation.data.x, federation.data.y, classes=federation.data.classes, group=group
    )
    rehearsed = rehearsal(Federation(data, federation.clients), 0.1, seed=0)
    held_out = 0
    for client in rehearsed.clients:
        held = set(group[client.test].tolist())
        held_out += len(held)
        assert not held & set(group[client.train].tolist())
    assert held_out >= len(rehearsed)


@pytest.mark.slow
def test_the_decision_does_not_depend_on_test_labels(tmp_path: Path) -> None:
    federation = world(train=30)
    tested = np.concatenate([client.test for client in federation.clients])
    labels = federation.data.y.clone()
    labels[tested] = torch.from_numpy(np.random.default_rng(7).integers(0, CLASSES, len(tested)))
    spoilt = Dataset(federation.data.x, labels, classes=federation.data.classes, name="w")
    first = asked(federation, tmp_path / "first", rounds=4)
    other = asked(Federation(spoilt, federation.clients), tmp_path / "other", rounds=4)
    for key in ("kind", "method", "race", "plan", "budget", "diagnosis", "left_out", "next"):
        assert first.values[key] == other.values[key]
    for ours, theirs in zip(first.table, other.table, strict=True):
        assert {**ours, "test": None} == {**theirs, "test": None}
    assert first.verdict != other.verdict  # its figures are of test data


# -- diagnosis -------------------------------------------------------------------------------------
def troubles(federation: Federation) -> tuple[str, ...]:
    return diagnose(federation, federation, 0).troubles


def test_what_a_federation_suffers_from_is_found() -> None:
    assert troubles(world(train=60)) == ("alike",)
    assert troubles(world(shifted, train=60)) == ("domains",)
    assert "few" in troubles(world(train=8))


def test_missing_classes_are_told_from_uneven_ones() -> None:
    def two_classes(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        return x, y % 2 + 2 * (k % 2)

    def uneven(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        rare = np.arange(len(y)) % 10 == 0
        return x, np.where(rare, y, y % 2 + 2 * (k % 2))

    missing = diagnose(world(two_classes, train=100), world(two_classes, train=100), 0)
    numbers = missing.finding("labels").numbers
    assert "labels" in missing.troubles
    assert numbers["skew"] == pytest.approx(0.5, abs=0.1)
    assert numbers["missing"] > 0.9
    assert numbers["absent"] == 2
    some = diagnose(world(uneven, train=100), world(uneven, train=100), 0)
    assert "labels" in some.troubles
    assert some.finding("labels").numbers["missing"] < 0.1


def test_labels_that_say_who_a_client_is_are_no_domain() -> None:
    """Clients of one class each can be told apart by the class alone, so they do not look apart."""

    def one_class(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        return x - x.mean(0) + 5 * np.eye(8)[k % CLASSES], np.full(len(y), k % CLASSES)

    found = diagnose(world(one_class, clients=4), world(one_class, clients=4), 0)
    numbers = found.finding("domains").numbers
    assert numbers["accuracy"] > 0.9 and numbers["chance"] == 1.0
    assert "domains" not in found.troubles


def test_agreement_tells_permuted_labels_from_alike_ones() -> None:
    own = world(permuted, train=60)
    numbers = diagnose(own, own, 0).finding("agreement").numbers
    assert numbers["own"] > numbers["both"] + 0.2 > numbers["others"]
    own = world(train=12)
    numbers = diagnose(own, own, 0).finding("agreement").numbers
    assert numbers["both"] > numbers["own"] + 0.1


# -- shortlist and plan ----------------------------------------------------------------------------
def test_every_method_says_what_it_is_for() -> None:
    traits = {name: find(name).traits for name in names()}
    silent = [name for name in names() if not traits[name].helps]
    # Methods on low-rank factors may be there for their small messages alone.
    assert [name for name in silent if not traits[name].adapter] == ["local"]
    assert len(names()) >= 45
    for name in names():
        assert set(find(name).traits.needs) <= set(NEEDS)
    assert lacking(find("fedbn").traits.needs, set()).startswith("it needs a network with Batch")
    assert not lacking(find("fedbn").traits.needs, {"batchnorm"})


def test_methods_are_chosen_for_the_trouble_and_say_why_not(tmp_path: Path) -> None:
    federation = world(shifted, clients=4, train=60)
    found = asked(federation, tmp_path, rounds=1, points=72, methods=())
    tried = {row["method"]: row for row in found.table}
    assert {"local", "fedavg", "fedavg-ft", "fedsr", "fpl"} <= set(tried)
    for method, row in tried.items():
        if method not in ("local", "fedavg", "fedavg-ft"):
            assert "domains" in row["helps"]
    out = {method: why for why, methods in found.values["left_out"].items() for method in methods}
    assert "BatchNorm" in out["fedbn"]
    assert "images" in out["harmofl"]
    assert "--set adapter=lora" in out["fedsa-lora"]


def test_a_method_for_just_this_comes_before_one_for_everything() -> None:
    def candidate(method: str, *troubles: Trouble, flops: float = 1e9) -> Candidate:
        helps = find(method).traits.helps
        fitting = tuple(trouble for trouble in helps if trouble in troubles)
        return Candidate(method, fitting, Work(flops, 8, 4))

    def places(*troubles: Trouble) -> list[str]:
        cheap = candidate("cfl", *troubles, flops=1e6)
        among = [cheap, candidate("fpl", *troubles), candidate("fedper", *troubles)]
        fitting = [each for each in among if each.helps]
        return [each.method for each in sorted(fitting, key=lambda c: _place(c, troubles))]

    assert places("domains") == ["fpl", "cfl"]
    assert places("labels") == ["fedper", "cfl"]
    assert places("labels", "domains")[0] == "cfl"


COSTS = {"local": 1.0, "fedavg": 1.0, "fedavg-ft": 1.5, "a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}


def test_a_plan_fits_its_budget_and_grows_with_it() -> None:
    rounds, tried = [], []
    for points in (480, 960, 2880, 11520):
        plan = make_plan(COSTS, points)
        assert plan is not None and plan.tells
        assert plan == make_plan(COSTS, points)
        assert plan.points <= points
        assert set(plan.methods) | set(plan.left_out) == set(COSTS)
        assert {"local", "fedavg", "fedavg-ft"} <= set(plan.methods)
        rounds.append(plan.rounds)
        tried.append(len(plan.methods))
    assert rounds == sorted(rounds) and rounds[-1] > rounds[0]
    assert tried == sorted(tried) and tried[-1] == len(COSTS)


def test_whatever_the_budget_the_plan_fits_it_and_has_more_with_more() -> None:
    least = least_points(COSTS)
    assert make_plan(COSTS, least - 1) is None
    seeds = []
    for points in range(least, 600, 7):
        plan = make_plan(COSTS, points)
        assert plan is not None and plan.points <= points
        assert {"local", "fedavg"} <= set(plan.methods)
        assert sum(plan.rungs[0].rounds for _ in plan.methods) <= plan.total_rounds
        seeds.append(plan.rungs[-1].seeds)
    assert seeds == sorted(seeds) and seeds[0] == 1 and seeds[-1] == 3
    assert make_plan(COSTS, telling_points(COSTS)).tells  # type: ignore[union-attr]
    assert not make_plan(COSTS, telling_points(COSTS) // 2).tells  # type: ignore[union-attr]


def test_the_users_rounds_are_the_last_ones_if_there_is_any_room() -> None:
    for rounds in (1, 2, 3, 10):
        plan = make_plan(COSTS, 960, rounds)
        assert plan is not None and plan.tells
        lengths = [rung.rounds for rung in plan.rungs]
        assert lengths[-1] == rounds and lengths == sorted(lengths)
    short = make_plan(COSTS, 60, 100)
    assert short is not None and short.rounds < 100 and not short.tells


def test_one_round_is_one_round() -> None:
    plan = Plan(("local", "fedavg"), (Rung(1, 1, 1),), 1, 4.0, 12)
    assert plan.sentence.startswith("the race: 1 for 1 round, each beside `local`; up to 1 seed in")


# -- the command -----------------------------------------------------------------------------------
def two_sites(folder: Path) -> Path:
    """Dark and bright squares at two sites, of which one sees everything in red."""
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for name, light in (("dark", 40), ("bright", 170)):
            place = folder / site / name
            place.mkdir(parents=True)
            for i in range(20):
                pixels = rng.integers(0, 60, (16, 16, 3)) + light
                if site == "south":
                    pixels[..., 1:] //= 4
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i}.png")
    return folder


@pytest.mark.parametrize("followed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_command_says_the_verdict_first(
    fedloom: Callable[..., tuple[int, str, str]], tmp_path: Path, followed: bool
) -> None:
    """And what to do next, which works as it stands there."""
    data = two_sites(tmp_path / "sites")
    out = tmp_path / "out"
    words = ["advise", str(data), "--rounds", "2", "--points", "60", "--methods", "fedbn"]
    words += ["--executor", "inplace", "--set", "width=4", "--set", "features=8"]
    code, printed, err = fedloom(*words, "--out", str(out))
    assert code == 0, err
    assert printed.startswith(("Pick", "Do not federate", "Train longer", "Nothing", "Too early"))
    assert "the race:" in err and "--points 60 repeats it exactly" in err
    assert "Majority class: always naming" in printed
    code, again, err = fedloom(*words, "--out", str(out))
    assert code == 0 and again == printed
    command = next(line for line in printed.splitlines() if line.startswith("next: fedloom "))
    if followed:
        code, _, err = fedloom(*shlex.split(command)[2:])
        assert code == 0, err
    page = (out / "advice.html").read_text()
    assert page.count("<svg") == 7  # five findings, the race, and who gains
    code, printed, err = fedloom(*words, "--out", str(out), "--json")
    assert code == 0, err
    values = json.loads(printed)
    assert values == json.loads((out / "advice.json").read_text())
    assert "domains" in values["diagnosis"]["troubles"]
    assert "--set norm=true --set epochs=5" in values["next"]


def test_maps_and_single_clients_are_refused(
    fedloom: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, _, err = fedloom("advise", "digits4", "--clients", "1", "--partition", "iid")
    assert code == 2 and "one alone cannot federate" in err
    code, _, err = fedloom("advise", "digits4", "--minutes", "0")
    assert code == 2 and "--minutes must be above 0" in err
    code, _, err = fedloom("advise", "digits4", "--minutes", "1", "--points", "9")
    assert code == 2 and "say one" in err


# -- answers on real data --------------------------------------------------------------------------
@pytest.mark.slow
def test_digits_by_domain_by_label_and_alike_have_three_answers(tmp_path: Path) -> None:
    """Those of docs/advise.md, on frozen features: a CNN would take much longer."""
    advised = {}
    for partition, clients in {"domains": 8, "pathological": 10, "iid": 8}.items():
        advised[partition] = fedloom.advise(
            "digits4",
            partition=partition,
            clients=clients,
            encoder="vit-mini",
            limit_train=40,
            points=400,
            out=tmp_path / partition,
            quiet=True,
        )
    answers = {(found.kind, found.method) for found in advised.values()}
    assert len(answers) == 3
    assert advised["pathological"].kind == "alone"
    assert (advised["iid"].kind, advised["iid"].method) == ("federate", "fedavg")

"""`fedloom advise`: what it finds, what it tries, what it says, and that it says it again.

The answers on digits4 take minutes; `make test-all` (FEDLOOM_ALL=1) asks for them.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import fedloom
from fedloom.cli.progress import Watch
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import find, names
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.experiments.advise import advice, race
from fedloom.experiments.advise.advice import Advice, Question
from fedloom.experiments.advise.diagnosis import diagnose
from fedloom.experiments.advise.rehearsal import rehearsal
from fedloom.experiments.advise.schedule import SHARE, make_plan
from fedloom.experiments.advise.shortlist import NEEDS, lacking
from fedloom.experiments.advise.world import World

ALL = os.environ.get("FEDLOOM_ALL") == "1"
ANSWER = ("question.json", "plan.json", "advice.json", "advice.md", "advice.html")
CLASSES = 4
SETTINGS: dict[str, Any] = {"hidden": [16], "lr": 0.1, "batch": 8, "executor": "inplace"}
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


class Stopped:
    """A clock that stands still."""

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a race would run out of time, and tests would fail for it."""
    monkeypatch.setattr(race, "time", Stopped())


def asked(federation: Federation, out: Path, **more: Any) -> Advice:
    """The answer to a question whose budget is for the methods that are always tried."""
    given: dict[str, Any] = {"minutes": 0.01, "rounds": 12} | more
    return fedloom.advise(federation, out=out, quiet=True, **given, **SETTINGS)


# -- the three verdicts that data of points can have, and "nothing" --------------------------------
def test_alike_and_tiny_clients_should_federate(tmp_path: Path) -> None:
    found = asked(world(clients=10, train=12), tmp_path, minutes=1.5)
    assert found.kind == "federate"
    assert found.method in ("fedavg", "fedavg-ft")
    assert found.verdict.startswith(f"Pick {found.method}: clients gain")
    assert found.next == f'fedloom.run("{found.method}", federation, rounds=12, epochs=5, ...)'
    assert found.values["complete"]


def test_clients_that_contradict_each_other_should_not(tmp_path: Path) -> None:
    found = asked(world(permuted, train=40), tmp_path, minutes=1.5, rounds=16)
    assert found.kind == "alone"
    assert found.verdict.startswith("Do not federate")
    assert '"local"' in found.next


def test_from_labels_that_are_noise_nothing_can_be_learned(tmp_path: Path) -> None:
    found = asked(world(noise, train=40), tmp_path)
    assert found.kind == "nothing"
    assert found.verdict.startswith("Nothing can be learned")
    assert any(note.startswith("Majority class:") for note in found.notes)


def test_what_networks_have_not_learned_yet_is_not_nothing(tmp_path: Path) -> None:
    """With steps that are far too small no network learns, but a linear classifier does."""
    federation = world(train=40)
    settings = {**SETTINGS, "lr": 1e-6}
    found = fedloom.advise(federation, minutes=0.01, rounds=2, out=tmp_path, quiet=True, **settings)
    assert found.kind == "longer"
    assert "a linear classifier is (" in found.verdict


# -- the same question, the same answer ------------------------------------------------------------
def answers(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ANSWER}


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

    advice._claim(question(world()))
    advice._claim(question(world()))
    with pytest.raises(FedloomError, match=r"another question \(seed is 0 there, 1 here\)"):
        advice._claim(question(world(), seed=1))
    with pytest.raises(FedloomError, match=r"another question \(world"):
        advice._claim(question(world(noise)))


def test_the_clock_stops_it_and_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still for the first stage and is up in the second."""
    federation = world()
    question = Question(World.of(federation, {}, dict(SETTINGS)), tmp_path, 0.01, rounds=8)

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
    monkeypatch.setattr(race, "time", Stopped())
    whole = advice.advise(question, Watch(Console(), 1, quiet=True))
    assert whole.values["complete"]
    assert len(whole.values["race"]) >= 3


def test_a_budget_for_nothing_at_all_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "time", time)
    question = Question(World.of(world(), {}, dict(SETTINGS)), tmp_path, 1e-9)
    with pytest.raises(FedloomError, match="the budget was spent before"):
        advice.advise(question, Watch(Console(), 1, quiet=True))


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


def test_the_decision_does_not_depend_on_test_labels(tmp_path: Path) -> None:
    federation = world(train=30)
    tested = np.concatenate([client.test for client in federation.clients])
    labels = federation.data.y.clone()
    labels[tested] = (labels[tested] + 1) % CLASSES
    spoilt = Dataset(federation.data.x, labels, classes=federation.data.classes, name="w")
    first = asked(federation, tmp_path / "first", rounds=4)
    other = asked(Federation(spoilt, federation.clients), tmp_path / "other", rounds=4)
    for key in ("kind", "method", "race", "plan", "diagnosis"):
        assert first.values[key] == other.values[key]
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
    silent = [name for name in names() if not find(name).traits.helps]
    assert silent == ["local"]
    assert len(names()) >= 45
    for name in names():
        assert set(find(name).traits.needs) <= set(NEEDS)
    assert lacking(find("fedbn").traits.needs, set()).startswith("it needs a network with Batch")
    assert not lacking(find("fedbn").traits.needs, {"batchnorm"})


def test_methods_are_chosen_for_the_trouble_and_say_why_not(tmp_path: Path) -> None:
    federation = world(shifted, clients=4, train=60)
    found = asked(federation, tmp_path, rounds=1, minutes=1.5)
    tried = {row["method"]: row for row in found.table}
    assert {"local", "fedavg", "fedavg-ft", "fedheal", "fpl"} <= set(tried)
    for method, row in tried.items():
        if method not in ("local", "fedavg", "fedavg-ft"):
            assert "domains" in row["helps"]
    out = {method: why for why, methods in found.values["left_out"].items() for method in methods}
    assert "BatchNorm" in out["fedbn"]
    assert "images" in out["harmofl"]


COSTS = {"local": 1.0, "fedavg": 1.0, "fedavg-ft": 1.5, "a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}


def test_a_plan_fits_its_budget_and_grows_with_it() -> None:
    rounds, tried = [], []
    for minutes in (10, 20, 60, 240):
        plan = make_plan(COSTS, minutes)
        assert plan == make_plan(COSTS, minutes)
        assert plan.seconds <= SHARE * 60 * minutes
        assert set(plan.methods) | set(plan.left_out) == set(COSTS)
        assert {"local", "fedavg", "fedavg-ft"} <= set(plan.methods)
        rounds.append(plan.rounds)
        tried.append(len(plan.methods))
    assert rounds == sorted(rounds) and rounds[-1] > rounds[0]
    assert tried == sorted(tried) and tried[-1] == len(COSTS)


def test_a_budget_that_is_too_small_still_has_a_plan() -> None:
    plan = make_plan(COSTS, 0.001)
    assert plan.methods == ("local", "fedavg", "fedavg-ft")
    assert plan.rounds == 4


def test_the_users_rounds_are_the_last_ones() -> None:
    for rounds in (1, 2, 3, 10):
        plan = make_plan(COSTS, 20, rounds)
        lengths = [rung.rounds for rung in plan.rungs]
        assert lengths[-1] == rounds and lengths == sorted(lengths)


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


def test_the_command_says_the_verdict_first(
    fedloom: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    data = two_sites(tmp_path / "sites")
    out = tmp_path / "out"
    words = ["advise", str(data), "--rounds", "2", "--minutes", "0.6", "--methods", "fedbn"]
    words += ["--executor", "inplace", "--set", "width=4", "--set", "features=8"]
    code, printed, err = fedloom(*words, "--out", str(out))
    assert code == 0, err
    lines = printed.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("the race:"))
    told = [line for line in lines[start + 1 :] if " seed " not in line]
    assert told[0].startswith(("Pick", "Do not federate", "Train longer", "Nothing"))
    assert "Majority class: always naming" in printed
    assert "next: fedloom " in printed
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


# -- answers on real data --------------------------------------------------------------------------
SMALL = {"limit_train": 40, "limit_test": 30, "width": 16, "features": 128}


@pytest.mark.skipif(not ALL, reason="it takes minutes (set FEDLOOM_ALL=1)")
def test_digits_by_domain_by_label_and_alike_have_three_answers(tmp_path: Path) -> None:
    found = {}
    partitions: dict[str, dict[str, int]] = {
        "domains": {},
        "pathological": {"classes_per_client": 2},
        "iid": {},
    }
    for partition, options in partitions.items():
        found[partition] = fedloom.advise(
            "digits4",
            partition=partition,
            clients=20,
            minutes=20,
            out=tmp_path / partition,
            quiet=True,
            **SMALL,
            **options,
        )
    answers = {(advice.kind, advice.method) for advice in found.values()}
    assert len(answers) == 3
    assert (found["iid"].kind, found["iid"].method) == ("federate", "fedavg")

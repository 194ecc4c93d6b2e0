"""The choice between one process and workers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from fedloom.core.lookup import make
from fedloom.executors import auto
from fedloom.executors.auto import Auto
from fedloom.testing.small_world import place, same, trace, usual


@pytest.fixture(autouse=True)
def own_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    monkeypatch.setattr(auto.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


def noted(folder: Path) -> list[str]:
    return [json.loads(p.read_bytes())["choice"] for p in (folder / "auto").glob("*.json")]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
@pytest.mark.parametrize("worth", [1e-6, 0.02, 3.0])
def test_whatever_is_tried_and_chosen_gives_the_same_bits(method, worth, monkeypatch) -> None:
    monkeypatch.setattr(auto, "WORTH", worth)
    same(usual(make(method)), trace(make(method), wrap=partial(Auto, workers=2)), "auto")


def test_little_work_starts_no_process_and_notes_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(auto, "Pool", lambda *_: pytest.fail("a pool was started"))
    trace(make("fedavg"), wrap=partial(Auto, workers=2))
    assert not (tmp_path / "auto").exists()


@pytest.mark.parametrize("quicker", ["inplace", "pool"])
def test_the_quicker_one_stays_and_is_remembered(quicker, tmp_path, monkeypatch) -> None:
    """By a clock that runs faster while one of the two works."""
    monkeypatch.setattr(auto, "WORTH", 0.5)
    now = [0.0]
    waits = {"inplace": 0.05 if quicker == "inplace" else 0.6, "pool": 0.2}
    real = Auto._timed

    def timed(self, executor, name, tasks):
        monkeypatch.setattr(
            auto, "perf_counter", lambda: now.__setitem__(0, now[0] + waits[name]) or now[0]
        )
        yield from real(self, executor, name, tasks)

    monkeypatch.setattr(Auto, "_timed", timed)
    made: list[Auto] = []

    def wrap(worker):
        made.append(Auto(worker, 2))
        return made[-1]

    trace(make("fedavg"), wrap=wrap, rounds=8)
    assert made[0].choice == quicker and noted(tmp_path) == [quicker]
    monkeypatch.setattr(Auto, "_timed", lambda *_: pytest.fail("it tried again"))
    again = Auto(place(make("fedavg")), 2)
    assert again.choice == quicker and bool(again.processes) == (quicker == "pool")
    again.close()
    other = Auto(place(make("fedprox")), 2)  # another kind of run: nothing is known of it
    assert other.choice is None
    other.close()


@pytest.mark.parametrize(
    "told", [b"", b"{}", b'{"choice": "vmap", "workers": 2}', b'{"choice": "pool"}', b"[]"]
)
def test_a_note_that_is_none_is_passed_over(told, tmp_path) -> None:
    first = Auto(place(make("fedavg")), 2)
    first._note.parent.mkdir(parents=True)
    first._note.write_bytes(told)
    assert Auto(place(make("fedavg")), 2).choice is None


def test_one_worker_or_one_core_is_one_process(monkeypatch) -> None:
    assert Auto(place(make("fedavg")), 1).choice == "inplace"
    monkeypatch.setattr(auto.os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert Auto(place(make("fedavg")), 4).choice == "inplace"


def test_a_trial_that_was_too_short_decides_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(auto, "WORTH", 1e-6)
    monkeypatch.setattr(auto, "TRIAL", 1e9)
    made: list[Auto] = []
    trace(make("fedavg"), wrap=lambda worker: made.append(Auto(worker, 2)) or made[-1])
    assert made[0].choice is None and not noted(tmp_path)


def test_the_number_of_workers_that_had_room_is_remembered(monkeypatch) -> None:
    started = []
    monkeypatch.setattr(auto, "Pool", lambda worker, workers: started.append(workers))
    first = Auto(place(make("fedavg")), 8)
    first._note.parent.mkdir(parents=True)
    first._note.write_text(json.dumps({"choice": "pool", "workers": 3}))
    assert Auto(place(make("fedavg")), 8).choice == "pool"
    assert started == [3]

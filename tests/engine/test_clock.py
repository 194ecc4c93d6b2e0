"""Simulated time: by hand, the same whoever computes, and the same after a stop."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom
from fedloom.core.errors import FedloomError
from fedloom.engine.clock import Clock
from fedloom.engine.devices import Devices
from fedloom.engine.selection import SELECTIONS, Candidates
from fedloom.engine.timekeeper import Timekeeper, Trip

WORLD: dict[str, Any] = {
    "federation": "digits4",
    "partition": "iid",
    "clients": 8,
    "rounds": 3,
    "steps": 2,
    "batch": 8,
    "model": "cnn",
    "width": 4,
    "features": 16,
    "seed": 5,
}


class Worker:
    """Four clients of four samples, as far as a clock looks."""

    clients, seed = 4, 0

    class training:
        @staticmethod
        def planned(n: int, work: float) -> int:
            return int(10 * work)

    @staticmethod
    def rows(k: int) -> range:
        return range(4)


def keeper(**settings: Any) -> Timekeeper:
    return Timekeeper(Clock(step_seconds=0.5, **settings), Worker())  # type: ignore[arg-type]


def lines(run: fedloom.Run) -> list[dict[str, Any]]:
    """The metrics without what only a clock adds."""
    return [{k: v for k, v in line.items() if k != "simulated_seconds"} for line in run.metrics]


def ways(run: Path) -> set[str]:
    """The files of the last checkpoint: their names are their checksums."""
    manifest = json.loads(sorted((run / "checkpoint").glob("round-*.json"))[-1].read_text())
    return {
        manifest["server"],
        *manifest["clients"].values(),
        *manifest.get("versions", {}).values(),
    }


# -- by hand --------------------------------------------------------------------------------------
def test_a_trip_by_hand() -> None:
    """1 MB at 8 Mbit/s arrives in 1 s, 10 steps take 5 s, as much goes back at 4 Mbit/s in 2 s."""
    clock = keeper(download_mbps=8.0, upload_mbps=4.0)
    assert clock.trip(0, 100.0, 1_000_000, 1.0, False) == Trip(0, 108.0, False)
    assert clock.trip(0, 100.0, 1_000_000, 0.5, False).ends == 105.5
    assert clock.trip(0, 100.0, 1_000_000, 1.0, True) == Trip(0, 101.0, True)
    clock.passed(50.0, 2, 500_000)
    assert clock.now == 50.0
    assert clock.trip(0, 50.0, 1_000_000, 1.0, False).ends == 56.5


@pytest.mark.parametrize(
    ("settings", "counted", "missing", "ends"),
    [
        ({}, 4, {3}, 30.0),  # client 3 is lost at 12, the others are waited for
        ({}, 2, {2, 3}, 20.0),
        ({"deadline": 15.0}, 4, {1, 2, 3}, 15.0),
        ({"deadline": 10.0}, 4, {1, 2, 3}, 10.0),
        ({"deadline": 20.0}, 2, {2, 3}, 20.0),
    ],
)
def test_who_is_waited_for(settings: Any, counted: int, missing: set[int], ends: float) -> None:
    trips = [Trip(0, 10, False), Trip(1, 20, False), Trip(2, 30, False), Trip(3, 12, True)]
    assert keeper(**settings).round(trips, 0.0, counted) == (missing, ends)


def test_a_deadline_that_nobody_meets_is_told() -> None:
    with pytest.warns(UserWarning, match="nobody is back before the deadline of 1 s"):
        keeper(deadline=1.0).round([Trip(0, 10, False)], 0.0, 1)


def test_who_falls_asleep_is_lost() -> None:
    devices = Devices.of(Clock(step_seconds=1.0, day=100.0, awake=0.25), 1000, 3)
    now = 1234.5
    awake = devices.wait(np.arange(1000), now) == 0
    assert 0.2 < awake.mean() < 0.3
    for k in np.flatnonzero(awake)[:20]:
        end = devices.sleeps(int(k), now)
        assert now < end <= now + 25
        assert devices.wait(np.array([k]), end - 0.01) == 0
        assert devices.wait(np.array([k]), end + 0.01) > 74


def test_devices_are_spread_as_they_should_be() -> None:
    devices = Devices.of(Clock(step_seconds=2.0, speed_spread=0.8, upload_mbps=8.0), 20_000, 0)
    logs = np.log(devices.step)
    assert abs(np.median(devices.step) - 2.0) < 0.05 and abs(logs.std() - 0.8) < 0.02
    assert (devices.receive == 0).all() and np.allclose(devices.send, 1e-6)
    again = Devices.of(Clock(step_seconds=2.0, speed_spread=0.8, upload_mbps=8.0), 20_000, 0)
    assert (again.step == devices.step).all()


def test_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "phones.csv"
    file.write_text("client,seconds_per_step,upload_mbps\n1,2,8\n0,0.5,4\n")
    devices = Devices.of(Clock(trace=str(file)), 2, 0)
    assert devices.step.tolist() == [0.5, 2.0]
    assert np.allclose(devices.send, [2e-6, 1e-6]) and devices.receive.tolist() == [0, 0]
    with pytest.raises(FedloomError, match="no line for client 2"):
        Devices.of(Clock(trace=str(file)), 3, 0)
    file.write_text("seconds_per_step\n1\n3\n")
    assert set(Devices.of(Clock(trace=str(file)), 50, 0).step) == {1.0, 3.0}
    for text, said in [
        ("seconds_per_step,speeed\n1,2\n", "speeed"),
        ("upload_mbps\n1\n", "needs a column seconds_per_step"),
        ("seconds_per_step\n-1\n", "line 2"),
        ("seconds_per_step\n", "no lines"),
    ]:
        file.write_text(text)
        with pytest.raises(FedloomError, match=said):
            Devices.of(Clock(trace=str(file)), 2, 0)
    with pytest.raises(FedloomError, match="cannot be read"):
        Devices.of(Clock(trace=str(tmp_path / "none.csv")), 2, 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"deadline": 3}, "deadline needs to know"),
        ({"step_seconds": 1, "buffer": 2}, "buffer is for mode=async"),
        ({"step_seconds": 1, "mode": "async", "deadline": 1}, "deadline is for rounds"),
        ({"trace": "x.csv", "upload_mbps": 1}, "beside trace"),
        ({"select": "luck"}, "luck"),
        ({"select": "oort"}, "all 8 do: say ratio=0.5"),
        ({"step_seconds": 1, "extra": 0.3}, "extra = 0.3 is for rounds"),
        ({"edges": 9}, "only 8 clients train"),
    ],
)
def test_settings_that_nothing_would_come_of_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(FedloomError, match=said):
        fedloom.run("fedavg", **WORLD, **settings)


# -- whole runs -----------------------------------------------------------------------------------
def test_a_clock_changes_nothing_but_what_time_it_is(tmp_path: Path) -> None:
    plain = fedloom.run("fedavg", **WORLD, out=tmp_path / "plain")
    timed = fedloom.run("fedavg", **WORLD, step_seconds=0.5, out=tmp_path / "timed")
    assert lines(timed) == lines(plain)
    assert [line["simulated_seconds"] for line in timed.metrics] == [1.0, 2.0, 3.0]
    assert timed.summary["simulated_seconds"] == 3.0
    assert "simulated_seconds" not in plain.summary


def test_more_are_asked_than_count() -> None:
    """Of 4 + 2 clients the quickest 4 count; rounds are shorter than without them."""
    clock = {"step_seconds": 1.0, "speed_spread": 1.0, "ratio": 0.5}
    waiting = fedloom.run("fedavg", **WORLD, **clock)
    quick = fedloom.run("fedavg", **WORLD, **clock, extra=0.5)
    assert [line["participants"] for line in quick.metrics] == [6, 6, 6]
    assert [len(line["lost"]) for line in quick.metrics] == [2, 2, 2]
    assert quick.metrics[-1]["simulated_seconds"] < waiting.metrics[-1]["simulated_seconds"]


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedbn+fedadam"])
def test_a_buffer_of_the_whole_cohort_is_a_round(method: str, tmp_path: Path) -> None:
    """With equal speeds, bit for bit."""
    settings = {**WORLD, "ratio": 0.5, "step_seconds": 1.0}
    sync = fedloom.run(method, **settings, out=tmp_path / "sync")
    free = fedloom.run(method, **settings, mode="async", buffer=4, out=tmp_path / "async")
    assert free.metrics == sync.metrics
    assert ways(tmp_path / "sync") <= ways(tmp_path / "async")


ASYNC = {
    "mode": "async",
    "buffer": 2,
    "ratio": 0.5,
    "step_seconds": 1.0,
    "speed_spread": 1.0,
    "upload_mbps": 1.0,
    "rounds": 6,
}


def test_killed_and_resumed_asynchronous_rounds_end_with_the_same_bytes(tmp_path: Path) -> None:
    settings = {**WORLD, **ASYNC, "dropouts": 0.2, "day": 30.0, "awake": 0.8}
    whole = fedloom.run("fedavg", **settings, out=tmp_path / "whole")

    class Stop:
        def after_round(self, engine: Any, record: Any) -> bool:
            return bool(engine.round == 3)

    fedloom.run("fedavg", **settings, out=tmp_path / "cut", callbacks=[Stop()])
    cut = fedloom.resume(tmp_path / "cut", from_round=3)
    assert cut.metrics == whole.metrics
    assert ways(tmp_path / "cut") == ways(tmp_path / "whole")
    times = [line["simulated_seconds"] for line in whole.metrics]
    assert times == sorted(times) and times[0] > 0


def test_a_pool_gives_the_same_bits() -> None:
    alone = fedloom.run("fedavg", **{**WORLD, **ASYNC})
    several = fedloom.run("fedavg", **{**WORLD, **ASYNC}, executor="pool", workers=2)
    assert several.metrics == alone.metrics


def test_edges_under_a_server_with_a_buffer() -> None:
    """Late updates are moved before they are added up, so edges change nothing but rounding."""
    flat = fedloom.run("fedavg", **{**WORLD, **ASYNC, "buffer": 4})
    tree = fedloom.run("fedavg", **{**WORLD, **ASYNC, "buffer": 4}, edges=2)
    for one, other in zip(flat.metrics, tree.metrics, strict=True):
        assert one["loss"]["ce"] == pytest.approx(other["loss"]["ce"], abs=1e-5)
        assert one["simulated_seconds"] == other["simulated_seconds"]


def test_a_late_update_counts_less() -> None:
    """Started at 1, the client went to 3; the server is at 10: 10 + 4^-0.5 * 2 = 11."""
    import torch

    from fedloom.core.payload import Payload
    from fedloom.core.tree import Tree
    from fedloom.engine.asynchronous import moved

    def model(value: float, seen: int) -> Payload:
        return Payload(model=Tree({"w": torch.tensor([value]), "seen": torch.tensor(seen)}))

    came = model(3.0, 7).replace(loss=0.5)
    late = moved(came, model(1.0, 5), model(10.0, 9), 4**-0.5, {"w"})
    assert late.tensor("model/w").item() == 11.0
    statistics = moved(came, model(1.0, 5), model(10.0, 9), 4**-0.5, ())
    assert statistics.tensor("model/w").item() == 6.5  # half of the way from 10 to 3
    assert late.tensor("model/seen").item() == 7 and late.number("loss") == 0.5


@pytest.mark.parametrize("method", ["fedproto", "scaffold", "fedavg+topk", "local"])
def test_servers_that_do_more_than_average_say_so(method: str) -> None:
    with pytest.raises(FedloomError, match="cannot run with mode=async"):
        fedloom.run(method, **WORLD, mode="async", step_seconds=1.0)


def test_a_buffer_that_never_fills_is_refused() -> None:
    with pytest.raises(FedloomError, match="never come together: 8 clients"):
        fedloom.run("fedavg", **WORLD, mode="async", step_seconds=1.0, buffer=9)


# -- who is chosen --------------------------------------------------------------------------------
def candidates(round: int = 5, **columns: Any) -> Candidates:
    n = 100
    given = {
        "who": np.arange(n),
        "sizes": np.full(n, 10),
        "losses": np.linspace(0.0, 1.0, n),
        "heard": np.full(n, round - 1),
    }
    return Candidates(round, **{**given, **columns})


@pytest.mark.parametrize("name", SELECTIONS.names())
def test_so_many_different_clients(name: str) -> None:
    choose = SELECTIONS.find(name)
    for known in (candidates(), candidates(1, heard=np.zeros(100), losses=np.full(100, -1.0))):
        for n in (1, 10, 99, 100):
            chosen = choose(known, n, np.random.default_rng(n))
            assert len(set(chosen.tolist())) == n


def test_large_clients_are_asked_more_often() -> None:
    sizes = np.where(np.arange(100) < 50, 30, 10)
    counts = np.zeros(100)
    for seed in range(400):
        chosen = SELECTIONS.find("size")(candidates(sizes=sizes), 10, np.random.default_rng(seed))
        counts[chosen] += 1
    assert (
        2.3 < counts[:50].sum() / counts[50:].sum() < 3.3
    )  # a little below 3: without putting back


def test_power_of_choice_takes_high_losses_and_newcomers() -> None:
    chosen = SELECTIONS.find("loss")(candidates(), 50, np.random.default_rng(0))
    assert sorted(chosen) == list(range(50, 100))  # all 100 were looked at
    heard = np.where(np.arange(100) < 5, 0, 4)
    chosen = SELECTIONS.find("loss")(candidates(heard=heard), 50, np.random.default_rng(0))
    assert set(range(5)) <= set(chosen.tolist())


def test_oort_shuns_the_slow() -> None:
    seconds = np.where(np.arange(100) % 2, 100.0, 1.0)
    known = candidates(seconds=seconds, losses=np.ones(100))
    chosen = SELECTIONS.find("oort")(known, 20, np.random.default_rng(0))
    assert (chosen % 2 == 0).all()


def test_losses_are_noted_for_choices(tmp_path: Path) -> None:
    run = fedloom.run("fedavg", **WORLD, select="loss", ratio=0.5, out=tmp_path / "run")
    assert len(run.metrics) == 3
    whole = fedloom.run("fedavg", **WORLD, select="loss", ratio=0.5, executor="pool")
    assert whole.metrics == run.metrics

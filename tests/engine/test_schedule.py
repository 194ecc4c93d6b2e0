"""`Schedule`: who takes part, who is lost or slow, when to evaluate and when to stop."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.method import Method
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.engine.schedule import Schedule
from fedloom.models import Task, build

torch.set_num_threads(1)


class Plain(Method):
    """Nothing of a method matters here."""


def place(*sizes: int, seed: int = 3) -> ClientWorker:
    """A federation of clients with these numbers of samples."""
    n = sum(sizes)
    zeros = torch.zeros(n, dtype=torch.int64)
    data = Dataset(torch.zeros(n, 2), zeros, zeros, zeros.bool(), ("a", "b"), ("only",), "zeros")
    none, ends = np.array([], dtype=np.int64), np.cumsum(sizes)
    clients = [
        Client(np.arange(end - size, end), none, none)
        for size, end in zip(sizes, ends, strict=True)
    ]
    return ClientWorker(
        Plain(), Federation(data, tuple(clients)), build("linear", Task((2,), 2)), Training(), seed
    )


TWENTY = place(*range(1, 21))


def cohorts(schedule: Schedule, worker: ClientWorker, rounds: int) -> list[list[int]]:
    return [schedule.cohort(round, worker)[0] for round in range(1, rounds + 1)]


# -- participation --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ratio", "count"),
    [(1.0, 20), (0.5, 10), (0.1, 2), (0.3, 6), (0.99, 19), (0.55, 11), (0.05, 1), (0.001, 1)],
)
def test_a_fixed_share_of_clients(ratio: float, count: int) -> None:
    for chosen in cohorts(Schedule(ratio=ratio), TWENTY, 20):
        assert len(chosen) == count
        assert set(chosen) <= set(range(20))


@pytest.mark.parametrize("clients", [50, 100])
def test_a_share_in_percent_is_not_rounded_wrongly(clients: int) -> None:
    """29 percent of 100 clients are 29, although 0.29 * 100 is a little less in floating point."""
    worker = place(*[1] * clients)
    counts = {p: len(Schedule(ratio=p / 100).cohort(1, worker)[0]) for p in range(1, 101)}
    assert counts == {p: max(1, p * clients // 100) for p in range(1, 101)}


def test_no_client_twice_and_most_data_first() -> None:
    worker = place(5, 9, 1, 9, 3, 7, 7, 2, 5, 9)
    for chosen in cohorts(Schedule(ratio=0.7), worker, 50):
        assert len(set(chosen)) == len(chosen) == 7
        sizes = [len(worker.federation.clients[k].train) for k in chosen]
        assert sizes == sorted(sizes, reverse=True)
        assert chosen == sorted(chosen, key=lambda k: (-len(worker.federation.clients[k].train), k))
    assert cohorts(Schedule(), worker, 1) == [[1, 3, 9, 5, 6, 0, 8, 4, 7, 2]]


def test_everybody_is_equally_likely() -> None:
    rounds = 3000
    seen = Counter(k for chosen in cohorts(Schedule(ratio=0.25), TWENTY, rounds) for k in chosen)
    assert set(seen) == set(range(20))
    for count in seen.values():  # mean 750, standard deviation 24
        assert abs(count - rounds / 4) < 120


def test_a_range_of_ratios_is_uniform() -> None:
    """0.13 and 0.49 of 20 clients: 2 to 9 of them."""
    rounds = 4000
    seen = Counter(
        len(chosen) for chosen in cohorts(Schedule(ratio=0.13, ratio_max=0.49), TWENTY, rounds)
    )
    assert set(seen) == set(range(2, 10))
    expected = rounds / 8
    assert (
        sum((n - expected) ** 2 / expected for n in seen.values()) < 30
    )  # 7 degrees of freedom: p = 1e-4


def test_a_range_may_be_narrow() -> None:
    assert {len(c) for c in cohorts(Schedule(ratio=0.5, ratio_max=0.5), TWENTY, 50)} == {10}
    assert {len(c) for c in cohorts(Schedule(ratio=0.01, ratio_max=0.02), TWENTY, 50)} == {
        1
    }  # both below one client
    assert {len(c) for c in cohorts(Schedule(ratio=0.95, ratio_max=1.0), TWENTY, 50)} == {19, 20}


def test_a_cohort_depends_on_seed_and_round_only() -> None:
    sizes, schedule = range(1, 21), Schedule(ratio=0.2, ratio_max=0.6, dropouts=0.3, stragglers=0.3)
    a, b, c = place(*sizes, seed=1), place(*sizes, seed=1), place(*sizes, seed=2)
    later = schedule.cohort(7, a)  # asked for first: no generator is carried along
    drawn = [schedule.cohort(r, a) for r in range(1, 11)]
    assert drawn == [schedule.cohort(r, b) for r in range(1, 11)]
    assert drawn[6] == later
    others = [schedule.cohort(r, c) for r in range(1, 11)]
    for part in range(3):  # who takes part, who is lost and who is slow all depend on the seed
        assert [d[part] for d in drawn] != [d[part] for d in others]
    assert cohorts(Schedule(ratio=0.2), a, 10) != cohorts(Schedule(ratio=0.2), c, 10)
    assert len({tuple(chosen) for chosen, _, _ in drawn}) == 10


def test_the_cohort_does_not_depend_on_who_is_lost_or_slow() -> None:
    plain = cohorts(Schedule(ratio=0.4), TWENTY, 20)
    assert cohorts(Schedule(ratio=0.4, dropouts=0.5, stragglers=0.5), TWENTY, 20) == plain
    assert cohorts(Schedule(ratio=0.4, rounds=99, eval_every=3), TWENTY, 20) == plain


def test_the_callers_random_state_is_left_alone() -> None:
    np.random.seed(4)
    before = np.random.get_state()[1].tolist()
    state = torch.get_rng_state()
    Schedule(ratio=0.2, ratio_max=0.9, dropouts=0.3).cohort(1, TWENTY)
    assert np.random.get_state()[1].tolist() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_clients_without_data_are_never_asked() -> None:
    worker = place(0, 3, 0, 2, 4, 0, 1, 1, 0, 0)
    assert cohorts(Schedule(), worker, 3) == [[4, 1, 3, 6, 7]] * 3
    drawn = cohorts(Schedule(ratio=0.4), worker, 200)  # two of the five that have data
    assert {len(c) for c in drawn} == {2}
    assert {k for c in drawn for k in c} == {1, 3, 4, 6, 7}


@pytest.mark.parametrize("sizes", [(0,), (0, 0, 0)])
def test_nobody_has_data(sizes: tuple[int, ...]) -> None:
    with pytest.raises(FedloomError, match="no client has training data"):
        Schedule().cohort(1, place(*sizes))


# -- dropouts and stragglers ----------------------------------------------------------------------
def test_dropouts_and_stragglers_by_rate() -> None:
    schedule = Schedule(ratio=0.5, dropouts=0.3, stragglers=0.2, straggler_work=0.25)
    rounds, lost_in_all, slow_in_all, both = 1000, 0, 0, 0
    for round in range(1, rounds + 1):
        chosen, lost, work = schedule.cohort(round, TWENTY)
        assert lost <= set(chosen)
        assert set(work) <= set(chosen)
        assert set(work.values()) <= {0.25}
        lost_in_all, slow_in_all, both = (
            lost_in_all + len(lost),
            slow_in_all + len(work),
            both + len(lost & set(work)),
        )
    draws = rounds * 10  # standard deviations below 0.005
    assert lost_in_all / draws == pytest.approx(0.3, abs=0.025)
    assert slow_in_all / draws == pytest.approx(0.2, abs=0.025)
    assert both / draws == pytest.approx(0.06, abs=0.0125)  # independent of each other


def test_dropouts_hit_everybody_alike() -> None:
    """By place in the cohort would be by size: the large clients must not be lost more often."""
    schedule, seen = Schedule(dropouts=0.25), Counter()
    for round in range(1, 2001):
        seen.update(schedule.cohort(round, TWENTY)[1])
    assert set(seen) == set(range(20))
    assert all(abs(n - 500) < 100 for n in seen.values())  # standard deviation 19


def test_nobody_is_lost_or_slow_unless_asked_for() -> None:
    for round in range(1, 51):
        assert Schedule().cohort(round, TWENTY)[1:] == (set(), {})


def test_dropouts_and_stragglers_by_round() -> None:
    schedule = Schedule(dropouts={2: [4, 0], 3: [1]}, stragglers={2: [4, 7]}, straggler_work=0.1)
    assert schedule.cohort(1, TWENTY)[1:] == (set(), {})
    assert schedule.cohort(2, TWENTY)[1:] == ({0, 4}, {4: 0.1, 7: 0.1})
    assert schedule.cohort(3, TWENTY)[1:] == ({1}, {})


def test_only_participants_can_be_lost_or_slow() -> None:
    everybody = list(range(20))
    schedule = Schedule(ratio=0.3, dropouts={5: everybody}, stragglers={5: everybody})
    chosen, lost, work = schedule.cohort(5, TWENTY)
    assert len(chosen) == 6
    assert lost == set(work) == set(chosen)


def test_rounds_may_be_text_as_in_a_settings_file() -> None:
    assert Schedule(dropouts={"3": [0, 1]}).dropouts == {3: [0, 1]}


# -- evaluation and stopping ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rounds", "every", "evaluated"),
    [
        (6, 1, [1, 2, 3, 4, 5, 6]),
        (6, 2, [2, 4, 6]),
        (7, 3, [3, 6, 7]),  # the last always
        (4, 10, [4]),
        (1, 1, [1]),
    ],
)
def test_when_a_run_is_evaluated(rounds: int, every: int, evaluated: list[int]) -> None:
    schedule = Schedule(rounds=rounds, eval_every=every)
    assert [r for r in range(1, rounds + 1) if schedule.evaluates(r)] == evaluated


def records(*accuracies: float | None) -> list[dict[str, Any]]:
    return [{"validation": {"personal": a, "common": 0.0}} for a in accuracies]


@pytest.mark.parametrize(
    ("patience", "accuracies", "stop"),
    [
        (2, (), False),
        (2, (0.5,), False),
        (2, (0.5, 0.4), False),
        (2, (0.5, 0.4, 0.3), True),
        (2, (0.5, 0.4, 0.6), False),
        (2, (0.5, 0.4, 0.6, 0.5), False),
        (2, (0.5, 0.4, 0.6, 0.5, 0.55), True),
        (2, (0.5, 0.5, 0.5), True),  # equal is not better
        (1, (0.1, 0.2, 0.3), False),
        (1, (0.1, 0.2, 0.2), True),
        (3, (0.5, 0.4, 0.3), False),
        (3, (0.5, 0.4, 0.3, 0.2), True),
        (1, (None, None, None), False),  # no validation data, nothing to go by
        (1, (None, 0.5, None), False),
        (None, (0.5, 0.4, 0.3, 0.2, 0.1), False),
    ],
)
def test_patience(patience: int | None, accuracies: tuple[float | None, ...], stop: bool) -> None:
    assert Schedule(patience=patience).exhausted(records(*accuracies)) is stop


def test_patience_looks_at_the_personal_model() -> None:
    falling = [{"validation": {"personal": 0.1 * i, "common": 1 - 0.1 * i}} for i in range(5)]
    assert not Schedule(patience=1).exhausted(falling)


# -- settings -------------------------------------------------------------------------------------
def test_the_range_must_be_ordered() -> None:
    with pytest.raises(ValidationError, match=r"ratio_max = 0\.2 must not be below ratio = 0\.5"):
        Schedule(ratio=0.5, ratio_max=0.2)
    with pytest.raises(ValidationError, match="ratio_max"):
        Schedule(ratio_max=0.5)  # the ratio is 1 unless told otherwise
    assert Schedule(ratio=0.2, ratio_max=0.2).ratio_max == 0.2


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"ratio": 0},
        {"ratio": 1.1},
        {"dropouts": 1.0},
        {"dropouts": -0.1},
        {"dropouts": {"x": [1]}},
        {"stragglers": 1.5},
        {"straggler_work": 0},
        {"straggler_work": 2},
        {"eval_every": 0},
        {"patience": 0},
        {"checkpoint_every": 0},
        {"nonsense": 1},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Schedule(**wrong)


def test_a_schedule_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Schedule().rounds = 3  # type: ignore[misc]

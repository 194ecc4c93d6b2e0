"""Partitions.

Exact toy cases, properties over random pools, and impossible requests that must stop with a reason.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.errors import FedloomError
from fedloom.data.partitions import (
    PARTITIONS,
    PartitionError,
    Pool,
    Share,
    options,
    partition,
    register,
)
from fedloom.data.partitions.tools import draw, matching_test


def make_pool(
    n: int, classes: int = 10, domains: int = 1, tests: float = 0.2, seed: int = 0
) -> Pool:
    """Random labels, domains and test marks; every class about equally frequent."""
    rng = np.random.default_rng(seed)
    y, domain = rng.permutation(np.arange(n) % classes), rng.integers(0, domains, n)
    return Pool(y, domain, rng.random(n) < tests, classes, tuple(f"d{i}" for i in range(domains)))


def even_pool(per_class: int, classes: int) -> Pool:
    """`per_class` training samples and half as many test samples of every class, one domain."""
    y = np.tile(np.arange(classes), per_class + per_class // 2)
    test = np.arange(len(y)) >= per_class * classes
    return Pool(y, np.zeros_like(y), test, classes, ("all",))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@contextmanager
def stops(match: str) -> Iterator[None]:
    """The block must raise a PartitionError of one sentence within 5 s."""
    start = time.process_time()
    with pytest.raises(PartitionError, match=match) as caught:
        yield
    assert time.process_time() - start < 5
    assert is_sentence(str(caught.value))


def is_sentence(text: str) -> bool:
    return len(text) > 10 and text[-1] in ".?" and "\n" not in text


def owned_classes(pool: Pool, share: Share) -> set[int]:
    return set(pool.y[share.train].tolist())


# ---------------------------------------------------------------------------------- exact behaviour


def test_pathological_toy() -> None:
    pool = even_pool(40, 10)
    shares, _ = partition("pathological", pool, 20, rng())
    for client, share in enumerate(shares):
        first = client // 4 * 2
        assert owned_classes(pool, share) == {first, first + 1} == set(pool.y[share.test].tolist())
        assert len(share.train) == 20 and len(share.test) == 10


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_pathological_owners_match_the_capacity_rule(clients: int, classes: int, each: int) -> None:
    """The closed form for owners equals the step-by-step rule, and errors are where that fails."""

    def owners(each: int) -> list[list[int]]:
        capacity, result = [each] * clients, []
        for _ in range(classes):
            chosen = [k for k in range(clients) if capacity[k] > 0][: -(-clients * each // classes)]
            for k in chosen:
                capacity[k] -= 1
            result.append(chosen)
        return result

    pool = even_pool(clients, classes)
    if each <= classes and all(owners(each)):
        shares, _ = partition("pathological", pool, clients, rng(), classes_per_client=each)
        got = [
            [k for k, share in enumerate(shares) if c in owned_classes(pool, share)]
            for c in range(classes)
        ]
        assert got == owners(each)
    else:
        with pytest.raises(PartitionError) as caught:
            partition("pathological", pool, clients, rng(), classes_per_client=each)
        if each <= classes:
            works = min(e for e in range(1, classes + 1) if all(owners(e)))
            assert f"classes_per_client={works}." in str(caught.value)


def test_pathological_remainder_goes_to_the_last_owner() -> None:
    pool = even_pool(43, 10)
    shares, _ = partition("pathological", pool, 20, rng())
    assert [len(share.train) for share in shares] == [20, 20, 20, 26] * 5


def test_pathological_unbalanced_sizes_are_in_range() -> None:
    pool = even_pool(400, 10)
    shares, _ = partition("pathological", pool, 20, rng(), balance=False)
    sizes = {len(share.train) for share in shares}
    assert len(sizes) > 5
    for share in shares:
        counts = np.bincount(pool.y[share.train])
        assert counts[counts > 0].min() >= 10  # a tenth of an equal part
    for client in (0, 1, 2, 4, 5, 6):
        assert np.bincount(pool.y[shares[client].train]).max() < 100
    assert sum(len(share.train) for share in shares) == 4000


def test_classes_without_training_samples_take_no_place() -> None:
    full = even_pool(40, 10)
    pool = Pool(full.y * 2, full.domain, full.test, 20, full.domains)
    shares, _ = partition("pathological", pool, 20, rng())
    assert owned_classes(pool, shares[0]) == {0, 2} and owned_classes(pool, shares[19]) == {16, 18}


def test_iid_sizes_are_equal_to_within_one() -> None:
    shares, said = partition("iid", even_pool(41, 5), None, rng())
    assert sorted({len(share.train) for share in shares}) == [10, 11] and len(shares) == 20
    assert said == (
        "Partition 'iid' with no options gave 20 clients 205 of 205 training samples "
        "(min 10, median 10, max 11 each) and 100 of 100 test samples."
    )


def test_dirichlet_is_skewed_by_beta_and_keeps_the_minimum() -> None:
    pool = make_pool(12_000)
    classes = {}
    for beta in (0.1, 100.0):
        shares, said = partition("dirichlet", pool, None, rng(), beta=beta)
        assert len(shares) == 20 and min(len(share.train) for share in shares) >= 40
        assert f"beta={beta}, least=40, tries=200" in said
        classes[beta] = np.mean([len(owned_classes(pool, share)) for share in shares])
    assert classes[0.1] < 5 < 9.9 < classes[100.0]


def test_dirichlet_passes_over_full_clients() -> None:
    held = draw([100] * 10, 4, 0.3, rng()).cumsum(axis=0)
    drew = np.diff(held, axis=0, prepend=0)
    before = held - drew
    assert not drew[(before >= 250) & (before < 250).any(axis=1, keepdims=True)].any()
    assert held[-1].sum() == 1000


def test_full_clients_take_a_class_that_fits_nowhere_else() -> None:
    class Fixed:
        """Proportions that fill both clients with the first class while samples are left."""

        def dirichlet(self, alpha: np.ndarray) -> np.ndarray:
            return np.array([1.0, 0.0])

    counts = draw([6, 4], 2, 0.1, Fixed())  # type: ignore[arg-type]
    assert counts.tolist() == [[6, 0], [4, 0]]


def test_the_least_that_is_suggested_works_with_the_same_seed() -> None:
    pool = make_pool(2000)
    with pytest.raises(
        PartitionError, match=r"the best had \d+; use least=\d+ or a larger beta than 0.1\."
    ) as caught:
        partition("dirichlet", pool, 20, rng(3), least=70)
    best = int(str(caught.value).split("least=")[1].split()[0])
    shares, _ = partition("dirichlet", pool, 20, rng(3), least=best)
    assert min(len(share.train) for share in shares) == best


def test_domains_one_each_tested_on_the_whole_domain() -> None:
    pool = make_pool(900, domains=3)
    assert len(partition("domains", pool, None, rng())[0]) == 3
    shares, said = partition("domains", pool, 7, rng())
    assert [share.domain for share in shares] == [0, 1, 2, 0, 1, 2, 0]
    for share in shares:
        assert set(pool.domain[share.train]) == {share.domain}
        assert np.array_equal(share.test, np.flatnonzero(pool.test & (pool.domain == share.domain)))
    sizes = [len(shares[k].train) for k in (0, 3, 6)]
    assert max(sizes) - min(sizes) <= 1
    assert f"{pool.test.sum()} of {pool.test.sum()} test samples" in said


def test_matching_test_follows_training_counts_in_each_cell() -> None:
    # 4 training samples of cell (domain 0, class 0): three for client 0, one for client 2; nobody
    # has class 1.
    y = np.array([0, 0, 0, 0, 0, 1, *[0] * 9, 1, 0])
    domain = np.array([0, 0, 0, 0, 1, 0, *[0] * 9, 0, 1])
    pool = Pool(y, domain, np.arange(len(y)) > 5, 2, ("a", "b"))
    parts = matching_test(pool, [np.array([0, 1, 2]), np.array([4]), np.array([3])], rng())
    assert [len(part) for part in parts] == [6, 1, 3]  # floor(9 * 3/4), the rest to the last owner
    assert parts[1].tolist() == [16]
    assert 15 not in np.concatenate(parts)
    assert [
        len(p) for p in matching_test(even_pool(1, 2), [np.array([0]), np.array([1])], rng())
    ] == [0, 0]


def test_domain_of_a_share() -> None:
    pool = make_pool(400, domains=2)
    assert {share.domain for share in partition("iid", pool, 4, rng())[0]} == {-1}
    assert {share.domain for share in partition("iid", make_pool(400), 4, rng())[0]} == {0}


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("iid", {}),
        ("dirichlet", {"beta": 5.0}),
        ("pathological", {}),
        ("domains", {}),
        ("dirichlet", {"beta": 1.0, "least": 1}),
    ],
)
def test_a_thousand_clients_are_quick(name: str, chosen: dict[str, Any]) -> None:
    pool = make_pool(72_000, domains=4, tests=1 / 6)
    start = time.process_time()
    shares, _ = partition(name, pool, 1000, rng(), **chosen)
    assert time.process_time() - start < 2
    assert len(shares) == 1000


# ------------------------------------------------------------------------------------ any partition

CHOICES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "iid": {},
    "dirichlet": {
        "beta": st.floats(1e-6, 1e6),
        "least": st.none() | st.integers(1, 30),
        "tries": st.integers(1, 20),
    },
    "pathological": {"classes_per_client": st.integers(1, 8), "balance": st.booleans()},
    "domains": {},
}


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    n, classes, domains = (
        draw(st.integers(0, 300)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 5)),
    )
    rng, skew = (
        np.random.default_rng(draw(st.integers(0, 2**32))),
        draw(st.sampled_from([0.3, 1.0, 100.0])),
    )
    y = rng.choice(classes, n, p=rng.dirichlet(np.full(classes, skew)))
    domain = rng.choice(domains, n, p=rng.dirichlet(np.full(domains, skew)))
    test = rng.random(n) < draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    return Pool(y, domain, test, classes, tuple(map(str, range(domains))))


def test_every_partition_is_tested() -> None:
    assert set(CHOICES) <= set(PARTITIONS.names())
    assert {name: set(options(name)) for name in CHOICES} == {
        name: set(chosen) for name, chosen in CHOICES.items()
    }


@settings(max_examples=500, deadline=5000)
@given(
    pools(),
    st.sampled_from(sorted(CHOICES)),
    st.none() | st.integers(1, 40),
    st.integers(0, 2**32),
    st.data(),
)
def test_any_partition_is_sound_or_refused(
    pool: Pool, name: str, clients: int | None, seed: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.fixed_dictionaries({}, optional=CHOICES[name]))
    try:
        shares, said = partition(name, pool, clients, rng(seed), **chosen)
    except PartitionError as error:
        assert is_sentence(str(error))
        with pytest.raises(PartitionError) as repeated:
            partition(name, pool, clients, rng(seed), **chosen)
        assert str(repeated.value) == str(error)
        return

    assert is_sentence(said) and all(f"{key}=" in said for key in options(name))
    assert len(shares) == (clients or (len(pool.domains) if name == "domains" else 20))
    train = np.concatenate([share.train for share in shares])
    assert np.array_equal(np.sort(train), np.flatnonzero(~pool.test))  # each exactly once
    test = np.concatenate([share.test for share in shares])
    assert pool.test[test].all()
    if name != "domains":
        trained = set(zip(pool.domain[train].tolist(), pool.y[train].tolist(), strict=True))
        cells = zip(pool.domain.tolist(), pool.y.tolist(), pool.test.tolist(), strict=True)
        assert sorted(test) == [
            i for i, (d, c, held_out) in enumerate(cells) if held_out and (d, c) in trained
        ]

    sizes = [len(share.train) for share in shares]
    assert min(sizes) >= 1
    if name == "dirichlet":
        assert min(sizes) >= (chosen.get("least") or int(min(40, len(train) / len(shares) / 2)))
    if name == "iid":
        assert max(sizes) - min(sizes) <= 1
    if name == "pathological":
        most = chosen.get("classes_per_client", 2)
        assert all(len(owned_classes(pool, share)) <= most for share in shares)
    for share in shares:
        assert share.train.dtype == share.test.dtype == np.int64
        assert (np.diff(share.train) > 0).all() and (np.diff(share.test) > 0).all()
        held = set(pool.domain[share.train].tolist())
        assert share.domain == (held.pop() if len(held) == 1 else -1)

    again, said_again = partition(name, pool, clients, rng(seed), **chosen)
    assert said == said_again
    for one, other in zip(shares, again, strict=True):
        assert np.array_equal(one.train, other.train) and np.array_equal(one.test, other.test)
        assert one.domain == other.domain


def test_other_seeds_give_other_parts() -> None:
    pool = make_pool(4000, domains=2)
    for name in CHOICES:
        one, other = (partition(name, pool, 20, rng(seed))[0] for seed in (0, 1))
        assert any(not np.array_equal(a.train, b.train) for a, b in zip(one, other, strict=True)), (
            name
        )


# ------------------------------------------------------------------------------ impossible requests


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_more_clients_than_samples(name: str) -> None:
    pool = make_pool(50, tests=0.0)
    with stops("51 clients cannot share 50 training samples; ask for at most 50"):
        partition(name, pool, 51, rng())
    with stops("at most 50 clients"):
        partition(name, pool, 10**12, rng())
    with stops("0 training samples"):
        partition(name, Pool(pool.y, pool.domain, ~pool.test, 10, ("all",)), None, rng())


@pytest.mark.parametrize("clients", [0, -3, True, 2.0])
def test_a_number_of_clients_that_is_none(clients: Any) -> None:
    with stops("number of clients must be a positive integer"):
        partition("iid", make_pool(50), clients, rng())


def test_least_that_cannot_be_met() -> None:
    pool = make_pool(1000, tests=0.0)
    with stops(
        "need 1020 training samples, but there are 1000; use at most 19 clients or least=50"
    ):
        partition("dirichlet", pool, 20, rng(), least=51)
    with stops("there are 1000; use least=50"):
        partition("dirichlet", pool, 20, rng(), least=10**30)
    with stops("in 200 tries: the best had"):
        partition("dirichlet", pool, 20, rng(), least=50)
    with stops("in 3 tries: the best had 0; use fewer clients or a larger beta than 1e-06"):
        partition("dirichlet", pool, 20, rng(), beta=1e-6, tries=3)


@pytest.mark.parametrize(
    ("clients", "beta", "tries"),
    [(1000, 0.1, 200), (60_000, 0.01, 200), (60_000, 1e-6, 200), (20, 1e-6, 10**12)],
)
def test_a_hopeless_search_is_cut_short(clients: int, beta: float, tries: int) -> None:
    with stops("No Dirichlet partition"):
        partition("dirichlet", make_pool(60_000, tests=0.0), clients, rng(), beta=beta, tries=tries)


@pytest.mark.parametrize(
    "chosen",
    [
        {"beta": 0.0},
        {"beta": -1.0},
        {"beta": math.nan},
        {"beta": math.inf},
        {"least": 0},
        {"tries": 0},
    ],
)
def test_dirichlet_options_out_of_range(chosen: dict[str, Any]) -> None:
    with stops(f"^(least and )?{next(iter(chosen))} .*must|least and tries must"):
        partition("dirichlet", make_pool(500), 5, rng(), **chosen)


def test_too_few_clients_for_domains() -> None:
    with stops("2 clients cannot cover 3 domains"):
        partition("domains", make_pool(300, domains=3), 2, rng())


def test_domains_with_too_few_samples() -> None:
    domain = np.array([0] * 10 + [1] * 3)
    pool = Pool(np.zeros(13, np.int64), domain, np.zeros(13, bool), 1, ("a", "b"))
    assert len(partition("domains", pool, 7, rng())[0]) == 7
    with stops("Domain 'b' has 3 training samples for 4 clients; use at most 7 clients"):
        partition("domains", pool, 8, rng())
    with stops("Domain 'b' has 0 training samples for 1 clients; leave it out"):
        partition("domains", Pool(pool.y, pool.domain, domain == 1, 1, ("a", "b")), 2, rng())


def test_pathological_settings_that_cannot_work() -> None:
    with stops("own only 8 of 10 classes; the smallest that works is classes_per_client=5"):
        partition("pathological", even_pool(40, 10), 4, rng())
    # 4 * 3 places would do for 10 classes, but at 2 clients per class the rule uses them up after 6
    # classes.
    with stops("own only 6 of 10 classes; the smallest that works is classes_per_client=5"):
        partition("pathological", even_pool(40, 10), 4, rng(), classes_per_client=3)
    with stops(r"must lie in 1\.\.10, not 11"):
        partition("pathological", even_pool(40, 10), 20, rng(), classes_per_client=11)
    with stops(r"must lie in 1\.\.10, not 0"):
        partition("pathological", even_pool(40, 10), 20, rng(), classes_per_client=0)
    with stops(
        "leaves 15 of 20 clients .* without a training sample; ask for fewer clients or change clas"
    ):
        partition("pathological", even_pool(3, 10), 20, rng())


# ---------------------------------------------------------------------------- names, options, pools


def test_unknown_names_are_answered_with_the_nearest() -> None:
    pool = make_pool(100)
    with pytest.raises(FedloomError, match="partition 'dirichelt'; did you mean 'dirichlet'"):
        partition("dirichelt", pool, 2, rng())
    with pytest.raises(FedloomError, match="did you mean 'domains'"):
        options("domain")
    with stops("has no option 'betta'; did you mean 'beta'"):
        partition("dirichlet", pool, 2, rng(), betta=1.0)
    with stops("'iid' has no option 'beta'; it takes none"):
        partition("iid", pool, 2, rng(), beta=1.0)


def test_options_are_checked_by_type() -> None:
    pool = make_pool(500)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("dirichlet", {"beta": "0.1"}),
        ("dirichlet", {"least": 2.5}),
        ("dirichlet", {"least": True}),
        ("dirichlet", {"tries": None}),
        ("pathological", {"balance": 1}),
    ]
    for name, chosen in wrong:
        with stops(f"Option '{next(iter(chosen))}' of partition '{name}' must be"):
            partition(name, pool, 5, rng(), **chosen)
    partition("dirichlet", pool, np.int64(2), rng(), beta=np.float32(1), least=np.int64(3))  # type: ignore[arg-type]
    partition("dirichlet", pool, 2, rng(), beta=1)


def test_options_and_names() -> None:
    assert {"iid", "dirichlet", "pathological", "domains"} <= set(PARTITIONS.names())
    assert options("dirichlet") == {"beta": 0.1, "least": None, "tries": 200}
    assert options("pathological") == {"classes_per_client": 2, "balance": True}
    assert options("iid") == options("domains") == {}


def test_adding_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    PARTITIONS.load_all()
    monkeypatch.setattr(PARTITIONS, "_entries", PARTITIONS.loaded())

    @register("first", clients=2, keep=lambda pool, clients: clients * 3)
    def first(
        pool: Pool, clients: int, rng: np.random.Generator, *, keep: int | None = None
    ) -> list[Share]:
        parts = np.array_split(pool.train[:keep], clients)
        return [
            Share(part, test, -1)
            for part, test in zip(parts, matching_test(pool, parts, rng), strict=True)
        ]

    shares, said = partition("first", make_pool(100), None, rng())
    assert [len(share.train) for share in shares] == [3, 3] and "keep=6" in said
    with stops("leaves 1 of 2 clients .* ask for fewer clients or change keep"):
        partition("first", make_pool(100), None, rng(), keep=1)
    with pytest.raises(ValueError, match="a partition named 'first' is registered already"):
        register("first")(first)


def test_pools_are_checked() -> None:
    y, test = np.zeros(4, np.int64), np.zeros(4, bool)
    with stops("of one length"):
        Pool(y, y[:3], test, 1, ("all",))
    with stops("must be a bool array"):
        Pool(y, y, y, 1, ("all",))
    with stops("Every label of a pool must be int64"):
        Pool(y + 0.5, y, test, 1, ("all",))
    with stops(r"Every domain of a pool must lie in 0\.\.0"):
        Pool(y, y + 1, test, 1, ("all",))

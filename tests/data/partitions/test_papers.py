"""Partitions of the papers.

Their worked examples, properties over random pools, and refusals with a reason.
"""

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data.partitions import PARTITIONS, PartitionError, Pool, Share, options, partition
from fedloom.data.partitions.fedgcr import client_sizes
from fedloom.data.partitions.fedpact import deal_mixtures

GENERAL = ("iid", "dirichlet", "pathological", "domains")
PAPERS = (
    "exdir",
    "feature_shift",
    "label_shift",
    "feature_label_shift",
    "dif",
    "f2dc",
    "fewshot",
    "natural",
)
ALL = GENERAL + PAPERS
OFFICE = ("amazon", "caltech", "dslr", "webcam")
PACS = ("photo", "art_painting", "cartoon", "sketch")
FIVE = ("mnist", "usps", "synthdigits", "mnist_m", "svhn")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(
    domains: dict[str, tuple[int, int]], classes: int = 10, seed: int | None = None, owners: int = 0
) -> Pool:
    """A pool with so many training and test samples per domain.

    Classes in turn, or at random with a seed.
    """
    sizes = [sum(pair) for pair in domains.values()]
    domain = np.repeat(np.arange(len(sizes)), sizes)
    test = np.concatenate([np.arange(a + b) >= a for a, b in domains.values()])
    y = np.concatenate([np.arange(n) for pair in domains.values() for n in pair]) % classes
    y = y if seed is None else rng(seed).integers(0, classes, len(y))
    owner = np.arange(len(y)) % owners if owners else None
    return Pool(y, domain, test, classes, tuple(domains), owner)


def sizes(shares: list[Share]) -> list[int]:
    return [len(share.train) for share in shares]


def run(
    name: str, pool: Pool, clients: int | None = None, seed: int = 0, **chosen: Any
) -> list[Share]:
    shares, said = partition(name, pool, clients, rng(seed), **chosen)
    assert is_sentence(said) and "None" not in said.replace("counts=None", "")
    sound(pool, shares)
    return shares


def is_sentence(text: str) -> bool:
    return len(text) > 10 and text[-1] in ".?" and "\n" not in text


def refuses(match: str, name: str, pool: Pool, clients: int | None = None, **chosen: Any) -> None:
    start = time.process_time()
    with pytest.raises(PartitionError, match=match) as caught:
        partition(name, pool, clients, rng(), **chosen)
    assert time.process_time() - start < 5 and is_sentence(str(caught.value))


def sound(pool: Pool, shares: list[Share]) -> None:
    """What holds for every partition."""
    train = np.concatenate([share.train for share in shares])
    assert len(np.unique(train)) == len(train)
    assert not np.isin(train, np.concatenate([share.test for share in shares])).any()
    for share in shares:
        assert len(share.train) and share.train.dtype == share.test.dtype == np.int64
        assert (np.diff(share.train) > 0).all() and (np.diff(share.test) > 0).all()
        held = set(pool.domain[share.train].tolist())
        assert share.domain == (held.pop() if len(held) == 1 else -1)


def classes_of(pool: Pool, index: np.ndarray) -> set[int]:
    return set(pool.y[index].tolist())


# ---------------------------------------------------------------------------------- worked examples


def test_names() -> None:
    assert set(PARTITIONS.names()) == set(ALL) and len(PARTITIONS.names()) == len(ALL)


def test_exdir_gives_few_classes_and_shares_them_evenly() -> None:
    pool = build({"all": (4000, 1000)})
    shares = run("exdir", pool)
    assert len(shares) == 20 and sum(sizes(shares)) == 4000
    owned = [classes_of(pool, share.train) for share in shares]
    assert max(map(len, owned)) == 2
    owners = Counter(c for classes in owned for c in classes)
    assert len(owners) == 10 and min(owners.values()) >= 2  # half of the fair number of 4
    for share in shares:
        assert classes_of(pool, share.test) <= classes_of(pool, share.train)
    # With few owners each and a large alpha the parts of a class are nearly equal.
    even = run("exdir", pool, 10, classes_per_client=10, alpha=1e6)
    assert max(sizes(even)) - min(sizes(even)) < 40


def test_exdir_when_every_place_is_needed() -> None:
    pool = build({"all": (400, 100)})
    for seed in range(20):
        shares = run("exdir", pool, 10, seed, classes_per_client=1)
        assert sorted(classes_of(pool, share.train).pop() for share in shares) == list(range(10))
    refuses("smallest that works is classes_per_client=5", "exdir", pool, 2)
    refuses(r"must lie in 1\.\.10, not 11", "exdir", pool, 5, classes_per_client=11)
    refuses("alpha must lie", "exdir", pool, 5, alpha=0.0)


def test_feature_shift_takes_the_first_of_each_class() -> None:
    pool = build({name: (500, 3000) for name in FIVE})
    shares = run("feature_shift", pool)
    assert [share.domain for share in shares] == [0, 1, 2, 3, 4]
    for share in shares:
        start = share.domain * 3500
        assert share.train.tolist() == list(range(start, start + 100))  # classes come in turn
        assert share.test.tolist() == list(range(start + 500, start + 2500))
    assert [share.domain for share in run("feature_shift", pool, 3)] == [0, 1, 2]
    again = run("feature_shift", pool, 7, per_class=2, test_per_class=1)
    assert (
        again[5].train.tolist() == list(range(20, 40))
        and again[5].test.tolist() == again[0].test.tolist()
    )
    refuses(
        "Domain 'mnist' has no training sample left for client 25; use at most 25",
        "feature_shift",
        pool,
        26,
    )
    refuses(
        "client 0; leave it out of the pool", "feature_shift", build({"a": (0, 5), "b": (5, 5)})
    )


@pytest.mark.parametrize(
    ("clients", "per_class", "share"), [(5, 110, 1 / 11), (10, 110, 1 / 11), (20, 55, 1 / 5.5)]
)
def test_label_shift_of_digits(clients: int, per_class: int, share: float) -> None:
    pool = build({"mnist": (500, 500), "mnist_m": (2000, 15_000)})
    shares, said = partition("label_shift", pool, clients, rng())
    sound(pool, shares)
    assert (
        f"domain=mnist_m, alpha=1.0, per_class={per_class}, train_share={share}, part=test" in said
    )
    assert f"with {sum(sizes(shares))} official test samples trained on" in said
    used = np.sort(np.concatenate([index for s in shares for index in (s.train, s.test)]))
    assert used.tolist() == list(
        range(3000, 3000 + per_class * clients * 10)
    )  # first ones of each class, all used
    for one in shares:
        assert one.domain == 1 and len(one.train) == max(
            1, int(share * (len(one.train) + len(one.test)) + 1e-9)
        )
    assert 0.8 * 100 * clients < sum(sizes(shares)) <= 100 * clients


def test_label_shift_defaults_and_other_parts() -> None:
    pool = build({"a": (9000, 40_000), "b": (10, 20)})
    for clients, told in (
        (40, "per_class=30, train_share=0.333"),
        (41, "per_class=15, train_share=0.666"),
    ):
        assert told in partition("label_shift", pool, clients, rng(), domain="a", alpha=5.0)[1]
    shares, said = partition(
        "label_shift", pool, 4, rng(), domain="a", part="train", per_class=30, train_share=0.5
    )
    assert not pool.test[np.concatenate([share.test for share in shares])].any()
    assert "official training samples tested on" in said and "test samples trained on" not in said
    assert len(run("label_shift", pool, None, domain="a")) == 5
    refuses("no domain 'c'; did you mean", "label_shift", pool, 4, domain="c")
    refuses('part must be "train" or "test"', "label_shift", pool, 4, part="all")
    refuses(
        "cannot share 20 samples of the test part of domain 'b'; use at most 20",
        "label_shift",
        pool,
        21,
    )
    refuses("train_share must lie", "label_shift", pool, 4, train_share=0.0)
    refuses("per_class must be at least 1", "label_shift", pool, 4, per_class=0)


def test_feature_label_shift_counts() -> None:
    pool = build({name: (5000, 2000) for name in FIVE})
    shares = run("feature_label_shift", pool, seed=3)
    draws = np.stack(
        [rng(3).dirichlet(np.ones(5))]
    )  # the first class's proportions are the first draw
    for i, share in enumerate(shares):
        assert share.domain == i and np.bincount(pool.y[share.test]).tolist() == [100] * 10
        mine = share.train[pool.y[share.train] == 0]
        assert len(mine) == int(draws[0, i] * 50)
        assert mine.tolist() == [i * 7000 + 10 * k for k in range(len(mine))]
    assert 450 < sum(sizes(shares)) <= 500
    assert [share.domain for share in run("feature_label_shift", pool, 12)] == [
        0,
        1,
        2,
        3,
        4,
    ] * 2 + [0, 1]
    capped = build({"a": (3, 3), "b": (500, 50)}, classes=1)
    assert max(sizes(run("feature_label_shift", capped, alpha=1e6))) == 10
    got = sizes(run("feature_label_shift", capped, 6, alpha=1e6, per_class=100))
    assert got[::2] == [1, 1, 1] and set(got[1::2]) <= {99, 100}
    refuses(
        "Domain 'a' has no training sample left for client 6; use at most 6",
        "feature_label_shift",
        capped,
        7,
    )


def test_feature_label_shift_leaves_nobody_empty() -> None:
    pool = build({name: (50, 20) for name in FIVE}, classes=2)
    for seed in range(20):
        assert min(sizes(run("feature_label_shift", pool, 20, seed, alpha=1e-6))) == 1


DIF10 = [
    *[6, 12, 21, 38, 70, 126, 227, 409, 736, 1325],
    *[40, 72, 129, 233, 420, 756],
    *[151, 273, 491],
    *[181, 327],
    *[282],
]


def test_dif_digit_sizes() -> None:
    pool = build({name: (9916, 100) for name in FIVE})
    shares = run("dif", pool)
    assert sizes(shares) == DIF10
    assert [share.domain for share in shares] == [0] * 10 + [1] * 6 + [2] * 3 + [3] * 2 + [4]
    stored = run("dif", pool, mix=False)
    assert np.concatenate([share.train for share in stored[:10]]).tolist() == list(
        range(2970)
    )  # consecutive
    assert shares[0].test.tolist() == list(range(9916, 10_016)) == shares[9].test.tolist()
    assert sizes(run("dif", pool, 10, dif=1, percent=0.25)) == [371, 1115] * 5
    # The same sizes come from 7438 training samples, Digit-Five's own number, with a product of 0.4
    # and of 0.2.
    own = build({name: (7438, 10) for name in FIVE})
    assert sizes(run("dif", own, percent=1.0, train_share=0.4)) == DIF10
    assert sizes(run("dif", own, dif=1, percent=0.5, train_share=0.4)) == [371, 1115] * 5


@pytest.mark.parametrize(
    ("total", "factor", "counts"),
    [
        (5, 1, [2, 2, 2, 2, 2]),
        (5, 5, [5, 3, 2, 2, 1]),
        (5, 10.0, [10, 6, 3, 2, 1]),
        (6, 1, [2] * 6),
        (6, 5, [5, 4, 3, 2, 1, 1]),
        (6, 10, [10, 7, 4, 3, 2, 1]),
        (4, 1, [2] * 4),
        (4, 5, [5, 3, 2, 1]),
        (4, 10, [10, 5, 2, 1]),
        (3, 4, [4, 2, 1]),
        (2, 7, [7, 1]),
        (1, 1, [2]),
    ],
)
def test_dif_client_counts(total: int, factor: float, counts: list[int]) -> None:
    pool = build({f"d{i}": (800_000 if total == 2 else 9000, 10) for i in range(total)}, classes=2)
    order = tuple(reversed(pool.domains))
    shares = run("dif", pool, dif=factor, order=order)
    assert list(Counter(share.domain for share in shares).items()) == list(
        zip(range(total)[::-1], counts, strict=True)
    )
    refuses(
        f"means {sum(counts)} clients, not 99; ask for {sum(counts)}", "dif", pool, 99, dif=factor
    )


def test_dif_pacs_ratio_and_small_domains() -> None:
    pool = build({name: (5000, 100) for name in PACS}, classes=7)
    assert sizes(run("dif", pool, dif=5))[:5] == client_sizes([5000] * 4, 5, 0.3, True)[0]
    first = sizes(run("dif", pool))[:10]
    assert 9 < first[-1] / first[0] < 11  # a factor of dif between the largest and the smallest
    small = build({"a": (4000, 10), "b": (100, 10), "c": (4000, 10)})
    shares = run("dif", small, dif=4, percent=1.0, train_share=1.0)
    assert (
        sum(len(s.train) for s in shares if s.domain == 1) == 99
    )  # never more than there are; rounded down
    assert sizes(run("dif", small, dif=1, percent=1.0, train_share=1.0)) == [25, 75] * 3


def test_dif_with_equal_volumes_is_imbalanced_in_clients_only() -> None:
    """Four, two and one client; the second domain can give two clients 50 samples each."""
    small = build({"a": (4000, 10), "b": (100, 10), "c": (4000, 10)})
    shares = run("dif", small, dif=4, percent=1.0, train_share=1.0, volume="equal")
    assert sizes(shares) == [50] * 7 and [s.domain for s in shares] == [0] * 4 + [1] * 2 + [2]
    assert sizes(run("dif", small, dif=1, percent=0.5, train_share=0.6, volume="equal")) == [15] * 6


def test_dif_mixes_domains_that_are_stored_class_by_class() -> None:
    pool = build({name: (500, 100) for name in FIVE})
    order = np.lexsort((pool.y, pool.test, pool.domain))  # as folders are read
    pool = replace(pool, y=pool.y[order])
    lacking, mixed = (run("dif", pool, 10, dif=1, percent=1.0, mix=mix) for mix in (False, True))
    least, most = (
        f(len(classes_of(pool, s.train)) for s in shares)
        for f, shares in ((min, mixed), (max, lacking))
    )
    assert least > 8 > most
    assert sizes(mixed) == sizes(lacking)


def test_dif_that_cannot_be() -> None:
    pool = build({name: (1000, 10) for name in FIVE})
    refuses("use percent=0.75 or dif=9", "dif", pool)
    assert len(run("dif", pool, percent=0.75)) == 22 and len(run("dif", pool, dif=9)) == 20
    refuses("use larger domains", "dif", build({"a": (50, 1), "b": (0, 1)}), dif=1)
    refuses("dif must lie", "dif", pool, dif=0.5)
    refuses("dif must lie", "dif", pool, dif=float("inf"))
    refuses("dif must lie", "dif", pool, dif=float("nan"))
    refuses(
        "means .* clients, but there are 5000 training samples; use a smaller dif",
        "dif",
        pool,
        dif=1_000_000,
    )
    refuses("single domain cannot .* use dif=1", "dif", build({"a": (50, 10)}))
    refuses("order must name each of", "dif", pool, order=["mnist", "usps"])
    refuses("no domain 'mnits'; did you mean 'mnist", "dif", pool, order=["mnits"])
    refuses("percent must lie", "dif", pool, percent=1.5)


def test_f2dc_sizes() -> None:
    pacs = dict(zip(PACS, [(1336, 334), (1640, 408), (1876, 468), (3144, 785)], strict=True))
    pool = build(pacs, classes=7, seed=1)
    shares = run("f2dc", pool)
    assert Counter((s.domain, len(s.train), len(s.test)) for s in shares) == {
        (0, 400, 334): 2,
        (1, 492, 408): 3,
        (2, 562, 468): 2,
        (3, 943, 785): 3,
    }
    assert [s.domain for s in shares] != sorted(s.domain for s in shares)
    for synth in ("syn", "chars74k_font"):
        digits = {
            "mnist": (60_000, 10),
            "usps": (7291, 10),
            "svhn": (73_257, 10),
            synth: (10_000, 10),
        }
        shares, said = partition("f2dc", build(digits), None, rng())
        assert (
            "share=0.01, repair=False" in said
            and f"'mnist': 3, 'usps': 6, 'svhn': 6, '{synth}': 5" in said
        )
        assert Counter((s.domain, len(s.train)) for s in shares) == {
            (0, 600): 3,
            (1, 72): 6,
            (2, 732): 6,
            (3, 100): 5,
        }


def test_f2dc_repair_gives_every_client_every_class() -> None:
    y = np.array([0] * 90 + [1] * 3 + [2] * 7)  # three clients, three samples of class 1
    pool = Pool(np.tile(y, 4), np.repeat(np.arange(4), 100), np.zeros(400, bool), 3, OFFICE)
    for seed in range(20):
        shares = run("f2dc", pool, seed=seed, share=0.3)
        assert Counter(s.domain for s in shares) == {0: 2, 1: 3, 2: 3, 3: 2} and set(
            sizes(shares)
        ) == {30}
        assert all(classes_of(pool, s.train) == {0, 1, 2} for s in shares)
        assert len(run("f2dc", pool, seed=seed, repair=False)) == 10
    few = Pool(pool.y, pool.domain, (np.arange(400) % 100) == 91, 3, OFFICE)
    refuses(
        "has 2 training samples of class 1 for 3 clients .* at most 2 clients there or repair=F",
        "f2dc",
        few,
    )
    refuses("it must be 3 to 50; use share=0.03", "f2dc", pool, share=0.02)
    assert min(sizes(run("f2dc", pool, share=0.03))) == 3


def test_f2dc_other_sets_and_counts() -> None:
    pool = build({"a": (100, 10), "b": (100, 10), "c": (100, 10)})
    shares, said = partition("f2dc", pool, 7, rng())
    assert "counts={'a': 3, 'b': 2, 'c': 2}, share=0.3, repair=False" in said and set(
        sizes(shares)
    ) == {30}
    assert Counter(s.domain for s in run("f2dc", pool, counts={"c": 2, "a": 1})) == {2: 2, 0: 1}
    assert Counter(s.domain for s in run("f2dc", build({"dslr": (99, 1), "amazon": (99, 1)}))) == {
        0: 3,
        1: 2,
    }
    refuses("make 3, not 4; ask for 3 clients", "f2dc", pool, 4, counts={"c": 2, "a": 1})
    refuses("make 10, not 12; ask for 10", "f2dc", build(dict.fromkeys(PACS, (99, 1))), 12)
    refuses("it must be 1 to 25; use share=0.25", "f2dc", pool)
    assert set(sizes(run("f2dc", pool, share=0.25))) == {25}
    refuses("use share=0.01", "f2dc", pool, share=0.001)
    refuses("no domain 'd'; did you mean", "f2dc", pool, counts={"d": 2})
    for bad in ({"a": -1}, {"a": True}, {"a": 2.5}):
        refuses("counts must give every domain a number", "f2dc", pool, counts=bad)
    refuses("at least one client", "f2dc", pool, counts={})
    refuses("exclude each other", "f2dc", pool, 2, counts={"a": 2}, random=True)
    refuses(
        "'a' has 2 training samples for 3 clients; use at most 2",
        "f2dc",
        build({"a": (2, 1), "b": (9, 1)}),
        5,
    )


def test_f2dc_random() -> None:
    pool = build({name: (1000, 10) for name in OFFICE})
    seen = set()
    for seed in range(30):
        counts = Counter(s.domain for s in run("f2dc", pool, 12, seed, random=True, share=0.05))
        assert set(counts) == {0, 1, 2, 3} and max(counts.values()) <= 10
        seen.add(tuple(counts[d] for d in range(4)))
    assert len(seen) > 10
    packed = build({f"d{i}": (100, 1) for i in range(30)})
    counts = Counter(s.domain for s in run("f2dc", packed, 300, random=True, share=0.1))
    assert set(counts.values()) == {10}
    assert (
        Counter(s.domain for s in run("f2dc", packed, 90, random=True))[0] == 3
    )  # a share of 0.3 serves three
    refuses("at most 300 clients or a smaller share", "f2dc", packed, 301, random=True, share=0.01)


@pytest.mark.parametrize("scheme", ["mixture", "per_class"])
def test_fewshot(scheme: str) -> None:
    pool = build({"all": (3000, 1000)}, classes=20)
    shares = run("fewshot", pool, scheme=scheme)
    assert len(shares) == 10
    train, test = (np.concatenate([getattr(s, part) for s in shares]) for part in ("train", "test"))
    assert np.sort(train).tolist() == list(range(160))  # the first eight of each class
    assert len(np.unique(test)) == len(test) == 1000
    for share in shares:
        one, other = (
            np.bincount(pool.y[i], minlength=20) / max(1, len(i)) for i in (share.train, share.test)
        )
        assert scheme == "per_class" or (len(share.train), len(share.test)) == (16, 100)
        assert (
            scheme == "mixture"
            or np.abs(one * len(share.train) / 8 - other * len(share.test) / 50).max() < 0.26
        )
    if scheme == "mixture":
        first = run("fewshot", pool, shots=150)[
            0
        ]  # nothing is used up for the first client, and stocks are alike
        one, other = (
            np.bincount(pool.y[i], minlength=20) / len(i) for i in (first.train, first.test)
        )
        assert np.abs(one - other).sum() / 2 < 0.2
        wide = run("fewshot", pool, rho=100.0)
        kinds = [np.mean([len(classes_of(pool, s.train)) for s in made]) for made in (shares, wide)]
        assert kinds[0] < 6 < 10 < kinds[1]


def test_fewshot_gives_everybody_something() -> None:
    pool = build({"all": (300, 100)}, classes=4)
    for seed in range(10):
        assert min(sizes(run("fewshot", pool, 32, seed, rho=1e-6, scheme="per_class"))) == 1
        assert set(sizes(run("fewshot", pool, 30, seed, rho=1e-6))) == {1}
    assert sum(sizes(run("fewshot", pool, 9, shots=10**12))) == 297
    refuses(
        "which are 8 samples; use at most 8 clients or shots of 3 or more",
        "fewshot",
        pool,
        10,
        shots=2,
    )
    refuses("shots must be at least 1", "fewshot", pool, shots=0)
    refuses('scheme must be "mixture"', "fewshot", pool, scheme="other")
    refuses("rho must lie", "fewshot", pool, rho=-1.0)


def test_drawing_several_at_once_equals_one_after_the_other() -> None:
    """One, two and one samples of three classes.

    The exact chances of what the first of two clients gets.
    """
    groups, mixture = (
        [np.array([0]), np.array([1, 2]), np.array([3])],
        np.array([[0.6, 0.2, 0.2], [0.6, 0.2, 0.2]]),
    )
    source = rng(5)
    got = Counter(
        tuple(sorted(deal_mixtures(groups, mixture, source)[0].tolist())) for _ in range(10_000)
    )
    # For example (0, 3): first 0 and then 3 of what is left (.2/.4), or first 3 and then 0 (.6/.8).
    chances = {
        (0, 1): 0.6 * 0.5 + 0.2 * 0.6,
        (0, 3): 0.6 * 0.5 + 0.2 * 0.75,
        (1, 2): 0.04,
        (1, 3): 0.04 + 0.05,
    }
    for key, chance in chances.items():
        assert abs(got[key] / 10_000 - chance) < 0.015
    assert sum(got.values()) == sum(got[key] for key in chances)


def test_natural() -> None:
    pool = build({"a": (60, 20), "b": (15, 5)}, owners=7)
    shares = run("natural", pool)
    assert len(shares) == 7
    for k, share in enumerate(shares):
        assert pool.owner is not None
        assert share.train.tolist() == np.flatnonzero((pool.owner == k) & ~pool.test).tolist()
        assert share.test.tolist() == np.flatnonzero((pool.owner == k) & pool.test).tolist()
    fewer = run("natural", pool, 3)
    assert [s.train.tolist() for s in fewer] == [s.train.tolist() for s in shares[:3]]
    refuses("come with 7 clients, not 8; ask for at most 7", "natural", pool, 8)
    refuses("'natural' is for data that come with their clients", "natural", build({"a": (9, 1)}))
    refuses(
        "'natural' is for data that come with their clients", "natural", build({"a": (9, 1)}), 2
    )
    for bad in (np.zeros(3, np.int64), np.zeros(100), np.full(100, -1)):
        refuses(
            "owner must hold one int64",
            "natural",
            Pool(pool.y, pool.domain, pool.test, 10, pool.domains, bad),
        )
    gap = Pool(pool.y, pool.domain, pool.test, 10, pool.domains, np.arange(100) % 3 * 2)
    refuses("Owner 1 has no training sample; use at most 1 clients", "natural", gap)


# -------------------------------------------------------------------------------------- any of them

CONCENTRATION = st.floats(1e-6, 1e6) | st.sampled_from([0.1, 1.0, 100.0])
PART = st.floats(0.01, 1.0)
DOMAINS = ("one", "two", "three", "four")  # stand for the pool's domains in the options below
CHOICES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "exdir": {"classes_per_client": st.integers(1, 8), "alpha": CONCENTRATION},
    "feature_shift": {"per_class": st.integers(1, 20), "test_per_class": st.integers(1, 20)},
    "label_shift": {
        "domain": st.none() | st.sampled_from(DOMAINS),
        "alpha": CONCENTRATION,
        "per_class": st.none() | st.integers(1, 50),
        "train_share": st.none() | PART,
        "part": st.sampled_from(["train", "test"]),
    },
    "feature_label_shift": {
        "alpha": CONCENTRATION,
        "per_class": st.integers(1, 20) | st.just(10**30),
        "test_per_class": st.integers(1, 20),
    },
    "dif": {
        "dif": st.integers(1, 12) | st.floats(1.0, 5.0) | st.floats(1.0, 1e6),
        "order": st.none() | st.permutations(DOMAINS),
        "percent": PART,
        "volume": st.sampled_from(["geometric", "equal"]),
        "train_share": PART,
        "mix": st.booleans(),
    },
    "f2dc": {
        "counts": st.none() | st.dictionaries(st.sampled_from(DOMAINS), st.integers(0, 4)),
        "share": st.none() | PART,
        "repair": st.none() | st.booleans(),
        "random": st.booleans(),
    },
    "fewshot": {
        "shots": st.integers(1, 20),
        "rho": CONCENTRATION,
        "scheme": st.sampled_from(["mixture", "per_class"]),
    },
    "natural": {},
}


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    named = draw(st.sampled_from([DOMAINS[:1], DOMAINS[:2], DOMAINS[:3], FIVE, PACS, OFFICE]))
    n, classes = draw(st.integers(0, 300) | st.integers(1000, 4000)), draw(st.integers(1, 12))
    source, skew = rng(draw(st.integers(0, 2**32))), draw(st.sampled_from([0.3, 1.0, 100.0]))
    y = source.choice(classes, n, p=source.dirichlet(np.full(classes, skew)))
    domain = source.choice(len(named), n, p=source.dirichlet(np.full(len(named), skew)))
    test = source.random(n) < draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    owners = draw(st.integers(0, 12))
    owner = source.integers(0, owners, n) if owners else None
    return Pool(y, domain, test, classes, named, owner)


def translated(chosen: dict[str, Any], pool: Pool) -> dict[str, Any]:
    """The options with names of the pool's own domains."""
    real = dict(zip(DOMAINS, pool.domains, strict=False))
    chosen = dict(chosen)
    if chosen.get("domain"):
        chosen["domain"] = real.get(chosen["domain"], "none such")
    if chosen.get("order"):
        chosen["order"] = [real[name] for name in chosen["order"] if name in real] + list(
            pool.domains[len(DOMAINS) :]
        )
    if chosen.get("counts"):
        chosen["counts"] = {
            real[name]: count for name, count in chosen["counts"].items() if name in real
        }
    return chosen


def expected(name: str, pool: Pool, chosen: dict[str, Any]) -> int | None:
    """The number of clients where none is asked for (None: not worked out here)."""
    fixed = {"exdir": 20, "label_shift": 5, "fewshot": 10}
    if name == "f2dc" and chosen.get("counts") is not None:
        return sum(chosen["counts"].values())
    if name == "natural" and pool.owner is not None:
        return int(pool.owner.max()) + 1
    return len(pool.domains) if name.startswith("feature") else fixed.get(name)


def test_every_option_is_tried() -> None:
    assert set(CHOICES) == set(PAPERS)
    assert {name: set(options(name)) for name in CHOICES} == {
        name: set(chosen) for name, chosen in CHOICES.items()
    }


@pytest.mark.parametrize("name", sorted(CHOICES))
@settings(max_examples=120, deadline=5000)
@given(pools(), st.none() | st.integers(1, 40), st.integers(0, 2**32), st.data())
def test_any_is_sound_or_refused(
    name: str, pool: Pool, clients: int | None, seed: int, data: st.DataObject
) -> None:
    chosen = translated(data.draw(st.fixed_dictionaries({}, optional=CHOICES[name])), pool)
    if name in ("dif", "f2dc") and seed % 4:
        clients = None  # most other numbers are refused
    try:
        shares, said = partition(name, pool, clients, rng(seed), **chosen)
    except PartitionError as error:
        assert is_sentence(str(error)), error
        with pytest.raises(PartitionError) as repeated:
            partition(name, pool, clients, rng(seed), **chosen)
        assert str(repeated.value) == str(error)
        return
    assert is_sentence(said) and all(f"{key}=" in said for key in options(name))
    assert len(shares) == (clients or expected(name, pool, chosen) or len(shares))
    sound(pool, shares)
    if name != "label_shift":
        assert not pool.test[np.concatenate([share.train for share in shares])].any()
        assert pool.test[np.concatenate([share.test for share in shares])].all()
    if name == "exdir":
        assert np.array_equal(
            np.sort(np.concatenate([share.train for share in shares])), pool.train
        )
        assert all(
            len(classes_of(pool, s.train)) <= chosen.get("classes_per_client", 2) for s in shares
        )
    if name == "f2dc" and ("repair=True" in said):
        for share in shares:
            here = pool.train[pool.domain[pool.train] == share.domain]
            assert classes_of(pool, share.train) == classes_of(pool, here)
    again, said_again = partition(name, pool, clients, rng(seed), **chosen)
    assert said == said_again
    for one, other in zip(shares, again, strict=True):
        assert one.domain == other.domain
        assert np.array_equal(one.train, other.train) and np.array_equal(one.test, other.test)


@settings(max_examples=40, deadline=5000)
@given(
    st.integers(2, 7),
    st.integers(300, 3000),
    st.floats(1, 6) | st.integers(1, 6),
    st.integers(0, 2**32),
)
def test_dif_on_ample_domains(total: int, size: int, factor: float, seed: int) -> None:
    pool = build({f"d{i}": (size + 10 * i, 20) for i in range(total)}, seed=seed)
    try:
        shares = run("dif", pool, dif=factor, percent=1.0)
    except PartitionError as error:
        assert "; use dif=" in str(error)
        run(
            "dif", pool, dif=int(str(error).rsplit("dif=", 1)[1][:-1]), percent=1.0
        )  # what it names does work
        return
    counts = [sum(share.domain == d for share in shares) for d in range(total)]
    assert counts == sorted(counts, reverse=True) and counts[-1] == (2 if factor == 1 else 1)
    assert sum(len(share.train) for share in shares if share.domain == 0) <= 0.6 * size


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("exdir", {}),
        ("feature_shift", {"per_class": 2}),
        ("label_shift", {"part": "train", "alpha": 100.0}),
        ("feature_label_shift", {"per_class": 5}),
        ("f2dc", {"share": 0.003}),
        ("f2dc", {"share": 0.003, "repair": True}),
        ("fewshot", {"shots": 1000}),
        ("fewshot", {"shots": 1000, "scheme": "per_class"}),
        ("natural", {}),
    ],
)
def test_a_thousand_clients_are_quick(name: str, chosen: dict[str, Any]) -> None:
    pool = build({f"d{i}": (15_000, 3000) for i in range(4)}, seed=0, owners=1000)
    start = time.process_time()
    shares, _ = partition(name, pool, 1000, rng(), **chosen)
    assert time.process_time() - start < 3 and len(shares) == 1000
    sound(pool, shares)


@pytest.mark.parametrize("name", ["exdir", "label_shift", "feature_label_shift", "f2dc", "fewshot"])
def test_other_seeds_give_other_parts(name: str) -> None:
    pool = build({"a": (2000, 1500), "b": (2000, 1500)})
    one, other = (partition(name, pool, 6, rng(seed))[0] for seed in (0, 1))
    assert any(not np.array_equal(a.train, b.train) for a, b in zip(one, other, strict=True))


def test_types_of_options() -> None:
    pool = build({"a": (200, 100), "b": (200, 100)})
    for name, chosen in (
        ("dif", {"order": "ab"}),
        ("f2dc", {"counts": [1]}),
        ("fewshot", {"shots": True}),
    ):
        refuses(
            f"Option '{next(iter(chosen))}' of partition '{name}' must be", name, pool, **chosen
        )
    run("label_shift", pool, np.int64(3), alpha=np.float32(1), per_class=np.int64(9))  # type: ignore[arg-type]

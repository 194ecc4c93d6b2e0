from itertools import combinations, permutations

import numpy as np
import pytest
import torch

from fedloom.core.rng import key, numpy_rng, torch_rng

torch.set_num_threads(1)

# Results of old runs depend on these numbers. They must never change.
GOLDEN = {
    (): 6510301506637419378,
    (0,): 3581690635855307741,
    (1,): 7927499134100065532,
    ("1",): 3284777160787797315,
    (1, 2): 1839562674094988987,
    (2, 1): 417900731889658101,
    (0, 1, 2, "client"): 2776383025445746277,
    (12345, 7, 3, "batches"): 3540819076340542006,
    (-1, "é"): 8915449502196614313,
}


@pytest.mark.parametrize(("parts", "expected"), GOLDEN.items(), ids=str)
def test_keys_never_change(parts: tuple[int | str, ...], expected: int) -> None:
    assert key(*parts) == expected


def test_numpy_draws_never_change() -> None:
    raw = numpy_rng(0, 1, 2, "client").bit_generator.random_raw(3)
    assert raw.tolist() == [4176878732316278826, 14126331364473934116, 17970834214384237208]
    assert numpy_rng(0, 1, 2, "client").random(2).tolist() == [
        0.22642904978929046,
        0.765789957730638,
    ]


def test_torch_draws_never_change() -> None:
    assert torch_rng(0, 1, 2, "client").initial_seed() == 2776383025445746277
    drawn = torch.randint(0, 2**31, (3,), generator=torch_rng(0, 1, 2, "client"))
    assert drawn.tolist() == [459801144, 81352725, 1026592415]


def test_every_part_counts() -> None:
    base: list[int | str] = [0, 1, 2, "client"]
    keys = {key(*base)}
    for place in range(4):
        for other in (7, -1, 10**12, "x", "Client", ""):
            keys.add(key(*base[:place], other, *base[place + 1 :]))
    for short in (n for size in range(4) for n in combinations(base, size)):
        keys.add(key(*short))
    assert len(keys) == 1 + 4 * 6 + (1 + 4 + 6 + 4)


def test_order_counts() -> None:
    assert len({key(*order) for order in permutations([1, 2, "a", "b", 12])}) == 120


def test_type_counts() -> None:
    assert len({key(1), key("1"), key(True), key("True"), key("int:1")}) == 5
    assert key(0, "1") != key(0, 1) != key("0", 1)


def test_parts_do_not_run_together() -> None:
    assert (
        len({key("ab"), key("a", "b"), key("", "ab"), key("ab", ""), key("a b"), key("a,b")}) == 6
    )
    assert len({key(12), key(1, 2), key("12"), key("1", "2")}) == 4


def test_no_part_can_pass_for_two() -> None:
    assert key("a", "b") != key("a\x1fstr:b"), "whatever a part contains"


def test_no_two_of_many_keys_are_equal_and_all_fit_63_bits() -> None:
    keys = {
        key(s, r, k, p)
        for s in range(10)
        for r in range(20)
        for k in range(20)
        for p in ("init", "client")
    }
    assert len(keys) == 8000
    assert all(0 <= k < 2**63 for k in keys)
    assert max(keys) >= 2**62, "the highest bit is used"
    assert len({k % 1024 for k in keys}) == 1024, "and so are the lowest"


def test_generators_are_reproducible_and_independent() -> None:
    first, again = torch_rng(3, "a"), torch_rng(3, "a")
    assert torch.equal(torch.randn(20, generator=first), torch.randn(20, generator=again))
    assert not torch.equal(
        torch.randn(20, generator=torch_rng(3, "b")), torch.randn(20, generator=torch_rng(3, "a"))
    )
    one, two = numpy_rng(3, "a"), numpy_rng(3, "a")
    one.random(5)
    assert np.array_equal(one.permutation(50), (two.random(5), two.permutation(50))[1])
    assert not np.array_equal(numpy_rng(3, "b").random(5), numpy_rng(3, "a").random(5))


def test_generators_ignore_and_leave_alone_the_global_state() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    before, np_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = torch.randn(4, generator=torch_rng(5)), numpy_rng(5).random(4)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], np_before)
    torch.manual_seed(2)
    np.random.seed(2)
    second = torch.randn(4, generator=torch_rng(5)), numpy_rng(5).random(4)
    assert torch.equal(first[0], second[0]) and np.array_equal(first[1], second[1])

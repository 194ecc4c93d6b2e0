"""What uploads claim to be, and what of it is checked."""

import math

import pytest
import torch

from fedloom.core.claims import (
    CLASSES,
    COUNTS,
    LARGE,
    LOSS,
    SIZE,
    VARIANCE,
    About,
    Claim,
    Claims,
    Sizes,
    claim_of,
    claims_of,
    flaw,
    not_finite,
)
from fedloom.core.lookup import make, names
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.executors.inplace import Inplace
from fedloom.testing import small_world

ABOUT = About(samples=24, labels=24, classes=4)


class Mine:
    claims = Claims({"counts": COUNTS, "loss": LOSS, "own/*": Claim("shares", 0, 1)})


class Yours(Mine):
    claims = Claims({"classes": CLASSES, "own/*.free": Claim("anything")})


def test_claims_add_up_over_bases_and_the_longest_pattern_counts() -> None:
    assert {"size", "counts", "classes", "own/*", "own/*.free"} <= set(claims_of(Yours))
    assert claim_of(Yours, "own/a") == Claim("shares", 0, 1)
    assert claim_of(Yours, "own/a.free") == Claim("anything")
    assert claim_of(Mine, "classes") is None and claim_of(Yours, "classes") is CLASSES
    assert claim_of(Mine, "model/body.1.running_var") is VARIANCE
    assert claim_of(Mine, "size") is SIZE


@pytest.mark.parametrize(
    ("upload", "said"),
    [
        ({"loss": math.nan}, "loss = nan"),
        ({"free": torch.tensor([1.0, math.inf])}, "a NaN or infinity in 'free'"),
        ({"loss": -0.1}, "'loss' with the value -0.1; it holds a mean loss"),
        ({"loss": 1e300}, "the value 1e+300"),
        ({"counts": torch.tensor([3, -1])}, "'counts' with the value -1"),
        ({"counts": torch.tensor([3, 25])}, "'counts' with the value 25"),
        ({"counts": torch.tensor([3.0, 0.5])}, "'counts' with a fraction"),
        ({"counts": torch.tensor(2**62)}, "the value 4.61169e+18"),
        ({"classes": torch.tensor([0, 4])}, "'classes' with the value 4"),
        ({"classes": torch.tensor([1, 1])}, "'classes' with a value twice"),
        ({"size": 23}, "'size' with the value 23"),
        ({"size": 2**63 - 1}, "'size' with the value"),
        ({"model/bn.running_var": torch.tensor([1.0, -1e-9])}, "the value -1e-09"),
        ({"model/bn.running_var": torch.tensor([3e38])}, "the value 3e+38"),
        ({"model/bn.num_batches_tracked": torch.tensor(-1)}, "the value -1"),
    ],
)
def test_what_cannot_be_is_named(upload: dict, said: str) -> None:
    found = flaw(Yours, Payload(upload), ABOUT)
    assert found is not None and said in found


def test_what_can_be_passes() -> None:
    upload = Payload(
        size=24,
        loss=0.0,
        counts=torch.tensor([24, 0]),
        classes=torch.tensor([3, 0]),
        empty=torch.zeros(0),
        note="text",
        flag=True,
        free=torch.tensor([-3e38, 3e38]),  # finite, though its sum is not
    )
    assert flaw(Yours, upload, ABOUT) is None


def model(scale: float, count: int = 100) -> Payload:
    return Payload(model=Tree({"w": torch.full((count,), scale)}))


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        (0.1, 0.2, False),
        (0.1, 9.9, False),  # ten times as many ones
        (0.1, 10.2, True),
        (5.0, 49.0, False),  # ten times as long as before
        (5.0, 56.0, True),
        (0.0, 0.99 * LARGE, False),  # nothing like it was there
        (0.0, 1.01 * LARGE, True),
        (0.1, 3e38, True),
        (0.1, -3e38, True),
    ],
)
def test_lengths_that_jump(before: float, after: float, wrong: bool) -> None:
    sizes = Sizes(Mine)
    assert (sizes.flaw(model(before), model(after)) is not None) == wrong
    assert (sizes.flaw(model(before), model(after), change=True) is not None) == wrong


def test_a_change_is_measured_where_both_are_there() -> None:
    sizes = Sizes(Mine, jump=2)
    assert sizes.flaw(model(50.0), model(-60.0), change=True) == (
        "'model' changed by 1.1e+03, more than 1e+03"
    )
    assert sizes.flaw(model(50.0), model(-60.0)) is None
    other = Payload(model=Tree({"v": torch.ones(3)}))
    assert sizes.flaw(other, model(1.5), change=True) is None


def test_numbers_with_a_range_of_their_own_have_no_other_bound() -> None:
    grown = Payload({"model/bn.running_var": torch.tensor([1e9]), "model/w": torch.ones(3)})
    small = Payload({"model/bn.running_var": torch.tensor([1.0]), "model/w": torch.ones(3)})
    assert Sizes(Mine).flaw(small, grown, change=True) is None


def test_a_server_that_stops_being_finite_is_noticed_and_one_that_never_was_is_not() -> None:
    endless = Payload(best=torch.tensor([math.inf]), w=torch.ones(2), x=1.0)
    assert not_finite(endless, endless.replace(best=torch.tensor([math.inf, 1.0]))) is None
    assert "'w'" in str(not_finite(endless, endless.replace(w=torch.tensor([1.0, math.nan]))))
    assert "'x'" in str(not_finite(endless, endless.replace(x=math.inf)))
    assert "'new'" in str(not_finite(endless, endless.replace(new=math.nan)))


class Watching(Inplace):
    """Notes the names of all that is uploaded."""

    seen: set[str]

    def run(self, tasks):
        for result in super().run(tasks):
            self.seen |= set(result.upload)
            yield result


@pytest.mark.parametrize("name", names())
def test_every_method_says_what_it_uploads(name: str) -> None:
    method = make(name)
    seen: set[str] = set()

    def watching(worker):
        executor = Watching(worker)
        executor.seen = seen
        return executor

    small_world.trace(method, wrap=watching, rounds=2)
    unknown = sorted(entry for entry in seen if claim_of(type(method), entry) is None)
    assert unknown == [], f"{name} uploads what no claim describes"

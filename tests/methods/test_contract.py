"""Every registered method passes every check."""

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from fedloom.checks import CHECKS, NotApplicable, federation, trace
from fedloom.method import find, make, names
from fedloom.schedule import Schedule
from fedloom.training import Training


def test_nothing_is_left_out() -> None:
    """A loop over an empty collection cannot fail; these two are counted."""
    assert {"local", "fedavg", "fedprox", "fedper", "fedbn", "scaffold"} <= set(names())
    personal = {"fedavg-ft", "perfedavg", "pfedme", "fedrep", "fedproto", "ditto", "apfl", "fedrod", "fedamp", "fedala"}
    assert personal | {"fedphp", "fedfomo"} <= set(names())
    assert len(CHECKS) == 17


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", names())
def test_contract(name: str, check) -> None:
    try:
        check(make(name))
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", names())
def test_nine_in_ten_lost(name: str) -> None:
    """One-class clients of which nine in ten are lost each round: it ends with finite numbers."""
    world = federation(sizes=[20] * 6, only={k: [k % 3] for k in range(6)})
    seen = trace(make(name), world, rounds=4, dropouts=0.9)
    assert sum(len(m["lost"]) for m in seen.metrics) >= 18, "most were lost"
    for value in seen.server.values():
        assert not isinstance(value, Tensor) or torch.isfinite(value).all()
    assert all(0 <= m["personal"]["accuracy_mean"] <= 1 for m in seen.metrics)


@pytest.mark.parametrize("name", names())
def test_settings_have_names_of_their_own(name: str) -> None:
    """A setting that training or the schedule has too could not be given without saying whose it is."""
    own = {f.name for f in fields(find(name))}
    others = set(Training.model_fields) | set(Schedule.model_fields)
    assert not own & others

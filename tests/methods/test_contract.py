"""Every registered method passes every check."""

import pytest

from fedloom.checks import CHECKS, NotApplicable
from fedloom.method import make, names


def test_nothing_is_left_out() -> None:
    """A loop over an empty collection cannot fail; these two are counted."""
    assert {"local", "fedavg", "fedprox", "fedper", "fedbn", "scaffold"} <= set(names())
    assert len(CHECKS) == 17


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", names())
def test_contract(name: str, check) -> None:
    try:
        check(make(name))
    except NotApplicable as reason:
        pytest.skip(str(reason))

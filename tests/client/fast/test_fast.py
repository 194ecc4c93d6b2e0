"""Which fast ways are allowed."""

import pytest

from fedloom.client.fast import NAMES, allowed
from fedloom.core.errors import FedloomError


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, NAMES),
        ("1", NAMES),
        ("0", ()),
        ("dense", ("dense",)),
        ("lowrank, stacked", ("lowrank", "stacked")),
    ],
)
def test_the_environment_says_which(
    setting: str | None, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting is None:
        monkeypatch.delenv("FEDLOOM_FAST", raising=False)
    else:
        monkeypatch.setenv("FEDLOOM_FAST", setting)
    assert tuple(name for name in NAMES if allowed(name)) == names


def test_an_unknown_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_FAST", "dens")
    with pytest.raises(FedloomError, match="dens"):
        allowed("dense")

"""A command takes groups of options; a user sees the options one by one."""

from __future__ import annotations

from inspect import signature

import pytest

from fedloom.cli.groups import Machine, Printing, World, grouped
from fedloom.core.errors import FedloomError


def test_a_group_stands_for_its_options_in_their_place() -> None:
    received = {}

    @grouped
    def command(*, name: str, printing: Printing, last: int = 3) -> None:
        received.update(name=name, printing=printing, last=last)

    parameters = signature(command).parameters
    assert list(parameters) == ["name", "quiet", "as_json", "last"]
    assert parameters["quiet"].default is False and parameters["last"].default == 3
    command(name="x", quiet=True, as_json=False, last=4)
    assert received == {"name": "x", "printing": Printing(quiet=True), "last": 4}


def test_options_that_are_not_set_leave_a_config_alone() -> None:
    assert World().start(seed=None) == {}
    assert World(clients=4, rounds=2).start(seed=0) == {"clients": 4, "seed": 0}
    assert Machine().changes({"mu": 0.1}, metric=None) == {"mu": 0.1}


def test_options_come_before_settings_and_workers_mean_the_pool() -> None:
    changes = Machine(executor="inplace").changes({"executor": "pool", "rounds": 3}, rounds=5)
    assert changes == {"executor": "inplace", "rounds": 5}
    assert Machine(workers=2).changes({}) == {"executor": "pool", "workers": 2}
    with pytest.raises(FedloomError, match="--workers is for --executor pool and auto"):
        Machine(workers=2).changes({"executor": "inplace"})

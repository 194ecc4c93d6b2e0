"""A client's memory: late, repeated and out-of-order messages leave no trace.

Nothing half-written is ever read.
"""

from pathlib import Path

import pytest
import torch

from fedloom.core.errors import CheckpointError, FedloomError
from fedloom.core.payload import Payload
from fedloom.executors.flower.store import NOTHING, Late, Versions, root


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path, "exp-1", 3)


def state(x: float) -> Payload:
    return Payload(w=torch.full((2,), x))


def test_a_new_client_remembers_nothing(versions) -> None:
    assert versions.get(NOTHING).equal(Payload()) and versions.held() == {}


def test_states_are_kept_by_version_and_old_ones_go(versions) -> None:
    for r in range(1, 6):
        versions.put((1, r), (1, r - 1) if r > 1 else NOTHING, state(r))
    assert list(versions.held()) == [
        (1, 3),
        (1, 4),
        (1, 5),
    ]  # the new one, what it came from, and one to go back to
    assert versions.get((1, 4)).equal(state(4))


def test_what_the_server_never_accepted_is_dropped(versions) -> None:
    versions.put((1, 1), NOTHING, state(1))
    versions.put((1, 2), (1, 1), state(2))  # the reply was lost
    versions.put((1, 3), (1, 1), state(3))  # so the next round is based on round 1 again
    assert list(versions.held()) == [(1, 1), (1, 3)]


def test_late_and_out_of_order_messages_are_refused(versions) -> None:
    versions.put((1, 1), NOTHING, state(1))
    versions.put((1, 3), (1, 1), state(3))
    before = {p.name: p.read_bytes() for p in versions.folder.iterdir()}
    for attempt in (lambda: versions.check((1, 2)), lambda: versions.put((1, 2), (1, 1), state(2))):
        with pytest.raises(Late, match="round 2 came late: round 3"):
            attempt()
    assert {p.name: p.read_bytes() for p in versions.folder.iterdir()} == before


def test_a_repeated_message_changes_nothing(versions) -> None:
    versions.put((1, 1), NOTHING, state(1))
    before = {p.name: p.read_bytes() for p in versions.folder.iterdir()}
    versions.check((1, 1))
    versions.put((1, 1), NOTHING, state(1))
    assert {p.name: p.read_bytes() for p in versions.folder.iterdir()} == before
    versions.put(
        (1, 1), NOTHING, state(7)
    )  # other contents under the same version: one of them, the last
    assert versions.get((1, 1)).equal(state(7)) and len(versions.held()) == 1
    assert len(list(versions.folder.glob("*.safetensors"))) == 1


def test_a_server_that_starts_again_may_repeat_a_round_and_older_orders_are_late(versions) -> None:
    versions.put((1, 1), NOTHING, state(1))
    versions.put((1, 2), (1, 1), state(2))
    versions.put((2, 2), (1, 1), state(20))  # the server was killed before it saved round 2
    assert list(versions.held()) == [(1, 1), (2, 2)]
    with pytest.raises(Late):
        versions.put((1, 3), (1, 2), state(3))  # sent by the server that is no more


def test_a_missing_or_damaged_state_is_named(versions) -> None:
    with pytest.raises(CheckpointError, match=r"no state of round 4 .*client-00003"):
        versions.get((1, 4))
    versions.put((1, 1), NOTHING, state(1))
    path = versions.held()[1, 1]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match="damaged"):
        versions.get((1, 1))


def test_what_an_interrupted_write_left_is_removed(versions) -> None:
    versions.put((1, 1), NOTHING, state(1))
    (versions.folder / ".000001-000002-x.safetensors.9-9.tmp").write_bytes(b"half")
    assert list(versions.held()) == [(1, 1)]
    versions.put((1, 2), (1, 1), state(2))
    assert not list(versions.folder.glob("*.tmp")) and not list(versions.folder.glob(".*.tmp"))


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b"])
def test_an_experiment_cannot_lead_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(FedloomError, match="no name of an experiment"):
        Versions(tmp_path, name, 0)


def test_where_states_lie(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDLOOM_STATE", raising=False)
    assert root() == tmp_path / "fedloom"
    monkeypatch.setenv("FEDLOOM_STATE", str(tmp_path / "x"))
    assert root() == tmp_path / "x"

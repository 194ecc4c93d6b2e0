"""A run taken back to an earlier round."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedloom
from fedloom.cli.main import app
from fedloom.core.errors import CheckpointError
from fedloom.engine.checkpoint import Store
from fedloom.engine.run import resume, roll_back

SMALL = {"width": 4, "features": 16, "limit_train": 4, "limit_test": 4, "rounds": 4, "clients": 3}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    fedloom.run("scaffold", partition="iid", out=tmp_path / "run", report=False, **SMALL)
    return tmp_path / "run"


def files(folder: Path) -> dict[str, bytes]:
    names = ["metrics.jsonl", *(f"checkpoint/{p.name}" for p in (folder / "checkpoint").iterdir())]
    return {name: (folder / name).read_bytes() for name in sorted(names)}


def test_the_rounds_done_again_end_with_the_same_bytes(finished: Path) -> None:
    before = files(finished)
    roll_back(finished, 3)
    assert Store(finished / "checkpoint").load().round == 3
    assert not fedloom.Run.load(finished).finished
    assert resume(finished).finished and files(finished) == before


def test_a_round_without_a_checkpoint_is_refused_and_nothing_is_lost(finished: Path) -> None:
    before = files(finished)
    with pytest.raises(CheckpointError, match=r"no checkpoint of round 9; there are those of: .*4"):
        roll_back(finished, 9)
    assert files(finished) == before and fedloom.Run.load(finished).finished


def test_a_damaged_checkpoint_is_no_way_back(finished: Path) -> None:
    (finished / "checkpoint" / "round-000003.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"round-000003.json is damaged"):
        roll_back(finished, 3)
    assert Store(finished / "checkpoint").load().round == 4


def test_from_the_command_line(finished: Path) -> None:
    before = files(finished)
    done = CliRunner().invoke(app, ["resume", str(finished), "--from-round", "3", "--no-report"])
    assert done.exit_code == 0, done.output
    assert files(finished) == before


def test_a_federation_is_only_taken_back(finished: Path) -> None:
    (finished / "federation-log.json").write_text("{}")
    done = CliRunner().invoke(app, ["resume", str(finished), "--from-round", "3"])
    assert done.exit_code == 0 and "`flwr run` of its app continues it" in done.output
    assert Store(finished / "checkpoint").load().round == 3

"""Whatever is wrong, the command line answers with one sentence and shows no traceback."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedloom.cli import main
from fedloom.core.errors import FedloomError
from fedloom.engine.config import parse_set, read
from fedloom.engine.folder import _read_lines


def test_a_fault_of_ours_is_one_sentence_and_its_traceback_goes_to_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise KeyError("nobody foresaw this")

    monkeypatch.setattr(main, "app", broken)
    with pytest.raises(SystemExit) as ended:
        main.main()
    said = capsys.readouterr().err
    assert ended.value.code == 3
    assert "Traceback" not in said and "nobody foresaw this" in said
    file = Path(re.search(r"the traceback is in (\S+\.txt)\.", said)[1])  # type: ignore[index]
    assert "in broken" in file.read_text()
    file.unlink()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"method = '\xff'", "is not UTF-8"),
        (b"a = " + b"[" * 100_000, "nested too deep"),
        (b"a = ", "is not valid TOML"),
        (None, "cannot be read: Is a directory"),
    ],
)
def test_a_run_file_that_is_none(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(FedloomError, match=said):
        read(path)


def test_dates_and_deep_values_are_texts() -> None:
    deep = "[" * 100_000
    assert parse_set(["a=2024-01-01", "b=07:00:00", f"c={deep}", "d=2024-01-01T00:00:00"]) == {
        "a": "2024-01-01", "b": "07:00:00", "c": deep, "d": "2024-01-01T00:00:00"
    }  # fmt: skip


@pytest.mark.parametrize("line", [b"[1]", b"7", b'{"round": "x"}', b"\xff", b"[" * 100_000])
def test_a_damaged_timing_file_ends_at_the_damage(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "timing.jsonl"
    path.write_bytes(b'{"round": 1}\n' + line + b'\n{"round": 3}\n')
    assert _read_lines(path) == [{"round": 1}]


def test_the_command_line_answers_with_a_sentence(tmp_path: Path) -> None:
    images = tmp_path / "images"
    for name in (b"a", b"\xff\xfe"):
        os.makedirs(os.path.join(os.fsencode(images), name))
    commands = {
        "run ../x": "unknown method",
        "run fedavg --set features=2024-01-01": "features",
        f"run fedavg --data {images}": "is not UTF-8; rename it",
    }
    for command, said in commands.items():
        done = subprocess.run(
            [sys.executable, "-m", "fedloom", *command.split()],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2, (command, done.stderr)
        assert said in done.stderr and "Traceback" not in done.stderr, command

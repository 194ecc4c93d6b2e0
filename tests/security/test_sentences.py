"""Whatever is wrong, the command line answers with one sentence and shows no traceback."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz import SMALL
from watchdog import Watchdog

import fedloom
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


Say = Any


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """A command, in this process; returns its exit code and what it says of errors."""

    def command(*words: object) -> tuple[Any, str]:
        monkeypatch.setattr(sys, "argv", ["fedloom", *map(str, words)])
        code: Any = 0
        try:
            main.main()
        except SystemExit as ended:
            code = ended.code
        return code, capsys.readouterr().err

    return command


def is_a_sentence(said: str) -> bool:
    lines = said.strip().splitlines()
    return len(lines) == 1 and lines[0].startswith("error: ") and "Traceback" not in said


def test_the_command_line_answers_with_a_sentence(say: Say, tmp_path: Path) -> None:
    images = tmp_path / "images"
    for name in (b"a", b"\xff\xfe"):
        os.makedirs(os.path.join(os.fsencode(images), name))
    commands = {
        "run ../x": "unknown method",
        "run fedavg --set features=2024-01-01": "features",
        f"run fedavg --data {images}": "is not UTF-8; rename it",
    }
    for command, meant in commands.items():
        code, said = say(*command.split())
        assert code == 2 and meant in said and is_a_sentence(said), command


@pytest.mark.parametrize("content", [b"method = '\xff'", b"a = " + b"[" * 1000, None])
def test_a_run_file_that_is_none_on_the_command_line(
    content: bytes | None, say: Say, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    code, said = say("run", path)
    assert code == 2 and is_a_sentence(said) and "run.toml" in said


@pytest.mark.parametrize("place", [0.02, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("compressed", [True, False])
def test_a_flipped_bit_in_an_npz(place: float, compressed: bool, say: Say, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (40, 16, 16)).astype(np.uint8)
    y = np.arange(40) % 4
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[int(place * len(data))] ^= 4
    (tmp_path / "a.npz").write_bytes(data)
    code, said = say("run", "fedavg", "--data", tmp_path / "a.npz", "--out", tmp_path / "run")
    assert code == 2 and is_a_sentence(said) and "a.npz" in said
    assert not (tmp_path / "run").exists()


def test_a_damaged_timing_file_does_not_stop_a_resume(
    finished: Path, say: Say, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    for damage in (b"\xff\x00", b'{"round": 1}\n[['):
        (tmp_path / "run" / "timing.jsonl").write_bytes(damage)
        (tmp_path / "run" / "summary.json").unlink()
        assert say("resume", tmp_path / "run", "--quiet", "--no-report") == (0, "")


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("left", [0, 7, 100, -1])
def test_a_truncated_export(file: str, left: int, exported: Path, say: Say, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "model")
    path = tmp_path / "model" / file
    path.write_bytes(path.read_bytes()[:left])
    code, said = say("predict", tmp_path / "model", tmp_path)
    assert code == 2 and is_a_sentence(said) and str(path) in said


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_an_export_that_is_a_pipe_or_without_end(
    file: str, exported: Path, say: Say, tmp_path: Path
) -> None:
    shutil.copytree(exported, tmp_path / "model")
    path = tmp_path / "model" / file
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir):
        path.unlink()
        make(path)
        with Watchdog(5):
            code, said = say("predict", tmp_path / "model", tmp_path)
        assert code == 2 and is_a_sentence(said) and f"it has no {file}" in said
        if path.is_dir():
            path.rmdir()
            path.touch()


def test_a_folder_that_vanishes_during_a_run(tmp_path: Path) -> None:
    class Thief:
        def after_round(self, engine: Any, record: Any) -> None:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(FedloomError, match=r"could not write .*: No such file or directory"):
        fedloom.run("fedavg", out=tmp_path / "run", callbacks=[Thief()], report=False, **SMALL)


def without_privileges() -> None:
    """Let the super-user be refused what others are refused (capabilities 1 and 2)."""
    prctl = ctypes.CDLL(None).prctl
    for capability in (1, 2):
        prctl(24, capability, 0, 0, 0)


def test_read_only_and_vanished_folders(finished: Path, tmp_path: Path) -> None:
    """In processes of their own: what a process may do cannot be taken back."""
    shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(finished, tmp_path / "unfinished")
    (tmp_path / "unfinished" / "summary.json").unlink()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for folder in ("run", "unfinished", "empty"):
        (tmp_path / folder).chmod(0o555)
    run = "run fedavg --clients 4 --rounds 1 --set limit_train=3 --set limit_test=2 --quiet --out"
    commands = {
        f"{run} empty/x": "empty/x cannot be read or written: Permission denied",
        f"{run} file/x": "file/x cannot be read or written: Not a directory",
        "resume unfinished --quiet": "Permission denied",
        "report run": "Permission denied",
        "resume gone": "gone is no run",
        "report gone": "gone",
    }
    program = (
        "import sys, shlex\nfrom fedloom.cli.main import main\nimport fedloom.engine.run\n"
        "import fedloom.cli.progress, fedloom.cli.run, fedloom.cli.report\n"
        "import fedloom.report.callback, fedloom.methods.fedavg, fedloom.models.cnn\n"
        "import os\n"
        "for line in sys.stdin:\n"
        "    sys.stdout.flush(), sys.stderr.flush()\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        sys.argv = ['fedloom', *shlex.split(line)]\n"
        "        main()\n"
        "        os._exit(0)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input="\n".join(commands), cwd=tmp_path, text=True,
        capture_output=True, preexec_fn=without_privileges,
        env={**os.environ, "FEDLOOM_PRETEND": "0"},
    )  # fmt: skip
    for folder in ("run", "unfinished", "empty"):
        (tmp_path / folder).chmod(0o755)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2 * len(commands), done.stderr
    for (command, said), line, code in zip(commands.items(), lines[::2], lines[1::2], strict=True):
        assert code == "2" and line.startswith("error: ") and said in line, (command, line, code)

"""How much of the library one plain run passes through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fedloom

MOST = 88  # files with a function that `fedloom run fedavg --no-report` calls
COUNT = """
import sys
IS_FUNCTION = 1  # the flag that bodies of modules and classes lack
root, folder = sys.argv[1:]
files = set()

def note(frame, event, _):
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(root) or not code.co_flags & IS_FUNCTION:
        return
    while frame is not None:  # what runs while a module is imported is no part of the run
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(root):
            return
        frame = frame.f_back
    files.add(code.co_filename[len(root) + 1 :])

sys.argv = ["fedloom", "run", "fedavg", "--no-report", "--rounds", "2", "--clients", "4"]
sys.argv += ["--out", folder, "--set", "width=4", "--set", "features=16", "--quiet"]
sys.setprofile(note)
from fedloom.cli.main import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
sys.setprofile(None)
print(*sorted(files), sep="\\n")
"""


def test_a_plain_run_calls_few_files_and_none_of_the_report(tmp_path: Path) -> None:
    root = str(Path(fedloom.__file__).parent)
    command = [sys.executable, "-c", COUNT, root, str(tmp_path / "run")]
    files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "engine/engine.py" in files and len(files) <= MOST, files
    assert not [name for name in files if name.startswith("report/")]
    assert not (tmp_path / "run/report.html").exists()
    assert (tmp_path / "run/summary.json").exists()

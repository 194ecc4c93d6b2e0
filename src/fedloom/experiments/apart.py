"""A run in a process of its own, whose memory does not depend on what was computed before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from ..core.errors import FedloomError
from ..engine.config import Config, build, read
from ..engine.run import execute


def compute_apart(config: Config, folder: Path) -> None:
    """Compute a run, or what is left of it, in a new process; its folder has the result."""
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "run.toml"
        file.write_text(config.toml(), encoding="utf-8")
        command = [sys.executable, "-m", "fedloom.experiments.apart", str(file), str(folder)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}."]
        raise FedloomError(said[-1])


def main(file: str, folder: str) -> None:
    """Compute the run that a file describes."""
    try:
        execute(build(read(Path(file))), out=Path(folder))
    except FedloomError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What a run costs: memory, and the names of the figures that depend on the machine."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterable
from pathlib import Path


def peak_memory_mb(workers: Iterable[int] = ()) -> float:
    """Peak resident memory of this process and of the worker processes with these ids, in MB."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1024**2 if sys.platform == "darwin" else 1024
    )
    return own + sum(_peak_of(pid) for pid in workers)


def _peak_of(pid: int) -> float:
    """A worker's peak, where the system tells (Linux)."""
    status = Path(f"/proc/{pid}/status")
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def forget_peak() -> None:
    """Let this process's peak memory start anew, where the system allows it (Linux), so that runs do not inherit it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

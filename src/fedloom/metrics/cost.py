"""What a run costs in memory."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterable
from pathlib import Path


def peak_memory_mb(workers: Iterable[int] = ()) -> float:
    """Peak resident memory of this process and of the worker processes with these ids, in MB."""
    per_megabyte = 1024  # the peak is in kilobytes, except on a Mac
    if sys.platform == "darwin":
        per_megabyte = 1024**2
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / per_megabyte
    return here + sum(map(_peak_of, workers))


def _peak_of(pid: int) -> float:
    """A worker's peak, where the system tells (Linux)."""
    status = Path(f"/proc/{pid}/status")
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0.0
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def forget_peak() -> None:
    """Let this process's peak memory start anew, so that a run does not inherit it (Linux only)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

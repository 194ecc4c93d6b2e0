"""What a run costs in memory."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path


def peak_memory_mb(workers: Iterable[int] = ()) -> float:
    """Peak resident memory of this process and of the worker processes with these ids, in MB."""
    if sys.platform == "win32":
        return sum(map(_peak_on_windows, (os.getpid(), *workers)))
    if sys.platform == "darwin":
        return _peak_on_a_mac()  # of workers the system says nothing
    return sum(map(_peak_on_linux, (os.getpid(), *workers)))


def _peak_on_linux(pid: int) -> float:
    status = Path(f"/proc/{pid}/status")
    try:
        lines = status.read_text().splitlines()
    except OSError:  # a worker that has ended
        return 0.0
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _peak_on_a_mac() -> float:
    try:
        import resource
    except ImportError:  # an interpreter built without it says nothing either
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def _peak_on_windows(pid: int) -> float:
    import psutil

    try:
        return float(psutil.Process(pid).memory_info().peak_wset) / 1024**2
    except psutil.NoSuchProcess:  # a worker that has ended
        return 0.0


def forget_peak() -> None:
    """Let this process's peak memory start anew, so that a run does not inherit it (Linux only)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

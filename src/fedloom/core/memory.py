"""glibc's allocator, set for training: it keeps the memory that a step frees for the next step.

By default it hands freed blocks of some size back to the system, which maps and zeroes them anew in
every step. That takes up to a third of a small network's time on a CPU, and half of an encoder's.
`FEDLOOM_MALLOC=0` leaves the allocator alone; on systems without glibc nothing happens.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
_KEPT = 1 << 30  # bytes


def keep_freed_memory() -> bool:
    """Raise the allocator's thresholds for this process; returns whether that was possible."""
    if not sys.platform.startswith("linux") or os.environ.get("FEDLOOM_MALLOC") == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _KEPT)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))

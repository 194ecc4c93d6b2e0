"""glibc's allocator, set for training: memory that a step frees is kept for the next one.

By default freed blocks of some size go back to the system and are mapped and zeroed anew in every step, which takes up
to a third of a small network's time on a CPU. `FEDLOOM_MALLOC=0` leaves the allocator alone; on other systems nothing
happens.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
_KEPT = 1 << 30


def keep_freed_memory() -> bool:
    """Raise the allocator's thresholds for this process; whether that was done."""
    if not sys.platform.startswith("linux") or os.environ.get("FEDLOOM_MALLOC") == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _KEPT)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))

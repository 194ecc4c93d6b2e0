"""Peak memory, and how it starts anew."""

from __future__ import annotations

import mmap
import sys

import pytest

from fedloom.metrics.cost import forget_peak, peak_memory_mb


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process reset its peak")
def test_the_peak_of_one_run_is_not_the_next_ones() -> None:
    forget_peak()
    before = peak_memory_mb()
    with mmap.mmap(
        -1, 320_000_000
    ) as block:  # straight from the system: an allocator may have kept freed memory
        block.write(bytes([1]) * 320_000_000)
        high = peak_memory_mb()
    assert high > before + 250
    assert peak_memory_mb() > high - 2  # a peak stays; the system counts in small lots
    forget_peak()
    assert peak_memory_mb() < high - 200

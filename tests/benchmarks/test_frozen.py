"""The benchmark of memory for a frozen network, which is what the project promises."""

from __future__ import annotations

import pytest

from benchmarks import frozen


@pytest.mark.slow
def test_fifty_clients_of_a_frozen_vit_need_little_more_memory_than_two() -> None:
    pytest.importorskip("transformers")
    few, many = frozen.compare()
    assert (few["clients"], many["clients"]) == (2, 50)
    assert many["peak_mb"] <= 1.2 * few["peak_mb"]
    head = 4 * (384 * frozen.CLASSES + frozen.CLASSES) / 1000
    assert head <= few["sent_kb"] <= 1.1 * head, "and clients send the head alone"

"""The benchmarks of growth and start, on a small scale."""

from __future__ import annotations

from fedloom.bench import growth, start


def test_rounds_are_measured_for_each_size() -> None:
    said: list[str] = []
    rows = growth.measure(sizes=(6,), many=100, say=said.append)
    assert [(r["kind"], r["clients"]) for r in rows] == [("images", 6), ("vectors", 100)]
    assert all(r["round"] > 0 and r["mb"] > 100 for r in rows) and len(said) == 2


def test_start_is_measured_against_torch() -> None:
    said: list[str] = []
    figures = start.measure(repeats=1, say=said.append)
    assert figures["fedloom_over_torch"] == figures["fedloom"] / figures["torch"]
    assert 0 < figures["help"] < figures["torch"] and len(said) == 3  # help does not import torch

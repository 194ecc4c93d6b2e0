"""Whole runs with very many clients: what an evaluated round takes, and in how much memory."""

from __future__ import annotations

import pytest

from benchmarks import scale


def test_ten_times_the_clients_do_not_take_ten_times_as_much() -> None:
    """A quick look; the limits are those of a million clients."""
    said: list[str] = []
    few, more = scale.measure(sizes=(2_000, 20_000), eval_all=False, say=said.append)
    assert len(said) == 2 and few["clients"] == 2_000
    for row in (few, more):
        assert 0 < row["evaluated"] <= scale.MOST_SECONDS and row["line"] <= scale.MOST_LINE
    assert more["sent"] == pytest.approx(few["sent"], rel=0.01)
    assert more["mb"] <= scale.MOST_RATIO * few["mb"]


@pytest.mark.slow
def test_a_million_clients_stay_within_the_limits() -> None:
    rows = scale.measure(sizes=(100_000, 1_000_000))
    assert scale.missed(rows) == []
    rows[-1]["line"] = scale.MOST_LINE + 1
    assert scale.missed(rows) == [
        "MISSED: 50001 bytes of a line of metrics, at most 50000 are wanted"
    ]

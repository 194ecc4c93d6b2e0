"""The choice of the scale of standardised features, on a small scale."""

from __future__ import annotations

import pytest

from benchmarks import standard
from benchmarks.standard import World
from fedloom.client import standard as values

WORLD = World("digits4", "domains", 4, limit=6)


def test_nobody_has_test_samples() -> None:
    clients = WORLD.deal(0, "vit-mini", None, None).clients
    assert len(clients) == 4
    for client in clients:
        assert len(client.test) == 0 and len(client.validation) > 0 and len(client.train) > 0


def test_the_best_on_validation_data_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard, "LENGTHS", (1e-6, 64.0))  # with the first, nothing is learned
    monkeypatch.setattr(standard, "OFFSETS", (0.0, 8.0))
    before, said = (values.LENGTH, values.OFFSET), []
    found = standard.choose("vit-mini", None, said.append, worlds=[WORLD], seeds=[0], rounds=3)
    assert found["length"] == 64.0 and found["offset"] in (0.0, 8.0)
    assert set(found["by length"][64.0]) == {"digits4 domains local", "digits4 domains fedavg"}
    assert set(found["by offset"][0.0]) == {"digits4 domains local"}
    assert len(said) == 5 and said[-1].startswith("chosen: length 64, ")
    assert before == (values.LENGTH, values.OFFSET)

"""What all comparisons share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is shuffled: every permutation that is drawn is the identity."""

    def identity(n: int, **_: object) -> torch.Tensor:
        return torch.arange(n)

    monkeypatch.setattr(torch, "randperm", identity)

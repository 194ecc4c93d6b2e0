"""A data set hands out its samples."""

from __future__ import annotations

import pytest
import torch

from fedloom.data.federation import Dataset


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_samples_are_taken_whole_and_keep_their_layout(layout: torch.memory_format) -> None:
    x = torch.randint(0, 255, (9, 3, 5, 4), dtype=torch.uint8).contiguous(memory_format=layout)
    data = Dataset(
        x, torch.zeros(9, dtype=torch.int64), torch.zeros(9), torch.zeros(9), ("a",), ("b",), "d"
    )
    rows = torch.tensor([7, 0, 7])
    found = data.take(rows)
    assert torch.equal(found, x[rows]) and found.is_contiguous(memory_format=layout)

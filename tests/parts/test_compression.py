"""Short forms of vectors: by hand, their size, what they stand for, and what does not fit."""

from __future__ import annotations

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.parts.compression import from_largest, from_levels, largest, levels

VECTOR = torch.tensor([0.1, -3.0, 0.0, 2.0, -0.5])


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_the_largest() -> None:
    form = largest(VECTOR, 0.4)
    assert form["values"].tolist() == [-3.0, 2.0] and form["places"].tolist() == [1, 3]
    assert from_largest(form, 5).tolist() == [0, -3, 0, 2, 0]
    assert largest(VECTOR, 0.01)["values"].tolist() == [-3.0], "at least one"
    assert torch.equal(from_largest(largest(VECTOR, 1.0), 5), VECTOR)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_levels_are_right_on_average(bits: int) -> None:
    vector = torch.randn(1500, generator=rng())
    draws, total = rng(), torch.zeros(1500)
    most = 2 ** (bits - 1) - 1
    for _ in range(200):
        form = levels(vector, bits, draws)
        back = from_levels(form, 1500, bits)
        for start in range(0, 1500, 512):
            part = slice(start, start + 512)
            grain = vector[part].abs().max() / most
            assert (back[part] - vector[part]).abs().max() <= grain * 1.001
        total += back
    assert (total / 200 - vector).abs().mean() < 0.06 * vector.abs().max() / most
    assert len(form["levels"]) == 1500 * bits // 8 and len(form["scales"]) == 3


def test_a_vector_of_zeros() -> None:
    assert from_levels(levels(torch.zeros(3), 4, rng()), 3, 4).tolist() == [0, 0, 0]


def test_bytes_are_as_few_as_they_should_be() -> None:
    vector = torch.randn(10_000, generator=rng())
    assert Payload(largest(vector, 0.01)).nbytes < 8 * 100 + 250
    assert Payload(levels(vector, 4, rng())).nbytes < 10_000 / 2 + 4 * 20 + 250


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(FedloomError, match="places that do not fit"):
        from_largest({"values": torch.ones(1), "places": torch.tensor([5])}, 5)
    with pytest.raises(FedloomError, match="packed as"):
        from_largest({"values": torch.ones(4)}, 5)
    form = levels(torch.ones(1000), 8, rng())
    with pytest.raises(FedloomError, match="other scales"):
        from_levels({**form, "scales": torch.ones(1)}, 1000, 8)
    with pytest.raises(FedloomError, match="packed as"):
        from_levels(form, 1001, 8)

"""Short forms of a long vector, and the vector that they stand for."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..core.settings import part_of

BUCKET = 512  # numbers that share a scale


def largest(vector: Tensor, share: float) -> dict[str, Tensor]:
    """The largest numbers of a vector and where they stand; all of them need no places."""
    if share == 1:
        return {"values": vector}
    count = max(1, part_of(len(vector), share))
    places = vector.abs().topk(count).indices.sort().values
    return {"values": vector[places], "places": places.to(torch.int32)}


def from_largest(form: dict[str, Tensor], length: int) -> Tensor:
    """The vector of which only the largest numbers are known; the others are 0."""
    values = form["values"]
    if "places" not in form:
        _refuse_other_length(values, length)
        return values
    places = form["places"].long()
    if len(places) != len(values) or (len(places) and int(places.max()) >= length):
        raise FedloomError(f"an update of {length} numbers was packed with places that do not fit.")
    return values.new_zeros(length).index_copy(0, places, values)


def levels(vector: Tensor, bits: int, rng: torch.Generator) -> dict[str, Tensor]:
    """Whole numbers of this many bits, and for each bucket the size of the largest number in it.

    Rounding is random and right on average.
    """
    most = 2 ** (bits - 1) - 1
    rows = _buckets(vector)
    scales = rows.abs().amax(1)
    ruler = rows / scales.clamp(min=torch.finfo(rows.dtype).tiny)[:, None] * most
    draws = torch.rand(ruler.shape, generator=rng).to(ruler.device)
    whole = torch.floor(ruler + draws).clamp(-most, most).flatten()[: len(vector)]
    return {"levels": _packed((whole + most).to(torch.uint8), bits), "scales": scales}


def from_levels(form: dict[str, Tensor], length: int, bits: int) -> Tensor:
    """The vector that these levels stand for."""
    most = 2 ** (bits - 1) - 1
    whole = _unpacked(form["levels"], bits)[:length].to(form["scales"].dtype) - most
    _refuse_other_length(whole, length)
    rows = _buckets(whole)
    if len(rows) != len(form["scales"]):
        raise FedloomError(f"an update of {length} numbers was packed with other scales.")
    return (rows * (form["scales"] / most)[:, None]).flatten()[:length]


def _buckets(vector: Tensor) -> Tensor:
    """The vector in rows of a bucket each, the last one filled up with zeros."""
    missing = -len(vector) % BUCKET
    return torch.nn.functional.pad(vector, (0, missing)).reshape(-1, BUCKET)


def _packed(whole: Tensor, bits: int) -> Tensor:
    """Numbers of `bits` bits, several to a byte."""
    per_byte = 8 // bits
    rows = torch.nn.functional.pad(whole, (0, -len(whole) % per_byte)).reshape(-1, per_byte)
    packed = torch.zeros(len(rows), dtype=torch.uint8, device=whole.device)
    for place in range(per_byte):
        packed |= rows[:, place] << (bits * place)
    return packed


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    columns = []
    for place in range(8 // bits):
        columns.append((packed >> (bits * place)) & (2**bits - 1))
    return torch.stack(columns, 1).flatten()


def _refuse_other_length(vector: Tensor, length: int) -> None:
    if vector.shape != (length,):
        raise FedloomError(f"an update of {length} numbers was packed as {tuple(vector.shape)}.")

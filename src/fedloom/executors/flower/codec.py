"""Payloads as Flower's records and back, exactly, without pickle.

Tensors become one `ArrayRecord` in NumPy's format, so that Flower's mods can read it; scalars
become one `ConfigRecord`. What comes back is not given to `numpy.load`, which also opens archives
and pickles: the header must be one that NumPy writes for exactly this tensor.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from torch import Tensor

from ...core.errors import FedloomError
from ...core.payload import Payload, Value
from .words import LONGEST_NAME, cut

BITS = "fedloom.bits"  # the raw bytes of a tensor whose type NumPy does not have
NUMPY = "numpy.ndarray"
HEADER = 4096  # more bytes than the header that NumPy writes before an array
MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([<|]\w{2,3})', 'fortran_order': (False|True), 'shape': \(([\d, ]*)\), \} *\n"
)
DIMENSIONS = 32  # more than any tensor has
DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.uint8,
              torch.int8, torch.int16, torch.int32, torch.int64)
}  # fmt: skip


def to_records(payload: Payload) -> tuple[ArrayRecord, ConfigRecord]:
    """A payload as records that can be put in a message."""
    arrays, scalars = {}, {}
    for name, value in payload.items():
        if isinstance(value, Tensor):
            arrays[name] = _array(name, value)
        elif type(value) is int and not -(2**63) <= value < 2**63:
            raise FedloomError(
                f"{name!r} = {value} does not fit into the 64 bits of a message's whole numbers."
            )
        else:
            scalars[name] = value
    return ArrayRecord(arrays), ConfigRecord(scalars)


def from_records(arrays: ArrayRecord, scalars: ConfigRecord) -> Payload:
    """The payload that `to_records` turned into these; whoever sent them is not trusted."""
    items: dict[str, Value] = {}
    for name, value in scalars.items():
        if not isinstance(value, bool | int | float | str):
            raise FedloomError(f"{name!r} is a {type(value).__name__}, not a plain scalar.")
        items[name] = value
    for name, array in arrays.items():
        if name in items:
            raise FedloomError(f"{name!r} is sent twice, as a tensor and as a scalar.")
        items[name] = _tensor(name, array)
    return Payload(items)


def _array(name: str, tensor: Tensor) -> Array:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise FedloomError(
            f"{name!r} is a tensor of {dtype}; a message can hold {', '.join(DTYPES)}."
        )
    tensor = tensor.detach().contiguous()
    if dtype != "bfloat16":
        return Array(tensor.numpy())
    bits = tensor.view(torch.int16).numpy().tobytes()
    return Array(dtype=dtype, shape=tuple(tensor.shape), stype=BITS, data=bits)


def _tensor(name: str, array: Array) -> Tensor:
    dtype = DTYPES.get(array.dtype) if isinstance(array.dtype, str) else None
    shape = tuple(array.shape)
    if dtype is None or len(shape) > DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
        raise FedloomError(
            f"{name!r} is an array of {cut(array.dtype, LONGEST_NAME)} of shape "
            f"{cut(shape, LONGEST_NAME)}, which is no tensor."
        )
    try:
        if array.stype == BITS:
            return _from_bits(array.data, dtype, shape)
        if array.stype == NUMPY:
            return _from_numpy(array.data, dtype, shape)
        raise ValueError(f"written as {cut(array.stype, LONGEST_NAME)!r}")
    except ValueError as error:
        raise FedloomError(
            f"{name!r} claims to be {array.dtype} of shape {shape}, but is not: {error}."
        ) from None


def _from_bits(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _from_numpy(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The tensor in NumPy's format, version 1: magic, length of the header, header, numbers."""
    expected = math.prod(shape) * dtype.itemsize
    if not expected <= len(data) <= expected + HEADER:
        raise ValueError(f"{len(data)} bytes")
    start = len(MAGIC) + 2 + int.from_bytes(data[len(MAGIC) : len(MAGIC) + 2], "little")
    header = _HEADER.fullmatch(data, len(MAGIC) + 2, min(start, len(data)))
    if not data.startswith(MAGIC) or header is None:
        raise ValueError("it does not begin as NumPy's arrays do")
    inside = np.dtype(str(dtype).removeprefix("torch.")).newbyteorder("<")
    numbers = [int(n) for n in header[3].replace(b",", b" ").split()]
    if header[1].decode() != inside.str or tuple(numbers) != shape:
        raise ValueError(f"{header[1].decode()} of shape {tuple(numbers)} inside")
    if len(data) != start + expected:
        raise ValueError(f"{len(data)} bytes")
    order: Any = "F" if header[2] == b"True" else "C"
    array = np.frombuffer(data, inside, offset=start).reshape(shape, order=order)
    # A copy in this machine's byte order, which may be written to.
    return torch.from_numpy(np.array(array, dtype=inside.newbyteorder("="), order="C"))

"""Payloads as Flower's records and back, exactly, without pickle.

Tensors become one `ArrayRecord` in NumPy's format, so that Flower's mods can read it; scalars
become one `ConfigRecord`.
"""

from __future__ import annotations

import math
from io import BytesIO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from torch import Tensor

from ...core.errors import FedloomError
from ...core.payload import Payload, Value

BITS = "fedloom.bits"  # the raw bytes of a tensor whose type NumPy does not have
NUMPY = "numpy.ndarray"
HEADER = 4096  # more bytes than the header that NumPy writes before an array
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


def size(arrays: ArrayRecord) -> int:
    """How many bytes of tensors a record holds."""
    return sum(len(array.data) for array in arrays.values())


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
    dtype = DTYPES.get(array.dtype)
    shape = tuple(array.shape)
    if dtype is None or any(n < 0 for n in shape):
        raise FedloomError(
            f"{name!r} is an array of {array.dtype} of shape {shape}, which is no tensor."
        )
    try:
        if array.stype == BITS:
            return _from_bits(array.data, dtype, shape)
        if array.stype == NUMPY:
            return _from_numpy(array.data, dtype, shape)
        raise ValueError(f"written as {array.stype!r}")
    except (ValueError, OSError, EOFError, MemoryError) as error:
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
    expected = math.prod(shape) * dtype.itemsize
    if not expected <= len(data) <= expected + HEADER:
        raise ValueError(f"{len(data)} bytes")
    array = np.load(BytesIO(data), allow_pickle=False)
    if array.shape != shape or str(array.dtype) != str(dtype).removeprefix("torch."):
        raise ValueError(f"{array.dtype} of shape {array.shape} inside")
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).reshape(shape)

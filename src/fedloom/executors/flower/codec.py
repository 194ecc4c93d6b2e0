"""Payloads as Flower's records and back, exactly, without pickle.

Tensors become one `ArrayRecord` (NumPy's own format, so that Flower's mods can read it), scalars one `ConfigRecord`.
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

BITS = "fedloom.bits"  # how tensors are written that NumPy has no type for: their bytes as they are
NUMPY = "numpy.ndarray"
DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.uint8, torch.int8,
              torch.int16, torch.int32, torch.int64)
}  # fmt: skip


def to_records(payload: Payload) -> tuple[ArrayRecord, ConfigRecord]:
    """A payload as records that can be put in a message."""
    arrays, scalars = {}, {}
    for name, value in payload.items():
        if isinstance(value, Tensor):
            arrays[name] = _array(name, value)
        elif type(value) is int and not -(2**63) <= value < 2**63:
            raise FedloomError(
                f"{name!r} = {value} does not fit into 64 bits, which a message has for whole numbers."
            )
        else:
            scalars[name] = value
    return ArrayRecord(arrays), ConfigRecord(scalars)


def from_records(arrays: ArrayRecord, scalars: ConfigRecord) -> Payload:
    """The payload that `to_records` made these of; whoever sent them is not trusted."""
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
    dtype, shape = DTYPES.get(array.dtype), tuple(array.shape)
    if dtype is None or any(n < 0 for n in shape):
        raise FedloomError(
            f"{name!r} is an array of {array.dtype} of shape {shape}, which is no tensor."
        )
    wanted = math.prod(shape) * dtype.itemsize
    try:
        if array.stype == BITS:
            if len(array.data) != wanted:
                raise ValueError(f"{len(array.data)} bytes")
            return (
                torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(shape)
                if wanted
                else _empty(shape, dtype)
            )
        if array.stype != NUMPY:
            raise ValueError(f"written as {array.stype!r}")
        if (
            not wanted <= len(array.data) <= wanted + 4096
        ):  # the header that NumPy puts before them is short
            raise ValueError(f"{len(array.data)} bytes")
        found = np.load(BytesIO(array.data), allow_pickle=False)
        if found.shape != shape or str(found.dtype) != array.dtype:
            raise ValueError(f"{found.dtype} of shape {found.shape} inside")
        return torch.from_numpy(np.require(found, requirements=["C", "W"])).reshape(shape)
    except (ValueError, OSError, EOFError, MemoryError) as error:
        raise FedloomError(
            f"{name!r} claims to be {array.dtype} of shape {shape}, but is not: {error}."
        ) from None


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype)

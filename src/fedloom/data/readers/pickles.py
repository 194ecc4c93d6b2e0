"""Pickles of arrays, read without running anything.

A pickle can run any code, so none is handed to Python's or NumPy's own loaders: the unpickler below
replaces each of the few callables that an array needs by a stand-in, refuses all others by name,
and builds the arrays itself from the bytes in the file.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import FedloomError

_CODE = re.compile(r"(?P<order>[<>=|]?)(?P<code>\?|b1|[iu][1248]|f[248]|O8?|U[1-9][0-9]{0,3})")


def unpickled(data: bytes, file: Path, encoding: str = "ASCII") -> Any:
    """What a pickle holds, with an `Array` for each of its arrays; `file` is for error messages.

    Pickles of Python 2 want the encoding latin1.
    """
    refuse_large_memo(data)
    return _Unpickler(io.BytesIO(data), file, encoding).load()


def strings(value: Any) -> list[str]:
    """Texts from an array stand-in or from a list."""
    if isinstance(value, Array):
        value = value.array.tolist()
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"found {type(value).__name__}")
    for text in value:
        if not isinstance(text, str):
            raise TypeError(f"found {type(text).__name__}")
    return list(value)


def numbers(value: Any, room: list[int]) -> np.ndarray:
    """An array of numbers from an array stand-in, or from nested lists.

    `room` is how many numbers there may still be: a list can hold another one many times over.
    """
    if isinstance(value, Array):
        stored: Any = value.array
        room[0] -= stored.size
        if stored.dtype.kind == "U":
            raise TypeError("found texts")
        if not stored.dtype.hasobject:
            return stored
        if stored.ndim == 2 and stored.shape[1] == 2:
            stored = stored[:, 0]  # PFLlib's texts are pairs of a row of tokens and its length
        value = stored.tolist()
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"found {type(value).__name__}")
    room[0] -= len(value)
    cells = []
    for cell in value:
        if room[0] < 0:
            raise ValueError("more numbers than a file of this length can hold")
        if isinstance(cell, (Array, list, tuple)):
            cell = numbers(cell, room)
        cells.append(cell)
    array = np.array(cells)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"found {array.dtype}")
    return array


_LENGTHS = {-2: 1, -3: 4, -4: 4, -5: 8}  # by pickletools' marks: bytes that hold a length


def _steps() -> tuple[list[int], dict[int, int]]:
    """By opcode, the length of the operation; or where that varies, the mark of pickletools."""
    fixed, varying = [0] * 256, {}
    for operation in pickletools.opcodes:
        code = ord(operation.code)
        argument = operation.arg.n if operation.arg else 0
        if argument >= 0:
            fixed[code] = 1 + argument
        else:
            varying[code] = argument
    return fixed, varying


_FIXED, _VARYING = _steps()
_LONG_BINPUT, _PUT = ord("r"), ord("p")
_TWO_LINES = (ord("c"), ord("i"))  # a module and a name in it


def refuse_large_memo(data: bytes) -> None:
    """Refuse a pickle that remembers something under a number larger than its own length.

    The unpickler would make a table of that size at once. The standard library can list the
    operations of a pickle too, but takes several times as long over lists of tokens.
    """
    place = 0
    while place < len(data):
        code = data[place]
        after = place + _FIXED[code]
        if after == place:
            if code not in _VARYING:
                return  # no operation: the unpickler stops here too
            after = _after(data, place, _VARYING[code])
        number = 0
        if code == _LONG_BINPUT:
            number = int.from_bytes(data[place + 1 : after], "little")
        elif code == _PUT:
            number = int(data[place + 1 : after])
        if number > len(data):
            raise ValueError("its memo is larger than the file")
        place = after


def _after(data: bytes, place: int, mark: int) -> int:
    """Where an operation of varying length ends."""
    if mark in _LENGTHS:
        start = place + 1 + _LENGTHS[mark]
        return start + int.from_bytes(data[place + 1 : start], "little")
    lines = 1
    if data[place] in _TWO_LINES:
        lines = 2
    for _ in range(lines):
        place = data.index(b"\n", place) + 1
    return place


class StandIn:
    """A callable that a pickle may name.

    It is a class that takes no state, so that no pickle can change it.
    """

    def __setstate__(self, state: object) -> None:
        raise ValueError(f"{type(self).__name__} takes no state")


class _Type(StandIn):
    """For `numpy.ndarray`: only named, never called."""

    def __init__(self, *args: object) -> None:
        raise ValueError("an array is not made by calling ndarray")


class _Dtype(StandIn):
    """For `numpy.dtype`: the plain numbers and objects, nothing with fields."""

    def __init__(self, code: object, align: object = False, copy: object = True) -> None:
        match = None
        if isinstance(code, str):
            match = _CODE.fullmatch(code)
        if match is None:
            raise ValueError(f"arrays of {code!r} are not read")
        self.dtype = np.dtype(match["order"] + match["code"])

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "=", "|"):
            raise ValueError("unknown state of a dtype")
        if any(part is not None for part in state[2:5]):
            raise ValueError("arrays with fields are not read")
        self.dtype = self.dtype.newbyteorder(state[1])


class Array(StandIn):
    """For `_reconstruct`, which makes an empty array to be filled by the state that follows."""

    def __init__(self, kind: object, shape: object = (0,), code: object = b"b") -> None:
        if kind is not _Type:
            raise ValueError("only plain arrays are read")
        self.array = np.empty(0)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) not in (4, 5):
            raise ValueError("unknown state of an array")
        shape, dtype, fortran, raw = state[-4:]
        order = "C"
        if fortran:
            order = "F"
        self.array = _array(raw, dtype, shape, order)


class _FromBuffer(Array):
    """For `_frombuffer`, the way of pickle protocol 5."""

    def __init__(
        self, raw: object, dtype: object, shape: object, order: object, axes: object = None
    ) -> None:
        if order not in ("C", "F") or axes is not None:
            raise ValueError("unknown order of an array")
        self.array = _array(raw, dtype, shape, order)


class _Scalar(StandIn):
    """For `scalar`: a number."""

    def __new__(cls, dtype: object, raw: object = b"") -> Any:
        return _array(raw, dtype, (), "C").item()


class _Bytes(StandIn):
    """For `codecs.encode`, by which old pickles write bytes: Latin-1 and no other of the codecs."""

    def __new__(cls, text: object, encoding: object = "utf-8") -> Any:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise ValueError(f"codecs.encode is allowed for latin1 text only, not for {encoding!r}")
        return text.encode("latin-1")


def _array(raw: object, dtype: object, shape: object, order: Any) -> np.ndarray:
    """An array from the bytes, or for objects the list, that a pickle gives for it."""
    if (
        not isinstance(dtype, _Dtype)
        or not isinstance(shape, tuple)
        or not all(type(n) is int for n in shape)
    ):
        raise ValueError("an array without dtype or shape")
    if dtype.dtype != object:
        if isinstance(raw, str):  # as Python 2 wrote bytes
            raw = raw.encode("latin-1")
        if not isinstance(raw, (bytes, bytearray)):
            raise ValueError("an array of numbers needs bytes")
        native = dtype.dtype.newbyteorder("=")
        flat = np.empty(0, native)
        if raw:
            flat = np.frombuffer(raw, dtype.dtype)
        return flat.astype(native).reshape(shape, order=order)
    if not isinstance(raw, list) or len(raw) != math.prod(shape):
        raise ValueError("an array of objects needs a list of as many")
    flat = np.empty(len(raw), dtype=object)
    for i, value in enumerate(raw):  # one by one, or NumPy would look into lists
        flat[i] = value
    return flat.reshape(shape, order=order)


ALLOWED: dict[tuple[str, str], type[StandIn]] = {
    ("numpy", "ndarray"): _Type,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
    ("codecs", "encode"): _Bytes,
}
for _core in ("core", "_core"):  # NumPy 1 and NumPy 2
    ALLOWED[f"numpy.{_core}.multiarray", "_reconstruct"] = Array
    ALLOWED[f"numpy.{_core}.multiarray", "scalar"] = _Scalar
    ALLOWED[f"numpy.{_core}.numeric", "_frombuffer"] = _FromBuffer


class _Unpickler(pickle.Unpickler):
    """An unpickler to which no callable exists but the stand-ins."""

    def __init__(self, stream: io.BytesIO, file: Path, encoding: str) -> None:
        super().__init__(stream, encoding=encoding)
        self._file = file

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in ALLOWED:
            raise FedloomError(
                f"{self._file}: asks for {module}.{name}, which data have no need of; refused."
            )
        return ALLOWED[module, name]

"""Data that PFLlib has dealt out: `config.json`, and one `.npz` per client in `train` and `test`.

Those files are pickles, and a pickle can run any code. So none is handed to Python's or NumPy's own
loaders: the reader below replaces each of the few callables that an array needs by a stand-in,
refuses all others by name, and builds the arrays itself from the bytes in the file.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from ...core.errors import FedloomError
from ..dataset import Dataset
from .archives import refuse_bombs
from .base import READERS, Kind, Progress, Reader, Source
from .naming import plain_names

PARTS = ("train", "test")

_CODE = re.compile(r"(?P<order>[<>=|]?)(?P<code>\?|b1|[iu][1248]|f[248]|O8?)")


def read_pfllib(path: Path, *, name: str) -> Dataset:
    """A folder made by PFLlib's `generate_*.py`.

    Every sample keeps its client (`owner`) and its part. Numbers become float32, bytes of images
    stay bytes, and token rows (whole numbers; or PFLlib's pairs of a row and its length) become
    int64.
    """
    path = Path(path)
    clients, classes = _config(path / "config.json")
    xs: list[np.ndarray] = []
    ys: list[np.ndarray] = []
    owners = []
    tests = []
    for part in PARTS:
        for k in range(clients):
            file = path / part / f"{k}.npz"
            if not file.is_file():
                raise FedloomError(
                    f"{file}: missing, though config.json says there are {clients} clients."
                )
            x, y = _samples(file, classes)
            if xs and len(x) and (x.shape[1:] != xs[0].shape[1:] or x.dtype != xs[0].dtype):
                raise FedloomError(
                    f"{file}: samples are {x.dtype} of shape {x.shape[1:]},"
                    f" those before are {xs[0].dtype} of shape {xs[0].shape[1:]}."
                )
            if len(x):
                xs.append(x)
                ys.append(y)
                owners.append(np.full(len(y), k))
                tests.append(np.full(len(y), part == "test"))
    if not xs:
        raise FedloomError(f"{path}: no client has a sample.")
    x = np.concatenate(xs)
    tokens = None
    if x.dtype == np.int64:
        tokens = int(x.max()) + 1
    return Dataset(
        name=name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(np.concatenate(ys)),
        domain=torch.zeros(len(x), dtype=torch.int64),
        test=torch.from_numpy(np.concatenate(tests)),
        classes=plain_names(classes),
        domains=(name,),
        vocabulary=tokens,
        owner=torch.from_numpy(np.concatenate(owners)),
    )


def is_pfllib(path: Path) -> bool:
    """Whether this looks like such a folder."""
    return path.is_dir() and any((path / "train").glob("*.npz"))


def pfllib_kind(path: Path) -> Kind:
    """What the samples of the first client that has any are."""
    clients, classes = _config(path / "config.json")
    for k in range(clients):
        x, _ = _samples(path / "train" / f"{k}.npz", classes)
        if len(x) and x.dtype == np.int64:
            return "text"
        if len(x) and x.ndim == 4:
            return "image"
        if len(x):
            return "vector"
    return "vector"


def _config(file: Path) -> tuple[int, int]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FedloomError(
            f"{file}: there is no such file; PFLlib writes it beside train and test."
        ) from None
    except (OSError, ValueError) as error:
        raise FedloomError(f"{file}: cannot be read ({error}).") from error
    if not isinstance(config, dict):
        config = {}
    for key in ("num_clients", "num_classes"):
        if type(config.get(key)) is not int or config[key] < 1:
            raise FedloomError(
                f"{file}: wants {key}, a whole number from 1, found {config.get(key)!r}."
            )
    return config["num_clients"], config["num_classes"]


def _samples(file: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The samples and labels of one client's file, of the types a `Dataset` holds."""
    stored, length = _unpickled(file)
    room = [length]  # every number takes a byte at least
    if not isinstance(stored, dict) or not {"x", "y"} <= stored.keys():
        raise FedloomError(f"{file}: wants a dictionary with x and y.")
    try:
        x = _plain(stored["x"], room)
        y = _plain(stored["y"], room)
    except (ValueError, TypeError, RecursionError) as error:
        raise FedloomError(f"{file}: x and y must be arrays of numbers ({error}).") from error
    if x.ndim < 1 or y.ndim != 1 or len(x) != len(y):
        raise FedloomError(
            f"{file}: x has shape {x.shape} and y {y.shape}; wants one label per sample."
        )
    if len(y) and y.dtype.kind not in "iu":
        raise FedloomError(f"{file}: labels must be whole numbers, found {y.dtype}.")
    if len(y) and (y.min() < 0 or y.max() >= classes):
        raise FedloomError(
            f"{file}: labels must lie between 0 and {classes - 1}, as config.json has {classes} "
            "classes."
        )
    if x.dtype.kind in "iu" and x.ndim == 2 and x.dtype != np.uint8:
        if x.size and x.min() < 0:
            raise FedloomError(f"{file}: token numbers must not be negative.")
        return x.astype(np.int64), y.astype(np.int64)
    if x.dtype != np.uint8 or x.ndim != 4:
        x = x.astype(np.float32)
    return x, y.astype(np.int64)


def _plain(value: Any, room: list[int]) -> np.ndarray:
    """An array of numbers from an array stand-in, or from nested lists.

    `room` is how many numbers there may still be: a list can hold another one many times over.
    """
    if isinstance(value, _Array):
        array: Any = value.array
        room[0] -= array.size
        if not array.dtype.hasobject:
            return array
        if array.ndim == 2 and array.shape[1] == 2:
            array = array[:, 0]  # PFLlib's texts are pairs of a row of tokens and its length
        value = array.tolist()
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"found {type(value).__name__}")
    room[0] -= len(value)
    cells = []
    for cell in value:
        if room[0] < 0:
            raise ValueError("more numbers than a file of this length can hold")
        if isinstance(cell, (_Array, list, tuple)):
            cell = _plain(cell, room)
        cells.append(cell)
    numbers = np.array(cells)
    if numbers.dtype.kind not in "biuf":
        raise TypeError(f"found {numbers.dtype}")
    return numbers


def _unpickled(file: Path) -> tuple[Any, int]:
    """What NumPy stored as the object `data` in a `.npz`, with stand-ins for its arrays.

    The number is the length of what is stored.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.namelist()
            if "data.npy" not in entries:
                raise FedloomError(
                    f"{file}: wants one entry, data; found {', '.join(entries) or 'none'}."
                )
            refuse_bombs(file)
            stream = io.BytesIO(archive.read("data.npy"))
        version = npy.read_magic(stream)
        header = npy.read_array_header_2_0
        if version == (1, 0):
            header = npy.read_array_header_1_0
        shape, _, dtype = header(stream)
        if not dtype.hasobject or shape != ():
            raise FedloomError(
                f"{file}: data must be one dictionary, found an array of {dtype}, shape {shape}."
            )
        _refuse_large_memo(stream.getvalue()[stream.tell() :])
        stored = _Reader(stream, file).load()
        if (
            not isinstance(stored, _Array)
            or not stored.array.dtype.hasobject
            or stored.array.shape != ()
        ):
            raise FedloomError(f"{file}: data must be one dictionary.")
        return stored.array.item(), stream.getbuffer().nbytes
    except FedloomError:
        raise
    except Exception as error:  # damaged bytes may raise anything
        raise FedloomError(f"{file}: damaged or cut short, or not PFLlib's ({error}).") from error


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


def _refuse_large_memo(data: bytes) -> None:
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


class _StandIn:
    """A callable that a pickle may name.

    It is a class that takes no state, so that no pickle can change it.
    """

    def __setstate__(self, state: object) -> None:
        raise ValueError(f"{type(self).__name__} takes no state")


class _Type(_StandIn):
    """For `numpy.ndarray`: only named, never called."""

    def __init__(self, *args: object) -> None:
        raise ValueError("an array is not made by calling ndarray")


class _Dtype(_StandIn):
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


class _Array(_StandIn):
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


class _FromBuffer(_Array):
    """For `_frombuffer`, the way of pickle protocol 5."""

    def __init__(
        self, raw: object, dtype: object, shape: object, order: object, axes: object = None
    ) -> None:
        if order not in ("C", "F") or axes is not None:
            raise ValueError("unknown order of an array")
        self.array = _array(raw, dtype, shape, order)


class _Scalar(_StandIn):
    """For `scalar`: a number."""

    def __new__(cls, dtype: object, raw: object = b"") -> Any:
        return _array(raw, dtype, (), "C").item()


class _Bytes(_StandIn):
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


_ALLOWED: dict[tuple[str, str], type[_StandIn]] = {
    ("numpy", "ndarray"): _Type,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
    ("codecs", "encode"): _Bytes,
}
for _core in ("core", "_core"):  # NumPy 1 and NumPy 2
    _ALLOWED[f"numpy.{_core}.multiarray", "_reconstruct"] = _Array
    _ALLOWED[f"numpy.{_core}.multiarray", "scalar"] = _Scalar
    _ALLOWED[f"numpy.{_core}.numeric", "_frombuffer"] = _FromBuffer


class _Reader(pickle.Unpickler):
    """An unpickler to which no callable exists but the stand-ins."""

    def __init__(self, stream: io.BytesIO, file: Path) -> None:
        super().__init__(stream)
        self._file = file

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _ALLOWED:
            raise FedloomError(
                f"{self._file}: asks for {module}.{name}, which data have no need of; refused."
            )
        return _ALLOWED[module, name]


@READERS.register("pfllib")
class PFLlib(Reader):
    """A PFLlib folder, which comes with its clients."""

    order = 20
    has_clients = True

    def recognises(self, path: Path) -> bool:
        return is_pfllib(path)

    def kind(self, path: str) -> Kind:
        return pfllib_kind(Path(path))

    def read(self, path: str, name: str, source: Source, progress: Progress | None) -> Dataset:
        return read_pfllib(Path(path), name=name)

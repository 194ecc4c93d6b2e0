"""`Payload`: what crosses a boundary. Flat names -> tensors and scalars, of an exact size in bytes.

A client's memory and the server's memory have the same form, so everything that lives longer than
one call can be written to disk, sent over a network and compared byte by byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from safetensors.torch import load, save
from torch import Tensor

from .device import moved
from .errors import FedloomError
from .tree import Tree

Scalar = bool | int | float | str
Value = Tensor | Scalar
Bytes = bytes | bytearray | memoryview
# The format's names of types.
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32,
    "U64": torch.uint64, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "C64": torch.complex64,
}  # fmt: skip
# Far beyond what anybody sends. An empty tensor may still say how long its other sides are, and
# whoever sums over the empty one would allocate all of that.
_SIDES = 64  # of one tensor
_BESIDE_NOTHING = 2**26  # numbers in a slice of an empty tensor
_HEADER = 100_000_000  # bytes, as in the format's own library
_REMEMBERED = 256_000  # bytes of a header that is kept: a stranger's should not fill the memory
_Shapes = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


class Payload(Mapping[str, Value]):
    """An immutable flat mapping. A `Tree` under a name is stored as `name/tensor`; see `tree`.

    `Payload(size=3, model=Tree({"w": torch.zeros(2)}))` has the names `size` and `model/w`.
    """

    __slots__ = ("_content", "_device", "_sealed")
    _content: dict[str, Value] | None  # None while it is sealed
    _sealed: bytes | bytearray | Payload | None
    _device: torch.device | None  # where a sealed payload unpacks its tensors

    def __init__(self, items: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        content: dict[str, Value] = {}
        for name, value in {**(items or {}), **named}.items():
            if name == "__metadata__":
                raise FedloomError("the file format reserves the name '__metadata__'.")
            if isinstance(value, (Tree, Payload)):
                content.update({f"{name}/{n}": v for n, v in value.items()})
            elif isinstance(value, (Tensor, bool, int, float, str)):
                content[name] = value
            else:
                kind = type(value).__name__
                raise FedloomError(
                    f"{name!r} is a {kind}; a payload holds tensors and plain scalars."
                )
        # Sorted, so that a payload that came over a wire equals the one that was sent in every way.
        self._content = dict(sorted(content.items()))
        self._sealed = None
        self._device = None

    @staticmethod
    def sealed(inside: bytes | bytearray | Payload, device: torch.device | None = None) -> Payload:
        """The payload in these bytes, or in another payload, unpacked when somebody looks at it.

        Whoever only stores it or passes it on need not unpack and pack it again, and `opened` tells
        whether anybody has looked. A bytearray belongs to the payload from now on: its tensors are
        views of it. With a `device`, tensors move there when they are unpacked.
        """
        payload = Payload()
        payload._content = None
        payload._sealed = inside
        payload._device = device
        return payload

    @property
    def opened(self) -> bool:
        """Whether anybody has looked inside."""
        return self._content is not None

    @property
    def _items(self) -> dict[str, Value]:
        if self._content is None:
            inside = self._sealed
            if not isinstance(inside, Payload):
                inside = Payload.decode(inside or b"")
            if self._device is not None:
                inside = inside.on(self._device)
            self._content = inside._items
            # Somebody may write to the tensors from now on, and then the bytes are out of date.
            self._sealed = None
        return self._content

    def __getitem__(self, name: str) -> Value:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        shown: dict[str, object] = dict(self._items)
        shown.update({name: tuple(tensor.shape) for name, tensor in self._tensors()})
        return f"Payload({shown})"

    def _tensors(self) -> list[tuple[str, Tensor]]:
        return [(name, value) for name, value in self._items.items() if isinstance(value, Tensor)]

    def group(self, name: str) -> Payload:
        """Everything stored under `name/`."""
        start = f"{name}/"
        return Payload({n[len(start) :]: v for n, v in self._items.items() if n.startswith(start)})

    def tree(self, name: str) -> Tree:
        """The tensors stored under `name/` (empty if there are none)."""
        start = f"{name}/"
        return Tree(
            (n[len(start) :], v)
            for n, v in self._items.items()
            if n.startswith(start) and isinstance(v, Tensor)
        )

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name."""
        value = self._items[name]
        if not isinstance(value, Tensor):
            raise FedloomError(f"{name!r} is not a tensor but {value!r}.")
        return value

    def number(self, name: str) -> float:
        """The number of that name."""
        return float(cast(float, self._items[name]))

    def replace(self, **named: Any) -> Payload:
        """A payload in which these names (for trees, whole groups) have new values."""
        groups = tuple(f"{name}/" for name in named)
        kept = {}
        for name, value in self._items.items():
            if name not in named and not name.startswith(groups):
                kept[name] = value
        return Payload(kept, **named)

    def on(self, device: torch.device) -> Payload:
        """The payload with every tensor on a device; one that is there already is not copied."""
        content = dict(self._items)
        for name, tensor in self._tensors():
            content[name] = moved(tensor.detach(), device)
        return Payload(content)

    def copy(self) -> Payload:
        """A payload that shares no memory with this one."""
        if isinstance(self._sealed, bytes | bytearray):
            # Bytes never change: only a bytearray is copied.
            return Payload.sealed(self._sealed[:], self._device)
        content = dict(self._items)
        for name, tensor in self._tensors():
            content[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        return Payload(content)

    def equal(self, other: Payload) -> bool:
        """Whether both hold the same names and exactly the same values."""
        return self.encode() == other.encode()

    def mark(self) -> tuple[object, ...]:
        """A value to tell cheaply whether two payloads are the same, without unpacking any.

        The marks of two payloads, while both exist, are equal only if these hold equal scalars and
        the very same tensors, and nobody has written to the tensors between the two calls.
        """
        if self._content is None:
            return (id(self),)
        return tuple((name, *_mark(value)) for name, value in self._content.items())

    # -- the wire ---------------------------------------------------------------------------
    def encode(self) -> bytes:
        """The payload as safetensors bytes, with the scalars in the header; empty, it has none."""
        return b"".join(self.parts())

    def parts(self) -> list[Bytes]:
        """The same bytes in parts, with tensors as they lie in memory, so nothing is copied.

        The parts change if a tensor does.
        """
        if isinstance(self._sealed, bytes | bytearray):
            return [self._sealed]
        if not self._items:
            return []
        layout, order = _layout(self._shapes())
        return [self._header(layout), *(_raw(self.tensor(name)) for name in order)]

    @staticmethod
    def decode(data: bytes | bytearray) -> Payload:
        """The payload that `encode` turned into these bytes; whoever wrote them is not trusted.

        The tensors of a bytearray are views of it, those of bytes are copies.
        """
        if not data:
            return Payload()
        try:
            start = 8 + int.from_bytes(data[:8], "little")
            if start > min(len(data), _HEADER):
                raise ValueError(f"a header of {start - 8} bytes does not fit")
            read = _remembered if start <= _REMEMBERED else _read
            header = read(bytes(data[8:start]))
            if start + header.end != len(data):
                raise ValueError(f"there should be {start + header.end}")
            # Bytes, such as a file's, are read by the format's own library, which copies each
            # tensor. Messages between processes are bytearrays that are not copied again.
            tensors = load(data) if isinstance(data, bytes) else _views(data, start, header)
            for name in header.truths:
                _refuse_half_truths(name, tensors[name])
            return Payload(header.scalars | tensors)
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise FedloomError(f"these {len(data)} bytes are not a payload: {reason}") from error

    @property
    def nbytes(self) -> int:
        """`len(self.encode())`, without encoding."""
        if isinstance(self._sealed, bytes | bytearray):
            return len(self._sealed)
        if not self._items:
            return 0
        layout, _ = _layout(self._shapes())
        return len(self._header(layout)) + sum(tensor.nbytes for _, tensor in self._tensors())

    def _shapes(self) -> _Shapes:
        return tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors())

    def _header(self, layout: str) -> bytes:
        """The header and, before it, its length: the scalars, then where each tensor lies."""
        scalars = json.dumps({n: v for n, v in self._items.items() if not isinstance(v, Tensor)})
        comma = "," * (layout != "}")
        text = f'{{"__metadata__":{{"scalars":{json.dumps(scalars)}}}{comma}{layout}'.encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    @property
    def floats(self) -> int:
        """How many floating-point numbers it holds: what papers count as sent parameters."""
        return sum(tensor.numel() for _, tensor in self._tensors() if tensor.is_floating_point())


def _mark(value: Value) -> tuple[object, ...]:
    if not isinstance(value, Tensor):
        return (repr(value),)
    if value.is_inference():  # such a tensor does not count writes, so it never equals itself
        return id(value), object()
    return id(value), value._version


@lru_cache(maxsize=4096)
def _layout(shapes: _Shapes) -> tuple[str, tuple[str, ...]]:
    """The header that safetensors writes for such tensors, and their order.

    The library itself writes them once, full of zeros, to find out.
    """
    data = save({name: torch.zeros(shape, dtype=dtype) for name, dtype, shape in shapes})
    text = data[8 : 8 + int.from_bytes(data[:8], "little")].decode().rstrip()
    return text[1:], tuple(json.loads(text))


def _raw(tensor: Tensor) -> memoryview:
    """A tensor's bytes, without a copy if they lie in plain order in this machine's memory."""
    plain = tensor.detach().cpu().contiguous()
    # Not `flatten`: a tensor of one element may have a stride of 0, which `view(uint8)` refuses.
    flat = plain.as_strided((plain.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


class _Header(NamedTuple):
    """What a header says: the scalars, where each tensor lies, and where the last one ends.

    `truths` are the tensors of booleans.
    """

    scalars: dict[str, Scalar]
    places: tuple[tuple[str, torch.dtype, list[int], int, int], ...]  # ..., shape, size, offset
    end: int
    truths: tuple[str, ...]


def _read(text: bytes) -> _Header:
    """What this header says, checked before anything is allocated.

    As the format demands, tensors follow each other without gaps or overlaps.
    """
    layout = json.loads(text, object_pairs_hook=_unique)
    scalars = json.loads(layout.pop("__metadata__")["scalars"], object_pairs_hook=_unique)
    if not layout.keys().isdisjoint(scalars):
        raise ValueError("a tensor and a scalar have the same name")
    return _places(layout, scalars)


def _places(layout: Mapping[str, Any], scalars: dict[str, Scalar]) -> _Header:
    """Where each tensor lies, by the library's own header."""
    places = []
    end = 0
    for name, entry in sorted(layout.items(), key=lambda item: item[1]["data_offsets"]):
        dtype = _DTYPES[entry["dtype"]]
        shape = entry["shape"]
        first, last = entry["data_offsets"]
        numbers = (first, last, *shape)
        if set(map(type, numbers)) != {int} or min(numbers) < 0:
            raise ValueError(f"shape and place of {name!r} are not whole numbers")
        if len(shape) > _SIDES:
            raise ValueError(f"{name!r} has {len(shape)} sides, more than {_SIDES}")
        size = math.prod(shape)
        if not size and math.prod(filter(None, shape)) > _BESIDE_NOTHING:
            raise ValueError(f"{name!r} is empty, but a slice of it would be huge")
        if first != end or last - first != size * dtype.itemsize:
            raise ValueError(f"{name!r} does not lie where it should")
        places.append((name, dtype, shape, size, first))
        end = last
    truths = tuple(place[0] for place in places if place[1] is torch.bool)
    return _Header(scalars, tuple(places), end, truths)


def tensors_in(data: bytes) -> dict[str, Tensor]:
    """The tensors in the bytes of any safetensors file; whoever wrote it is not trusted.

    What is wrong with the file becomes a `ValueError`.
    """
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        if start > min(len(data), _HEADER):
            raise ValueError(f"a header of {start - 8} bytes does not fit")
        layout = json.loads(data[8:start], object_pairs_hook=_unique)
        layout.pop("__metadata__", None)
        header = _places(layout, {})
        if start + header.end != len(data):
            raise ValueError(f"it has {len(data)} bytes, not {start + header.end}")
        tensors: dict[str, Tensor] = load(data)
        for name in header.truths:
            _refuse_half_truths(name, tensors[name])
        return tensors
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error


_remembered = lru_cache(maxsize=512)(_read)  # many payloads have the same header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, refused if it has a name twice: readers differ in which value they take."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a name occurs twice")
    return content


def _refuse_half_truths(name: str, tensor: Tensor) -> None:
    """Refuse booleans stored as bytes other than 0 and 1, with which torch computes anything."""
    if tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
        raise ValueError(f"{name!r} has booleans that are neither 0 nor 1")


def _views(memory: bytearray, start: int, header: _Header) -> dict[str, Tensor]:
    """The tensors of a payload as views of its memory, in which they begin at `start`."""
    tensors = {}
    for name, dtype, shape, size, offset in header.places:
        if size:
            flat = torch.frombuffer(memory, dtype=dtype, count=size, offset=start + offset)
            tensors[name] = flat.view(shape)
        else:
            tensors[name] = torch.empty(shape, dtype=dtype)
    return tensors

"""`Payload`: what crosses a boundary. Flat names -> tensors and scalars, with an exact size in bytes.

A client's memory and the server's memory have the same form, so everything that lives longer than one call can be
written to disk, sent over a network and compared byte by byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import torch
from safetensors.torch import save
from torch import Tensor

from .errors import FedloomError
from .tree import Tree

Scalar = bool | int | float | str
Value = Tensor | Scalar
Bytes = bytes | bytearray | memoryview
# As the format calls them.
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
    "F64": torch.float64, "C64": torch.complex64,
}  # fmt: skip
_Shapes = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


class Payload(Mapping[str, Value]):
    """An immutable flat mapping. A `Tree` given under a name is stored as `name/tensor`; `tree(name)` gives it back.

    `Payload(size=3, model=Tree({"w": torch.zeros(2)}))` has the names `size` and `model/w`.
    """

    __slots__ = ("_content", "_sealed")
    _content: dict[str, Value] | None  # None while it is sealed
    _sealed: bytes | bytearray | Payload | None

    def __init__(self, items: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        content: dict[str, Value] = {}
        for name, value in {**(items or {}), **named}.items():
            if name == "__metadata__":
                raise FedloomError(
                    "'__metadata__' is a name that the file format keeps for itself."
                )
            if isinstance(value, (Tree, Payload)):
                content.update({f"{name}/{n}": v for n, v in value.items()})
            elif isinstance(value, (Tensor, bool, int, float, str)):
                content[name] = value
            else:
                raise FedloomError(
                    f"{name!r} is a {type(value).__name__}; a payload holds tensors and plain scalars."
                )
        # Sorted, so that a payload that came over a wire is the same in every respect as the one that was sent.
        self._content, self._sealed = dict(sorted(content.items())), None

    @staticmethod
    def sealed(inside: bytes | bytearray | Payload) -> Payload:
        """What is in these bytes, or in another payload, unpacked when somebody looks at it and not before.

        Who only keeps or passes on a payload need not unpack and pack it again; and whether anybody has looked can be
        told (`opened`). A bytearray is the payload's own from now on: its tensors are not copied out of it.
        """
        made = Payload()
        made._content, made._sealed = None, inside
        return made

    @property
    def opened(self) -> bool:
        """Whether anybody has looked inside."""
        return self._content is not None

    @property
    def _items(self) -> dict[str, Value]:
        if self._content is None:
            inside = self._sealed
            self._content = (
                inside if isinstance(inside, Payload) else Payload.decode(inside or b"")
            )._items
            self._sealed = None  # tensors may be written to from now on, and then would be others than in the bytes
        return self._content

    def __getitem__(self, name: str) -> Value:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        shown = {n: tuple(v.shape) if isinstance(v, Tensor) else v for n, v in self._items.items()}
        return f"Payload({shown})"

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
        """A payload in which these names (whole groups for trees) have new values; the rest is kept."""
        old = {
            n: v
            for n, v in self._items.items()
            if not any(n == new or n.startswith(f"{new}/") for new in named)
        }
        return Payload(old, **named)

    def copy(self) -> Payload:
        """A payload that shares no memory with this one."""
        if isinstance(self._sealed, bytes | bytearray):
            return Payload.sealed(self._sealed[:])  # of bytes the same, of a bytearray a copy
        return Payload({n: _own(v) if isinstance(v, Tensor) else v for n, v in self._items.items()})

    def equal(self, other: Payload) -> bool:
        """Whether both hold the same names and exactly the same values."""
        return self.encode() == other.encode()

    def mark(self) -> tuple[object, ...]:
        """Equal for two payloads that are both there only if they hold the very same tensors, none of which has been
        written to in between, and equal scalars; nothing is unpacked for it."""
        if self._content is None:
            return (id(self),)
        return tuple((name, *_mark(value)) for name, value in self._content.items())

    # -- the wire -----------------------------------------------------------------------------------------------
    def encode(self) -> bytes:
        """The payload as safetensors bytes, scalars in the header. Nothing to say takes no bytes."""
        return b"".join(self.parts())

    def parts(self) -> list[Bytes]:
        """The same in parts that follow each other, tensors as they lie in memory: whoever writes them somewhere need
        not copy them first. They change if a tensor does."""
        if isinstance(self._sealed, bytes | bytearray):
            return [self._sealed]
        if not self._items:
            return []
        layout, order = _layout(self._shapes())
        return [self._head(layout), *(_raw(self.tensor(name)) for name in order)]

    @staticmethod
    def decode(data: bytes | bytearray) -> Payload:
        """The payload that `encode` turned into these bytes. Tensors lie in a bytearray that is given, and in a copy of
        bytes."""
        if not data:
            return Payload()
        try:
            start = 8 + int.from_bytes(data[:8], "little")
            told = json.loads(data[8:start])
            content = json.loads(told.pop("__metadata__")["scalars"])
            memory = data if isinstance(data, bytearray) else bytearray(data)
            ends = [entry["data_offsets"][1] for entry in told.values()]
            if start + max(ends, default=0) != len(memory):
                raise ValueError(f"they should be {start + max(ends, default=0)}")
            return Payload(
                content | {name: _tensor(memory, start, **entry) for name, entry in told.items()}
            )
        except Exception as error:
            raise FedloomError(f"these {len(data)} bytes are no payload: {error}") from error

    @property
    def nbytes(self) -> int:
        """`len(self.encode())`, without encoding."""
        if isinstance(self._sealed, bytes | bytearray):
            return len(self._sealed)
        if not self._items:
            return 0
        tensors = sum(v.nbytes for v in self._items.values() if isinstance(v, Tensor))
        return len(self._head(_layout(self._shapes())[0])) + tensors

    def _shapes(self) -> _Shapes:
        return tuple(
            (n, v.dtype, tuple(v.shape)) for n, v in self._items.items() if isinstance(v, Tensor)
        )

    def _head(self, layout: str) -> bytes:
        """Length and header: the scalars, then where each tensor lies."""
        scalars = json.dumps({n: v for n, v in self._items.items() if not isinstance(v, Tensor)})
        text = f'{{"__metadata__":{{"scalars":{json.dumps(scalars)}}}{"," * (layout != "}")}{layout}'.encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    @property
    def floats(self) -> int:
        """How many floating-point numbers its tensors hold: what papers count as communicated parameters."""
        return sum(
            v.numel()
            for v in self._items.values()
            if isinstance(v, Tensor) and v.is_floating_point()
        )


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _mark(value: Value) -> tuple[object, ...]:
    if not isinstance(value, Tensor):
        return (repr(value),)
    # Tensors of inference mode do not count how often they were written to: each look at one is another.
    return id(value), object() if value.is_inference() else value._version


@lru_cache(maxsize=4096)
def _layout(shapes: _Shapes) -> tuple[str, tuple[str, ...]]:
    """What safetensors says in its header of such tensors, and their order: such are really written once."""
    data = save({name: torch.zeros(shape, dtype=dtype) for name, dtype, shape in shapes})
    text = data[8 : 8 + int.from_bytes(data[:8], "little")].decode().rstrip()
    return text[1:], tuple(json.loads(text))


def _raw(tensor: Tensor) -> memoryview:
    """A tensor's bytes, as they lie in memory if they lie in plain order."""
    plain = tensor.detach().cpu().contiguous()
    flat = plain.as_strided(
        (plain.numel(),), (1,)
    )  # a single number may claim to be 0 apart from the next
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def _tensor(
    memory: bytearray, start: int, dtype: str, shape: list[int], data_offsets: list[int]
) -> Tensor:
    count, kind = math.prod(shape), _DTYPES[dtype]
    if not count:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(memory, dtype=kind, count=count, offset=start + data_offsets[0]).view(
        shape
    )

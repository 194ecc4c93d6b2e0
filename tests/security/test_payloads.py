"""Payloads from a stranger: each is refused with a sentence, or holds what its bytes say.

2 000 cases, 100 000 with FEDLOOM_ATTACKS=full; `-s` prints how they ended.
"""

from __future__ import annotations

import json
import random
import struct
import time
from collections import Counter
from typing import Any

import pytest
import torch
from fuzz import FULL, SLOW, peak
from torch import Tensor

from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload

CASES = 100_000 if FULL else 2_000
ROOM = 100 << 10  # kilobytes by which all cases together may raise the peak of memory
SIZES = [0, 1, 2, 3, 7, 255, 2**16, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 2**70]
ODD: list[Any] = [
    None, True, -1, -(2**63), 1.5, 1e308, "", "4", [], {}, [[]], [None], "F32", "../x", *SIZES
]  # fmt: skip
DTYPES = ["F32", "F64", "BF16", "BOOL", "I64", "U8", "F4", "C64", "f32", "F8_E8M0", "", "PICKLE"]


def packed(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def laid_out(layout: dict[str, Any], body: bytes = b"", scalars: str = "{}") -> bytes:
    header = json.dumps({"__metadata__": {"scalars": scalars}, **layout}).encode()
    return packed(header + b" " * (-len(header) % 8), body)


def one(shape: Any, offsets: Any, dtype: Any = "F32", body: bytes = b"") -> bytes:
    return laid_out({"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}, body)


ENTRY = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
META = '"__metadata__":{"scalars":"{}"}'
LIES = {
    "a huge shape": one([2**62], [0, 4], body=b"1234"),
    "a shape whose bytes overflow": one([2**62], [0, 0]),
    "an empty tensor with a huge side": one([2**62, 0], [0, 0]),
    "an empty tensor beyond 64 bits": one([0, 2**70], [0, 0]),
    "five thousand sides": one([1] * 5000, [0, 4], body=b"1234"),
    "a negative side": one([-1], [0, 4], body=b"1234"),
    "two negative sides": one([-1, -1], [0, 4], body=b"1234"),
    "a negative place": one([1], [-4, 0], body=b"1234"),
    "a place beyond the end": one([1], [2**63, 2**63 + 4], body=b"1234"),
    "a gap": one([1], [4, 8], body=b"12345678"),
    "bytes that belong to nobody": one([1], [0, 4], body=b"12345678"),
    "a bool as a size": one([True], [0, 4], body=b"1234"),
    "an unknown type": one([1], [0, 4], "F128", body=b"1234"),
    "overlapping tensors": laid_out(
        {n: {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]} for n in "abc"},
        bytes(4000),
    ),
    "a name twice": packed(f'{{{META},"w":{ENTRY},"w":{ENTRY}}}'.encode(), b"1"),
    "a scalar twice": laid_out({}, scalars='{"a": 1, "a": 2}'),
    "a list as a scalar": laid_out({}, scalars='{"a": [1]}'),
    "nothing as a scalar": laid_out({}, scalars='{"a": null}'),
    "scalars that are a list": laid_out({}, scalars="[1]"),
    "a tensor and a scalar of one name": laid_out(
        {"w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, scalars='{"w": 1}'
    ),
    "brackets a hundred thousand deep": packed(b"[" * 100_000),
    "no header": packed(b""),
    "a header that is no text": packed(b"\xff" * 64),
    "a header beyond the end": struct.pack("<Q", 2**64 - 1) + b"{}",
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
    "a zip": b"PK\x03\x04" + bytes(60),
    "too short": b"1234567",
    "a boolean that is 3": one([1], [0, 1], "BOOL", body=b"\3"),
}


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_lie_is_refused_before_anything_is_allocated(name: str, kind: type) -> None:
    before = peak()
    with pytest.raises(FedloomError, match="are not a payload"):
        Payload.decode(kind(LIES[name]))
    assert peak() - before < 50 << 10


def test_headers_of_strangers_do_not_fill_the_memory() -> None:
    start = peak()
    for number in range(150):
        text = json.dumps({"text": f"{number}" + "x" * 1_000_000})
        Payload.decode(laid_out({}, scalars=text))
    assert peak() - start < 60 << 10


def honest(chance: random.Random) -> Payload:
    """A payload with a few small tensors of several types."""
    content: dict[str, Any] = {"size": chance.randrange(100), "name": "x" * chance.randrange(4)}
    dtypes = [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16]
    for i in range(chance.randrange(4)):
        shape = [chance.randrange(4) for _ in range(chance.randrange(4))]
        content[f"model/{i}"] = torch.ones(shape, dtype=chance.choice(dtypes))
    return Payload(content)


def wrong_entry(chance: random.Random, entry: dict[str, Any]) -> dict[str, Any]:
    """A tensor's place, with a lie in it."""
    entry = {"shape": [], "data_offsets": [0, 0], **entry}
    lie = chance.randrange(6)
    if lie == 0:
        entry["shape"] = [chance.choice(SIZES) for _ in range(chance.randrange(6))]
    elif lie == 1:
        entry["dtype"] = chance.choice(DTYPES)
    elif lie == 2:
        first, last = entry["data_offsets"]
        step = chance.choice([-8, -4, 4, 8, 2**32, 2**63])
        entry["data_offsets"] = [first + step * chance.randrange(2), last + step]
    elif lie == 3:
        entry["shape"] = [*entry["shape"], 1]
        entry["data_offsets"] = entry["data_offsets"][::-1]
    elif lie == 4:
        entry[chance.choice(["shape", "data_offsets", "dtype"])] = chance.choice(ODD)
    else:
        del entry[chance.choice(sorted(entry))]
    return entry


def wrong_header(chance: random.Random, data: bytes) -> bytes:
    """The same payload with a lie in its header."""
    length = int.from_bytes(data[:8], "little")
    layout = json.loads(data[8 : 8 + length])
    name = chance.choice(sorted(layout))
    if name == "__metadata__":
        layout[name] = chance.choice([{}, {"scalars": chance.choice(["", "{", "[]", "{}", "1"])}])
        layout[name] = chance.choice([layout[name], *ODD])
    elif chance.random() < 0.2:
        layout[f"{name}2"] = layout[name]
    else:
        layout[name] = wrong_entry(chance, layout[name])
    return packed(json.dumps(layout).encode(), data[8 + length :])


def attacked(chance: random.Random) -> bytes:
    """An honest payload in which something is wrong."""
    data = honest(chance).encode()
    kind = chance.randrange(5)
    if kind == 0:
        flipped = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        return bytes(flipped)
    if kind == 1:
        return data[: chance.randrange(len(data))] + chance.randbytes(chance.randrange(9))
    return wrong_header(chance, data)


def test_thousands_of_damaged_payloads() -> None:
    outcomes: Counter[str] = Counter()
    before = peak()
    slowest = 0.0
    for case in range(CASES):
        data = attacked(random.Random(case))
        start = time.process_time()
        ended = {outcome(kind(data), case) for kind in (bytes, bytearray)}
        slowest = max(slowest, time.process_time() - start)
        assert len(ended) == 1, f"case {case}: bytes and bytearrays are read unlike: {ended}"
        outcomes[ended.pop()] += 1
    grown = (peak() - before) >> 10
    print(f"\n{CASES} payloads: {dict(outcomes)}, slowest {slowest:.3f} s, {grown} MB more")
    assert outcomes["refused"] > CASES / 2 and outcomes["read"] > 0
    assert slowest < SLOW and peak() - before < ROOM


def outcome(data: Any, case: int) -> str:
    """Read a payload and do with it what its receivers do."""
    try:
        payload = Payload.decode(data)
    except FedloomError:
        return "refused"
    tensors = [value for value in payload.values() if isinstance(value, Tensor)]
    assert sum(tensor.nbytes for tensor in tensors) <= len(data), case
    for tensor in tensors:
        tensor.to(torch.complex128).sum()
    again = Payload.decode(payload.copy().encode())
    assert again.equal(payload) and payload.nbytes == len(payload.encode()), case
    return "read"

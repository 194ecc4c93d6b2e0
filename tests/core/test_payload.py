import json
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor, nn

from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree

torch.set_num_threads(1)

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16]
often = settings(deadline=None, max_examples=150, derandomize=True)


def from_bits(raw: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor of exactly these bits (NaNs of every kind among them)."""
    if not raw:
        return torch.zeros(shape, dtype=dtype)
    if dtype == torch.bool:
        raw = bytes(b & 1 for b in raw)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = math.prod(shape) * dtype.itemsize
    tensor = from_bits(draw(st.binary(min_size=size, max_size=size)), dtype, shape)
    return tensor.mT if tensor.dim() >= 2 and draw(st.booleans()) else tensor


ODD_TEXTS = ['"', "\\", "'", "üñ€😀", "\x00\n\x7f", "a/b", "{}", "null"]
texts = st.text(st.characters(), max_size=8) | st.sampled_from(ODD_TEXTS)
scalars = st.booleans() | st.integers() | st.floats() | texts
names = st.text(max_size=6) | st.sampled_from(
    ["w", "model/w", "model/b", 'q"uote', "back\\slash", "ключ", "__meta__"]
)
payloads = st.dictionaries(names, tensors() | scalars, max_size=6).map(Payload)


def exactly(value: Any) -> tuple[Any, ...]:
    """All there is to a value: type, shape and every bit."""
    if isinstance(value, Tensor):
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        return value.dtype, tuple(value.shape), bytes(raw)
    if isinstance(value, float):
        return float, "nan" if math.isnan(value) else struct.pack("<d", value)
    return type(value), value


def content(payload: Payload) -> dict[str, tuple[Any, ...]]:
    return {name: exactly(value) for name, value in payload.items()}


# -- the wire -------------------------------------------------------------------------------
@often
@given(payloads)
@example(Payload(flag=True, one=1, real=1.0, text="1", off=False, zero=0, nought=-0.0, word="True"))
@example(
    Payload(
        w=torch.zeros(()),
        e=torch.zeros(0),
        f=torch.zeros(2, 0, 3),
        g=torch.zeros(0, dtype=torch.bool),
    )
)
@example(
    Payload(
        nan=math.nan,
        inf=math.inf,
        minus=-math.inf,
        tiny=5e-324,
        big=1.7976931348623157e308,
        long=10**40,
    )
)
@example(Payload({"": 1, "tab\t": "\ud800", "é": 'say "hi" \\ \\" \u2028 😀'}))
def test_round_trip_is_exact_and_nbytes_is_the_length(payload: Payload) -> None:
    data = payload.encode()
    assert isinstance(data, bytes)
    back = Payload.decode(data)
    assert content(back) == content(payload)
    assert payload.nbytes == len(data) == back.nbytes
    assert back.encode() == data
    assert payload.equal(back) and back.equal(payload)


@often
@given(payloads)
def test_the_bytes_are_those_of_the_format_s_own_library(payload: Payload) -> None:
    tensors = {n: v.clone().contiguous() for n, v in payload.items() if isinstance(v, Tensor)}
    scalars = json.dumps({n: v for n, v in payload.items() if not isinstance(v, Tensor)})
    assert payload.encode() == (
        save(tensors, metadata={"scalars": scalars}) if len(payload) else b""
    )


@often
@given(payloads, st.lists(scalars, min_size=6, max_size=6))
def test_nbytes_after_only_scalars_changed(payload: Payload, fresh: list[Any]) -> None:
    assert payload.nbytes == len(payload.encode())
    changed = Payload(
        {
            n: v if isinstance(v, Tensor) else s
            for (n, v), s in zip(payload.items(), fresh, strict=False)
        }
    )
    assert changed.nbytes == len(changed.encode())
    assert payload.nbytes == len(payload.encode()), "nor is the first one's size forgotten"


def test_nbytes_sees_that_a_scalar_got_longer() -> None:
    sizes = []
    for text in ("", "a" * 8, "é" * 8, '"' * 80):
        payload = Payload(text=text, w=torch.zeros(3))
        assert payload.nbytes == len(payload.encode())
        sizes.append(payload.nbytes)
    assert sizes == sorted(set(sizes))


def test_nbytes_counts_what_tensors_take() -> None:
    small, large = Payload(w=torch.zeros(100)), Payload(w=torch.zeros(200))
    assert large.nbytes - small.nbytes == 400
    assert Payload(w=torch.zeros(100, dtype=torch.bool)).nbytes < small.nbytes
    assert Payload(w=torch.zeros(100, dtype=torch.float64)).nbytes - small.nbytes == 400


def test_nothing_takes_no_bytes() -> None:
    for empty in (Payload(), Payload({}), Payload(model=Tree()), Payload(state=Payload())):
        assert len(empty) == 0
        assert empty.encode() == b"" and empty.nbytes == 0
    assert len(Payload.decode(b"")) == 0
    assert Payload(size=1).nbytes > 0 and Payload(w=torch.zeros(0)).nbytes > 0


def test_types_of_scalars_are_kept() -> None:
    values: dict[str, Any] = {
        "t": True,
        "f": False,
        "one": 1,
        "real": 1.0,
        "digit": "1",
        "word": "True",
        "empty": "",
    }
    back = Payload.decode(Payload(values, w=torch.ones(1)).encode())
    assert back["t"] is True and back["f"] is False
    assert {n: type(back[n]) for n in values} == {n: type(v) for n, v in values.items()}
    assert math.copysign(1, Payload.decode(Payload(zero=-0.0).encode()).number("zero")) == -1


@often
@given(st.dictionaries(names, tensors() | scalars, max_size=6), st.randoms(use_true_random=False))
def test_insertion_order_does_not_show(items: dict[str, Any], rng: Any) -> None:
    order = list(items)
    rng.shuffle(order)
    assert Payload({n: items[n] for n in order}).encode() == Payload(items).encode()


def test_insertion_order_of_tied_tensors_does_not_show() -> None:
    w = torch.arange(6.0)
    items = {"a": w, "b": w, "c": w[2:], "d": torch.ones(2, dtype=torch.bool), "s": 1, "r": "x"}
    assert Payload(items).encode() == Payload(dict(reversed(items.items()))).encode()


def test_layout_in_memory_does_not_show() -> None:
    square = torch.arange(12.0).reshape(3, 4)
    for odd in (
        square.t(),
        square[:, 1:3],
        square[1:],
        torch.ones(1).expand(5),
        square.requires_grad_(),
    ):
        plain = torch.tensor(odd.tolist())
        assert Payload(w=odd).encode() == Payload(w=plain).encode()
        assert Payload(w=odd).nbytes == Payload(w=plain).nbytes


def test_tied_tensors_encode() -> None:
    w = torch.arange(6.0)
    table = nn.Parameter(torch.arange(4.0))
    payload = Payload(
        a=w,
        b=w,
        c=w[2:4],
        d=w.reshape(2, 3),
        e=w.reshape(2, 3).t(),
        f=table,
        g=table,
        h=w[:0],
        i=w[:0],
    )
    back = Payload.decode(payload.encode())
    assert content(back) == content(payload)
    assert payload.nbytes == len(payload.encode())
    back.tensor("a").zero_()
    assert back.tensor("b").tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], (
        "each has its own memory now"
    )
    assert w.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert back.tensor("f").requires_grad is False


def test_encoding_changes_nothing() -> None:
    w = torch.arange(4.0)
    payload = Payload(a=w, b=w, c=w.reshape(2, 2).t(), s=3)
    before = content(payload)
    payload.encode(), payload.nbytes
    assert content(payload) == before
    assert payload["a"] is w and payload["b"] is w


def test_equal_is_exact() -> None:
    payload = Payload(w=torch.tensor([1.0, 0.0]), s=1)
    assert payload.equal(Payload(s=1, w=torch.tensor([1.0, 0.0])))
    for other in (
        Payload(w=torch.tensor([1.0, 0.0]), s=1.0),
        Payload(w=torch.tensor([1.0, 0.0]), s=True),
        Payload(w=torch.tensor([1.0, -0.0]), s=1),
        Payload(w=torch.tensor([1.0, 0.0], dtype=torch.float64), s=1),
        Payload(w=torch.tensor([[1.0, 0.0]]), s=1),
        Payload(w=torch.tensor([1.0, 0.0])),
        Payload(v=torch.tensor([1.0, 0.0]), s=1),
        Payload(),
    ):
        assert not payload.equal(other) and not other.equal(payload)


def test_decoded_tensors_are_free_of_the_bytes() -> None:
    data = Payload(a=torch.ones(3), b=torch.ones(3)).encode()
    kept = bytes(data)
    first, second = Payload.decode(data), Payload.decode(data)
    first.tensor("a").fill_(5.0)
    assert data == kept
    assert first.tensor("b").tolist() == second.tensor("a").tolist() == [1.0, 1.0, 1.0]


# -- what is not a payload ------------------------------------------------------------------
def test_every_truncation_is_refused() -> None:
    data = Payload(
        model=Tree({"w": torch.arange(5.0), "n": torch.tensor(3)}), size=3, name="é"
    ).encode()
    for length in range(1, len(data)):
        for cut in (data[:length], bytearray(data[:length])):
            with pytest.raises(FedloomError, match=f"these {length} bytes are not a payload"):
                Payload.decode(cut)
    assert Payload.decode(data)["size"] == 3


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_truncation_without_tensors_is_refused(cut: int) -> None:
    data = Payload(size=3, name="x").encode()
    with pytest.raises(FedloomError, match="not a payload"):
        Payload.decode(data[:-cut])
    with pytest.raises(FedloomError, match="not a payload"):
        Payload.decode(data + b"\0" * cut)


@often
@given(st.binary(min_size=1, max_size=200))
@example(b"\0" * 8)
@example(b"\xff" * 64)
@example(b"\x02" + b"\0" * 7 + b"{}")
@example(b"\x02" + b"\0" * 7 + b"[]")
@example(b"PK\x03\x04" + b"\0" * 60)
@example(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.")
def test_garbage_is_refused(data: bytes) -> None:
    for given_data in (data, bytearray(data)):
        with pytest.raises(FedloomError, match="not a payload"):
            Payload.decode(given_data)


def file(entries: Any, contents: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header, and these bytes after it; `length` is what it claims to have."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + contents


def header(**entries: Any) -> dict[str, Any]:
    return {"__metadata__": {"scalars": "{}"}, **entries}


def entry(dtype: Any, shape: Any, *offsets: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


W = entry("F32", [2], 0, 8)
HOSTILE = {
    "two tensors overlap": file(header(w=W, v=entry("F32", [2], 4, 12)), bytes(12)),
    "two tensors share their bytes": file(header(w=W, v=W), bytes(8)),
    "bytes between tensors": file(header(w=W, v=entry("F32", [1], 12, 16)), bytes(16)),
    "bytes before the first tensor": file(header(w=entry("F32", [2], 4, 12)), bytes(12)),
    "bytes after the last tensor": file(header(w=W), bytes(12)),
    "bytes and no tensor": file(header(), bytes(4)),
    "a tensor beyond the end": file(header(w=entry("F32", [99], 0, 396)), bytes(8)),
    "a tensor before the beginning": file(header(w=entry("F32", [2], -8, 0)), bytes(8)),
    "offsets in the wrong order": file(header(w=entry("F32", [2], 8, 0)), bytes(8)),
    "one offset": file(header(w=entry("F32", [2], 0)), bytes(8)),
    "three offsets": file(header(w=entry("F32", [2], 0, 8, 8)), bytes(8)),
    "more elements than bytes": file(header(w=entry("F32", [3], 0, 8)), bytes(8)),
    "fewer elements than bytes": file(header(w=entry("F32", [1], 0, 8)), bytes(8)),
    "a shape that overflows": file(header(w=entry("F32", [2**62, 4], 0, 0)), b""),
    "a vast shape without elements": file(header(w=entry("F32", [2**64, 0], 0, 0)), b""),
    "negative dimensions": file(header(w=entry("F32", [-1, -2], 0, 8)), bytes(8)),
    "a fraction as dimension": file(header(w=entry("F32", [2.0], 0, 8)), bytes(8)),
    "a text as dimension": file(header(w=entry("F32", ["2"], 0, 8)), bytes(8)),
    "true as dimension": file(header(w=entry("F32", [2, True], 0, 8)), bytes(8)),
    "no shape": file(header(w=entry("F32", None, 0, 8)), bytes(8)),
    "an unknown type": file(header(w=entry("F31", [2], 0, 8)), bytes(8)),
    "a type that is no text": file(header(w=entry(32, [2], 0, 8)), bytes(8)),
    "an entry that is a list": file(header(w=[]), b""),
    "a header that is a list": file([], b""),
    "a header longer than the file": file(header(w=W), bytes(8), length=10**6),
    "a header of 2^64 bytes": file(header(w=W), bytes(8), length=2**64 - 1),
    "a header cut short": file(header(w=W), bytes(8), length=20),
    "a header nested without end": file(b'{"a":' * 100_000),
    "scalars nested without end": file({"__metadata__": {"scalars": "[" * 100_000}}),
    "a number without end": file({"__metadata__": {"scalars": '{"n": ' + "9" * 10_000 + "}"}}),
    "a header that is not UTF-8": file(b'{"\xff": 1}'),
    "metadata that are no table": file({"__metadata__": "scalars"}),
    "scalars that are no text": file({"__metadata__": {"scalars": {}}}),
    "a name used twice": file({"__metadata__": {"scalars": '{"w": 1}'}, "w": W}, bytes(8)),
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.",
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_hostile_file_is_refused(what: str, kind: type[bytes] | type[bytearray]) -> None:
    data = HOSTILE[what]
    with pytest.raises(FedloomError, match=f"these {len(data)} bytes are not a payload: ."):
        Payload.decode(kind(data))


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_the_pattern_of_the_hostile_files_is_sound(kind: type[bytes] | type[bytearray]) -> None:
    payload = Payload.decode(kind(file(header(w=W, v=entry("I8", [0, 3], 8, 8)), bytes(8))))
    assert payload.tensor("w").tolist() == [0.0, 0.0]
    assert payload.tensor("v").shape == (0, 3)


def test_damage_in_the_header_is_refused_or_read() -> None:
    """No flipped bit makes `decode` fail in another way than with a sentence."""
    data = Payload(
        model=Tree({"w": torch.arange(3.0), "n": torch.tensor(3)}), size=3, flag=True, name="é"
    ).encode()
    header = 8 + int.from_bytes(data[:8], "little")
    refused = 0
    for place in range(header):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            try:
                assert isinstance(Payload.decode(bytes(damaged)), Payload)
            except FedloomError as error:
                assert str(error)
                refused += 1
                with pytest.raises(FedloomError):
                    Payload.decode(damaged)
    assert refused > header * 4


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"other": "{}"},
        *({"scalars": text} for text in ("", "{", "[1]", "null", "3", '"ab"')),
        *({"scalars": text} for text in ('{"a": [1]}', '{"a": null}', '{"a": {}}')),
    ],
    ids=str,
)
def test_a_safetensors_file_that_is_no_payload_is_refused(metadata: dict[str, str] | None) -> None:
    with pytest.raises(FedloomError):
        Payload.decode(save({"w": torch.zeros(1)}, metadata=metadata))


def test_any_name_can_be_encoded_or_is_refused() -> None:
    """`__metadata__` is what the format calls its own header."""
    try:
        data = Payload({"__metadata__": torch.ones(2), "w": torch.zeros(1)}).encode()
    except FedloomError as error:
        assert "__metadata__" in str(error)
        return
    assert Payload.decode(data).tensor("__metadata__").tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1.0],
        (1, 2),
        {"a": 1},
        {1},
        b"bytes",
        1j,
        np.zeros(2),
        np.float32(1),
        np.int64(1),
        nn.Linear(1, 1),
    ],
    ids=lambda v: type(v).__name__,
)
def test_other_values_are_refused(value: Any) -> None:
    for make in (
        lambda: Payload(odd=value),
        lambda: Payload({"odd": value}),
        lambda: Payload(a=1).replace(odd=value),
    ):
        with pytest.raises(FedloomError, match=f"'odd' is a {type(value).__name__};"):
            make()


# -- the mapping ----------------------------------------------------------------------------
def test_trees_and_groups() -> None:
    tree = Tree({"body.w": torch.ones(2), "head.b": torch.zeros(1)})
    payload = Payload(
        {"size": 3}, model=tree, models=Tree({"x": torch.ones(1)}), state=Payload(age=2, c=tree)
    )
    assert sorted(payload) == [
        "model/body.w",
        "model/head.b",
        "models/x",
        "size",
        "state/age",
        "state/c/body.w",
        "state/c/head.b",
    ]
    assert payload.tree("model").equal(tree) and payload.tree("model")["body.w"] is tree["body.w"]
    assert isinstance(payload.group("state"), Payload)
    assert sorted(payload.group("state")) == ["age", "c/body.w", "c/head.b"]
    assert payload.group("state")["age"] == 2
    assert payload.group("state").tree("c").equal(tree)
    assert payload.tree("state/c").equal(tree)
    assert list(payload.tree("models")) == ["x"]
    assert len(payload.tree("mode")) == len(payload.group("mode")) == len(payload.tree("size")) == 0
    assert payload.tree("absent").equal(Tree())
    back = Payload.decode(payload.encode())
    assert back.tree("model").equal(tree) and back.group("state").equal(payload.group("state"))


def test_tree_leaves_scalars_of_its_group_out() -> None:
    payload = Payload({"g/w": torch.ones(1), "g/n": 3})
    assert list(payload.tree("g")) == ["w"]
    assert sorted(payload.group("g")) == ["n", "w"]


def test_tensor_and_number() -> None:
    w = torch.ones(2)
    payload = Payload(w=w, n=3, x=0.5, flag=True, t=torch.tensor(2.5))
    assert payload.tensor("w") is w
    assert [payload.number(n) for n in ("n", "x", "flag", "t")] == [3.0, 0.5, 1.0, 2.5]
    assert type(payload.number("n")) is float
    with pytest.raises(FedloomError, match="'n' is not a tensor but 3"):
        payload.tensor("n")


def test_replace_drops_whole_groups() -> None:
    payload = Payload(
        {"modelling": 7},
        model=Tree({"a": torch.ones(1), "b": torch.ones(1)}),
        models=Tree({"a": torch.ones(3)}),
        n=1,
    )
    replaced = payload.replace(model=Tree({"b": torch.zeros(1)}), n=2)
    assert sorted(replaced) == ["model/b", "modelling", "models/a", "n"]
    assert replaced.tree("model")["b"].item() == 0.0 and replaced["n"] == 2
    assert replaced["models/a"] is payload["models/a"]
    assert sorted(payload.replace(model=Tree())) == ["modelling", "models/a", "n"]
    assert sorted(payload.replace(model=5)) == ["model", "modelling", "models/a", "n"], (
        "a scalar for a group"
    )
    assert sorted(payload.replace(n=Tree({"w": torch.ones(1)}))) == [
        "model/a",
        "model/b",
        "modelling",
        "models/a",
        "n/w",
    ]
    assert (
        sorted(payload) == ["model/a", "model/b", "modelling", "models/a", "n"]
        and payload["n"] == 1
    )
    assert payload.tree("model")["b"].item() == 1.0, "the first payload is as it was"
    assert payload.replace().equal(payload)


def test_copy_shares_no_memory() -> None:
    w = torch.arange(6.0).reshape(2, 3)
    payload = Payload(
        a=w, b=w, c=w.t(), d=nn.Parameter(torch.ones(2)), n=torch.tensor(4), s="text", t=True
    )
    copy = payload.copy()
    assert content(copy) == content(payload)
    places = {v.untyped_storage().data_ptr() for v in copy.values() if isinstance(v, Tensor)}
    assert len(places) == 5
    assert not places & {
        v.untyped_storage().data_ptr() for v in payload.values() if isinstance(v, Tensor)
    }
    assert not copy.tensor("d").requires_grad
    before = content(payload)
    for value in copy.values():
        if isinstance(value, Tensor):
            value.zero_()
    assert content(payload) == before


def test_a_payload_cannot_be_changed() -> None:
    source = {"a": 1}
    payload = Payload(source)
    with pytest.raises(TypeError):
        payload["a"] = 2  # type: ignore[index]
    source["a"] = 5
    assert payload["a"] == 1 and len(payload) == 1 and "a" in payload and "b" not in payload
    assert Payload({"a": 1}, a=2)["a"] == 2


def test_the_scalars_are_plain_json() -> None:
    data = Payload(w=torch.zeros(1), size=3, name="é").encode()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert json.loads(header["__metadata__"]["scalars"]) == {"name": "é", "size": 3}
    assert header["w"]["shape"] == [1]


def test_names_have_one_order_on_both_sides_of_a_wire() -> None:
    """Sums over tensors round differently in another order: it must not depend on the sender."""
    tree = Tree(
        {
            f"layer{i}": torch.randn(7, generator=torch.Generator().manual_seed(i))
            for i in (9, 3, 27, 1)
        }
    )
    sent = Payload(size=1, model=tree)
    came = Payload.decode(sent.encode())
    assert list(sent) == list(came) == sorted(sent)
    assert list(sent.tree("model")) == list(came.tree("model"))
    assert torch.equal(tree.dot(tree), came.tree("model").dot(came.tree("model")))


def test_sealed_is_the_same_and_unpacked_when_looked_at() -> None:
    packed = Payload(size=3, model=Tree({"w": torch.arange(4.0)})).encode()
    sealed = Payload.sealed(packed)
    assert (
        sealed.nbytes == len(packed)
        and sealed.encode() is packed
        and sealed.copy().encode() is packed
    )
    assert not sealed.opened
    assert sealed.tree("model")["w"].tolist() == [0, 1, 2, 3] and sealed.opened
    assert sealed.equal(Payload.decode(packed)) and len(Payload.sealed(b"")) == 0


def test_what_is_written_into_an_opened_payload_is_packed() -> None:
    sealed = Payload.sealed(Payload(w=torch.zeros(2)).encode())
    sealed.tensor("w").add_(1)
    assert Payload.decode(sealed.encode()).tensor("w").tolist() == [1, 1]
    assert sealed.copy().tensor("w").tolist() == [1, 1]


def test_a_bytearray_is_the_payload_s_own() -> None:
    packed = bytearray(Payload(w=torch.zeros(2), e=torch.zeros(0)).encode())
    sealed = Payload.sealed(packed)
    other, packed_too = sealed.copy(), sealed.encode()
    sealed.tensor("w").add_(1)
    assert Payload.decode(packed).tensor("w").tolist() == [1, 1], "nothing was copied out of it"
    assert other.tensor("w").tolist() == [0, 0] and Payload.decode(packed_too).tensor(
        "w"
    ).tolist() == [0, 0]


def test_a_payload_may_be_sealed_in_another() -> None:
    inner = Payload(a=1)
    outer = Payload.sealed(inner)
    assert not outer.opened and outer.number("a") == 1 and outer.opened and outer.equal(inner)


def test_a_mark_tells_the_very_same_tensors_from_equal_ones() -> None:
    w = torch.zeros(3)
    one = Payload(w=w, n=1)
    assert one.mark() == Payload(w=w, n=1).mark()
    others = [
        Payload(w=w.clone(), n=1),
        Payload(w=w, n=2),
        Payload(w=w, n=True),
        Payload(w=w, m=1),
        Payload(w=w),
    ]
    assert one.mark() not in [other.mark() for other in others]
    assert Payload(n=0.0).mark() != Payload(n=-0.0).mark()
    sealed = Payload.sealed(one.encode())
    assert sealed.mark() == sealed.mark() != one.mark() and not sealed.opened


def test_a_mark_changes_when_a_tensor_is_written_to() -> None:
    w = torch.zeros(3)
    before = Payload(w=w).mark()
    w[0] = 1
    assert Payload(w=w).mark() != before
    with torch.inference_mode():  # whose tensors cannot tell
        v = torch.zeros(3)
    assert Payload(v=v).mark() != Payload(v=v).mark()

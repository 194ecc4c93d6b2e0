"""Payloads as Flower's records: exact, on the wire too, and nothing is believed that was sent."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.executors.flower.codec import DTYPES, from_records, to_records
from fedloom.executors.flower.wire import size


def wired(payload: Payload) -> Payload:
    """Through the bytes that Flower sends."""
    arrays, scalars = to_records(payload)
    content = RecordDict({"payload": arrays, "scalars": scalars})
    objects = {i: o.deflate() for i, o in get_all_nested_objects(content).items()}
    again = inflate_object_from_contents(content.object_id, objects)
    return from_records(again["payload"], again["scalars"])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (2, 3, 5)])
def test_every_type_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    payload = Payload(a=(100 * torch.randn(shape)).to(dtype), b=torch.ones(2, 3).t())
    again = wired(payload)
    assert (
        again.equal(payload)
        and again.tensor("a").dtype == dtype
        and again.tensor("a").shape == shape
    )


def test_floats_that_are_no_numbers_come_back_bit_by_bit() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45, 3.4e38])
    again = wired(Payload(a=odd, x=float("-inf"), y=1e-320)).copy()
    assert again.tensor("a").view(torch.int32).tolist() == odd.view(torch.int32).tolist()
    assert (again["x"], again["y"]) == (float("-inf"), 1e-320)


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1).filter(
    lambda n: n != "__metadata__"
)
scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]))
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, scalars))
def test_scalars_keep_value_and_type(items: dict) -> None:
    again = wired(Payload(items))
    assert dict(again) == items
    assert {n: type(v) for n, v in again.items()} == {n: type(v) for n, v in items.items()}


def test_too_large_a_number_is_named() -> None:
    with pytest.raises(FedloomError, match=r"'n' = .* 64 bits"):
        to_records(Payload(n=2**63))


def test_the_size_is_that_of_the_whole_message() -> None:
    arrays, scalars = to_records(Payload(a=torch.zeros(1000), b=3))
    content = RecordDict({"payload": arrays, "scalars": scalars})
    plain = size(content)
    assert 4000 <= plain <= 4300
    content["text"] = ConfigRecord({"why": "x" * 1000, "bytes": b"x" * 1000, "l": ["xy"] * 500})
    content["n" * 1000] = MetricRecord({"m" * 1000: [1.0] * 125})
    assert plain + 6000 <= size(content) <= plain + 6100


@pytest.mark.parametrize(
    "head",
    [
        b"PK\x03\x04",  # a zip, which numpy.load would open
        b"\x80\x05",  # a pickle
        b"\x93NUMPY\x03\x00",
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x93NUMPY\x01\x00\x10\x00" + b"[" * 16,
        b"\x93NUMPY\x01\x00\x10\x00" + b"{" * 16,
    ],
)
@pytest.mark.parametrize("length", [8, 128, 4000])
def test_nothing_but_an_array_is_opened(head: bytes, length: int) -> None:
    data = head + bytes(max(0, length - len(head)))
    lie = Array("float32", (max(1, (len(data) - 16) // 4),), "numpy.ndarray", data)
    with pytest.raises(FedloomError, match="but is not"):
        from_records(ArrayRecord({"w": lie}), ConfigRecord())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_an_array_with_any_bytes_changed_is_an_array_or_refused(data) -> None:
    whole = bytearray(Array(np.arange(6, dtype=np.float32).reshape(2, 3)).data)
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    lie = Array("float32", (2, 3), "numpy.ndarray", bytes(whole))
    try:
        again = from_records(ArrayRecord({"w": lie}), ConfigRecord())
    except FedloomError:
        return
    assert again.tensor("w").shape == (2, 3) and again.tensor("w").dtype == torch.float32


def test_an_array_in_fortran_order_is_read_as_it_is() -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert b"'fortran_order': True" in Array(array).data
    again = from_records(ArrayRecord({"w": Array(array)}), ConfigRecord())
    assert again.tensor("w").tolist() == array.tolist()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (Array("float32", (1000000,), "numpy.ndarray", b"\x93NUMPY"), "6 bytes"),
        (Array("float32", (2,), "pickle", b"\0" * 8), "written as 'pickle'"),
        (Array("object", (2,), "numpy.ndarray", b"\0" * 8), "array of object"),
        (Array("bfloat16", (2,), "fedloom.bits", b"\0" * 5), "5 bytes"),
        (Array("float32", (-1,), "numpy.ndarray", b""), "no tensor"),
        (
            Array("float32", (3,), "numpy.ndarray", Array(np.zeros(3, dtype=np.int32)).data),
            r"<i4 of shape \(3,\) inside",
        ),
        (
            Array("float32", (2,), "numpy.ndarray", Array(np.zeros(3, dtype=np.float32)).data),
            r"\(3,\) inside",
        ),
    ],
)
def test_an_array_that_lies_is_refused(array: Array, said: str) -> None:
    with pytest.raises(FedloomError, match=said):
        from_records(ArrayRecord({"w": array}), ConfigRecord())


def test_objects_are_never_unpickled() -> None:
    import io

    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FedloomError):
        from_records(
            ArrayRecord({"w": Array("float32", (1,), "numpy.ndarray", file.getvalue())}),
            ConfigRecord(),
        )


def test_a_list_or_a_name_given_twice_is_refused() -> None:
    with pytest.raises(FedloomError, match="'w' is a list"):
        from_records(ArrayRecord(), ConfigRecord({"w": [1, 2]}))
    with pytest.raises(FedloomError, match="'w' is sent twice"):
        from_records(
            ArrayRecord({"w": Array(np.zeros(1, dtype=np.float32))}), ConfigRecord({"w": 1})
        )

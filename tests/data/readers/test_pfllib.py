"""PFLlib's folders are read as they are written, and no pickle gets to run anything."""

from __future__ import annotations

import builtins
import codecs
import io
import json
import os
import pickle
import subprocess
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.lib import format as npy

from fedloom.core.errors import FedloomError
from fedloom.data.federation import federate
from fedloom.data.readers.pfllib import read_pfllib
from fedloom.data.readers.pickles import ALLOWED

Samples = Callable[[int], dict[str, Any]]


def images(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    return {"x": rng.random((n, 1, 4, 4)).astype(np.float32), "y": rng.integers(0, 3, n)}


def folder(path: Path, make: Samples = images, clients: int = 3, classes: int = 3) -> Path:
    """As PFLlib's `save_file` writes it."""
    config = {
        "num_clients": clients,
        "num_classes": classes,
        "non_iid": True,
        "balance": False,
        "partition": "dir",
    }
    (path / "train").mkdir(parents=True)
    (path / "test").mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for k in range(clients):
        for part, n in (("train", 6 + k), ("test", 2 + k)):
            with open(path / part / f"{k}.npz", "wb") as f:
                np.savez_compressed(f, data=make(n))
    return path


def hand_made(path: Path, pickled: bytes) -> None:
    """A client's file around these pickled bytes."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": ()})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", stream.getvalue() + pickled)


def test_clients_and_parts_are_kept(tmp_path: Path) -> None:
    data = read_pfllib(folder(tmp_path / "a"), name="mnist")
    assert data.owner is not None
    assert data.x.dtype == torch.float32 and data.x.shape == (6 + 7 + 8 + 2 + 3 + 4, 1, 4, 4)
    assert (
        data.classes == ("0", "1", "2") and data.domains == ("mnist",) and data.vocabulary is None
    )
    for k in range(3):
        for part, n in ((False, 6 + k), (True, 2 + k)):
            mine = (data.owner == k) & (data.test == part)
            assert torch.equal(data.x[mine], torch.from_numpy(images(n)["x"]))
            assert torch.equal(data.y[mine], torch.from_numpy(images(n)["y"]))
    assert len(federate(data, "iid", clients=2)) == 2


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (np.ones((4, 3, 2, 2)), torch.float32),
        (np.ones((4, 3, 2, 2), dtype=">f8"), torch.float32),
        (np.asfortranarray(np.arange(24.0).reshape(4, 6)), torch.float32),
        (np.ones((4, 3, 2, 2), dtype=np.uint8), torch.uint8),
        (np.ones((4, 3, 2, 2), dtype=np.int64), torch.float32),
        (np.ones((4, 9), dtype=np.int32), torch.int64),
        (np.ones((4, 9), dtype=np.float16), torch.float32),
        ([[1.5, 2.0]] * 4, torch.float32),
        ([np.float32(1)] * 4, torch.float32),
        ([np.ones(3)] * 4, torch.float32),
        (np.array([([1, 2, 0], 3)] * 4, dtype=object), torch.int64),  # PFLlib's AG News
    ],
)
def test_kinds_of_samples(tmp_path: Path, x: Any, dtype: torch.dtype) -> None:
    data = read_pfllib(
        folder(tmp_path / "a", lambda n: {"x": x, "y": np.zeros(4, int)}, clients=1), name="a"
    )
    assert data.x.dtype == dtype
    plain = (
        np.array([row for row, _ in x])
        if isinstance(x, np.ndarray) and x.dtype == object
        else np.array(x)
    )
    assert np.array_equal(data.x[:4].numpy(), plain.astype(data.x[:4].numpy().dtype))
    assert data.vocabulary == (int(plain.max()) + 1 if dtype == torch.int64 else None)


@pytest.mark.parametrize("protocol", range(6))
def test_every_pickle_protocol(tmp_path: Path, protocol: int) -> None:
    path = folder(tmp_path / "a", clients=1)
    held = np.empty((), dtype=object)
    held[()] = images(6) | {"n": np.int64(3)}
    hand_made(path / "train" / "0.npz", pickle.dumps(held, protocol=protocol))
    assert torch.equal(read_pfllib(path, name="a").x[:6], torch.from_numpy(images(6)["x"]))


def test_arrays_of_numpy_1(tmp_path: Path) -> None:
    path = folder(tmp_path / "a", clients=1)
    held = np.empty((), dtype=object)
    held[()] = images(6)
    old = pickle.dumps(held, protocol=3).replace(
        b"cnumpy._core.multiarray", b"cnumpy.core.multiarray"
    )
    hand_made(path / "train" / "0.npz", old)
    assert torch.equal(read_pfllib(path, name="a").x[:6], torch.from_numpy(images(6)["x"]))


class Call:
    """Pickles as a call of `what`."""

    def __init__(self, what: Any, *args: Any, state: Any = None) -> None:
        self.reduced = (what, args) if state is None else (what, args, state)

    def __reduce__(self) -> Any:
        return self.reduced


def boxed(value: Any) -> bytes:
    held = np.empty((), dtype=object)
    held[()] = value
    return pickle.dumps(held, protocol=4)


RECONSTRUCT = np.empty(0).__reduce__()[0]
SCALAR = np.float64(0).__reduce__()[0]


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize(
    ("what", "args", "named"),
    [
        (os.system, ("touch {mark}",), f"{os.system.__module__}.system"),
        (builtins.eval, ("open('{mark}', 'w')",), "builtins.eval"),
        (builtins.exec, ("open('{mark}', 'w')",), "builtins.exec"),
        (builtins.open, ("{mark}", "w"), "io.open|_io.open"),
        (builtins.getattr, ({}, "keys"), "builtins.getattr"),
        (subprocess.Popen, (["touch", "{mark}"],), "subprocess.Popen"),
        (pickle.loads, (pickle.dumps(0),), "_pickle.loads"),
        (np.load, ("{mark}",), "numpy.load"),
        (np.fromfile, ("{mark}",), "fromfile"),
        (OrderedDict, (), "collections.OrderedDict"),
        (codecs.decode, (b"x", "hex"), "_codecs.decode"),
    ],
)
def test_other_callables_are_refused(
    tmp_path: Path, what: Any, args: tuple[Any, ...], named: str, inside: bool
) -> None:
    path, mark = folder(tmp_path / "a", clients=1), tmp_path / "mark"
    filled = [
        arg.replace("{mark}", str(mark)) if isinstance(arg, str)
        else [part.replace("{mark}", str(mark)) for part in arg] if isinstance(arg, list)
        else arg
        for arg in args
    ]  # fmt: skip
    evil = Call(what, *filled)
    file = path / "test" / "0.npz"
    if inside:
        np.savez_compressed(file, data={"x": evil, "y": [0]})
    else:
        hand_made(file, pickle.dumps(evil))
    with pytest.raises(FedloomError, match=rf"asks for \S*({named}), .*refused") as error:
        read_pfllib(path, name="a")
    assert str(file) in str(error.value)
    assert not mark.exists()


@pytest.mark.parametrize(
    "evil",
    [
        Call(codecs.encode, "text", "rot13"),
        Call(codecs.encode, "text", "idna"),
        Call(codecs.encode, b"x" * 10, "zlib"),
        Call(codecs.encode, {"x": 1}, "latin1"),
        Call(codecs.encode, "text"),
        Call(np.ndarray, (2**40,)),
        Call(np.ndarray, (1,), np.dtype("O"), b"\x01" * 8),
        Call(RECONSTRUCT, list, (0,), b"b"),
        Call(RECONSTRUCT, np.dtype, (0,), b"b"),
        Call(
            RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (1,), np.dtype("O"), False, b"\x01" * 8)
        ),
        Call(
            RECONSTRUCT,
            np.ndarray,
            (0,),
            b"b",
            state=(1, (2**50,), np.dtype("f8"), False, b"\x01" * 8),
        ),
        Call(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (2**50,), np.dtype("O"), False, [1])),
        Call(RECONSTRUCT, np.ndarray, (0,), b"b", state={"__class__": 1}),
        Call(
            np.dtype,
            "f8",
            False,
            True,
            state=(3, "<", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0),
        ),
        Call(np.dtype, "O8,i4"),
        Call(np.dtype, "V8"),
        Call(np.dtype, [("a", "O")]),
        Call(SCALAR, np.dtype("O"), b"\x01" * 8),
        Call(SCALAR, "O", b"\x01" * 8),
        np.zeros(3, dtype=[("a", "i4")]),
        np.array(["a", "b"]),
        np.array(["2020-01-01"], dtype="M8[D]"),
    ],
)
def test_allowed_callables_cannot_be_abused(tmp_path: Path, evil: Any) -> None:
    path = folder(tmp_path / "a", clients=1)
    hand_made(path / "test" / "0.npz", boxed({"x": evil, "y": [0]}))
    with pytest.raises(FedloomError, match=r"test/0\.npz"):
        read_pfllib(path, name="a")


@pytest.mark.parametrize(("module", "name"), list(ALLOWED))
@pytest.mark.parametrize(
    "state", [b"}X\x05\x00\x00\x00arrayK\x01s", b"N}X\x05\x00\x00\x00arrayK\x01s\x86"]
)
def test_no_pickle_changes_the_reader(tmp_path: Path, module: str, name: str, state: bytes) -> None:
    path = folder(tmp_path / "a", clients=1)
    stand_in = ALLOWED[module, name]
    before = dict(vars(stand_in))
    hand_made(
        path / "test" / "0.npz", b"\x80\x02c" + f"{module}\n{name}\n".encode() + state + b"b."
    )
    with pytest.raises(FedloomError, match=r"test/0\.npz"):
        read_pfllib(path, name="a")
    assert dict(vars(stand_in)) == before


def test_a_list_that_holds_itself(tmp_path: Path) -> None:
    path, ring = folder(tmp_path / "a", clients=1), list[Any]()
    ring.append(ring)
    hand_made(path / "test" / "0.npz", boxed({"x": ring, "y": [0]}))
    with pytest.raises(FedloomError, match="arrays of numbers"):
        read_pfllib(path, name="a")


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    path = folder(tmp_path / "a", clients=20)
    file = path / "train" / "7.npz"
    whole = file.read_bytes()

    def refused(sentence: str) -> None:
        with pytest.raises(FedloomError, match=sentence) as error:
            read_pfllib(path, name="a")
        assert str(file) in str(error.value)

    file.unlink()
    refused("missing, though config.json says there are 20 clients")
    for cut in (
        whole[: len(whole) // 2],
        whole[:10],
        b"",
        whole[:150] + b"\xff" * 60 + whole[210:],
    ):
        file.write_bytes(cut)
        refused("damaged or cut short")
    hand_made(file, boxed(images(3))[:-20])
    refused("damaged or cut short")
    np.savez_compressed(file, x=np.ones(3))
    refused(r"wants one entry, data; found x\.npy")
    np.savez_compressed(file, data=np.ones(3))
    refused("must be one dictionary, found an array of float64")
    for held, sentence in (
        ([1, 2], "must be one dictionary|wants a dictionary"),
        ({"x": np.ones(3)}, "wants a dictionary with x and y"),
        (images(4) | {"y": np.zeros(3, int)}, r"x has shape \(4, 1, 4, 4\) and y \(3,\)"),
        (images(4) | {"y": np.zeros(4)}, "whole numbers, found float64"),
        (
            images(4) | {"y": np.array([0, 1, 2, 3])},
            "between 0 and 2, as config.json has 3 classes",
        ),
        (images(4) | {"x": np.ones((4, 1, 5, 5))}, r"shape \(1, 5, 5\), those before"),
        (images(4) | {"x": "four"}, "arrays of numbers"),
        (images(4) | {"x": [[1], [1, 2], [1], [1]]}, "arrays of numbers"),
        ({"x": np.full((2, 3), -1), "y": [0, 0]}, "must not be negative"),
    ):
        np.savez_compressed(file, data=held)
        refused(sentence)


def test_a_client_without_test_samples(tmp_path: Path) -> None:
    path = folder(tmp_path / "a")
    np.savez_compressed(path / "test" / "1.npz", data={"x": np.array([]), "y": np.array([])})
    data = read_pfllib(path, name="a")
    assert data.owner is not None and not int(((data.owner == 1) & data.test).sum())


@pytest.mark.parametrize(
    "content", ["", "[1]", '{"num_clients": 3}', '{"num_clients": "3", "num_classes": 3}']
)
def test_wrong_config(tmp_path: Path, content: str) -> None:
    path = folder(tmp_path / "a")
    (path / "config.json").write_text(content)
    with pytest.raises(FedloomError, match=r"config\.json: (cannot be read|wants num_cl)"):
        read_pfllib(path, name="a")
    (path / "config.json").unlink()
    with pytest.raises(FedloomError, match="no such file"):
        read_pfllib(path, name="a")

"""Data files from a stranger: bombs, lies about sizes, and numbers that are not finite."""

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz import ROOM, peak
from PIL import Image

from fedloom.core.errors import FedloomError
from fedloom.data.dataset import Dataset
from fedloom.data.federation import Client, Federation
from fedloom.data.readers.arrays import Npz
from fedloom.data.readers.base import Reader, Source, read_with
from fedloom.data.readers.huggingface import HuggingFace
from fedloom.data.readers.pfllib import PFLlib
from fedloom.data.readers.pixels import decoded_image
from fedloom.data.readers.sparse import Sparse
from fedloom.data.readers.tables import Csv


def read(reader: Reader, path: Path) -> Any:
    return read_with(reader, str(path), "x", Source(), None)


@pytest.fixture(autouse=True)
def bounded() -> Any:
    """No case may take more than 500 MB on top."""
    before = peak()
    yield
    assert peak() - before < ROOM


def npy(shape: tuple[int, ...], body: bytes, dtype: str = "<f4") -> bytes:
    """An array file that claims a shape."""
    stream = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + body


def npz(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(f"{name}.npy", data)
    return path


LABELS = npy((2,), bytes(16), "<i8")
SPARSE = {"data": npy((1,), b"\0\0\x80\x3f"), "indices": npy((1,), bytes(8), "<i8")}


@pytest.mark.parametrize("shape", [(2, 2**32), (2**40, 2), (2**62,), (3, 2)])
def test_an_array_that_lies_about_its_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    lie = npy(shape, bytes(16))
    entries = {"x_train": lie, "y_train": LABELS, "x_test": lie, "y_test": LABELS}
    with pytest.raises(FedloomError, match="x_train has 16 bytes, but says"):
        read(Npz(), npz(tmp_path / "a.npz", entries))
    with pytest.raises(FedloomError, match="d_train_data has 16 bytes, but says"):
        read(Sparse(), npz(tmp_path / "b.npz", {"d_train_data": lie, "d_train_indptr": LABELS}))


def test_a_zip_that_unpacks_to_far_more(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x_train.npy", "w", force_zip64=True) as entry,
    ):
        entry.write(npy((1 << 26, 4), b""))
        for _ in range(300):
            entry.write(bytes(1 << 20))
    assert path.stat().st_size < 2 << 20
    with pytest.raises(FedloomError, match="would unpack to more than"):
        read(Npz(), path)


def test_a_gzip_that_unpacks_to_far_more(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    with gzip.open(path, "wb") as stream:
        stream.write(b"label,text\n0,")
        for _ in range(300):
            stream.write(bytes(1 << 20))
    with pytest.raises(FedloomError, match="would unpack to more than"):
        read(Csv(), path)


@pytest.mark.parametrize(("rows", "text"), [(20_000_000, "x"), (1000, "x" * 1_000_000)])
def test_a_parquet_that_unpacks_to_far_more(rows: int, text: str, tmp_path: Path) -> None:
    """Columns are stored as runs of entries of a dictionary."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("datasets")
    path = tmp_path / "train.parquet"
    once = arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(1000, np.int8)), [text])
    columns = {"label": arrow.array(np.zeros(1000, np.int8)), "text": once}
    part = arrow.table(columns)
    whole = arrow.concat_tables([part] * (rows // 1000))
    parquet.write_table(whole, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(FedloomError, match="would unpack to more than"):
        read(HuggingFace(), path)


def test_an_image_that_unpacks_to_far_more_than_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("P", (7000, 7000)).save(path)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(FedloomError, match=r"7000x7000 pixels are too many for \d+ bytes"):
        decoded_image(path)
    Image.new("P", (5000, 5000)).save(path)
    assert decoded_image(path).size == (5000, 5000)


def test_a_dicom_file_that_is_packed_as_a_whole() -> None:
    """pydicom unpacks it when it opens the file, so that nobody could look at sizes before."""
    pytest.importorskip("pydicom")
    from pydicom.dataset import Dataset as Elements
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    elements, stream = Elements(), io.BytesIO()
    elements.file_meta = FileMetaDataset()
    elements.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    elements.file_meta.MediaStorageSOPClassUID = elements.SOPClassUID = "1.2.3"
    elements.file_meta.MediaStorageSOPInstanceUID = elements.SOPInstanceUID = "1.2.3.4"
    elements.PatientComments = "x" * 1_000_000
    elements.save_as(stream, enforce_file_format=True)
    assert len(stream.getvalue()) < 10_000
    with pytest.raises(FedloomError, match="it is deflated as a whole"):
        decoded_image(stream.getvalue())


def pfllib(folder: Path, data: bytes) -> Path:
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        npz(folder / part / "0.npz", {"data": npy((), data, "|O")})
    (folder / "config.json").write_text(json.dumps({"num_clients": 1, "num_classes": 2}))
    return folder


def as_object(value: Any) -> bytes:
    return pickle.dumps(np.array(value, dtype=object), protocol=4)


@pytest.mark.parametrize("put", [b"r\xff\xff\xff\x7f", b"p1000000000\n"])
def test_a_pickle_with_a_huge_memo(put: bytes, tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match="memo is larger than the file"):
        read(PFLlib(), pfllib(tmp_path, b"\x80\x04]" + put + b"."))


def test_a_pickle_that_multiplies_its_lists(tmp_path: Path) -> None:
    value: Any = [1] * 10
    for _ in range(12):
        value = [value] * 10
    with pytest.raises(FedloomError, match="more numbers than a file of this length"):
        read(PFLlib(), pfllib(tmp_path, as_object({"x": value, "y": [0, 1]})))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_honest_pickles_of_every_kind_are_read(protocol: int, tmp_path: Path) -> None:
    tokens = np.empty((300, 2), dtype=object)
    for row in range(300):
        tokens[row] = [list(range(row, row + 9)), 9]
    value = {"x": tokens, "y": np.arange(300) % 2}
    stored = pickle.dumps(np.array(value, dtype=object), protocol=protocol)
    data = read(PFLlib(), pfllib(tmp_path, stored))
    assert data.x.shape == (600, 9) and data.x[299].tolist() == list(range(299, 308))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_with_their_row(odd: float, tmp_path: Path) -> None:
    x = np.ones((6, 3), dtype=np.float32)
    x[4, 1] = odd
    y = np.arange(6) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    with pytest.raises(FedloomError, match=r"a\.npz: x_train: sample 4 .*not finite"):
        read(Npz(), tmp_path / "a.npz")
    with pytest.raises(FedloomError, match=r"sample 4 .*not finite"):
        read(PFLlib(), pfllib(tmp_path / "pfllib", as_object({"x": x, "y": y})))
    csr = {"data": x[4], "indices": np.arange(3), "indptr": np.array([0, 0, 3]), "y": y[:2]}
    parts = {f"d_{p}_{k}": v for p in ("train", "test") for k, v in csr.items()}
    np.savez(tmp_path / "s.npz", **parts)
    with pytest.raises(FedloomError, match=r"s\.npz: d_train: row 1 .*not finite"):
        read(Sparse(), tmp_path / "s.npz")
    with pytest.raises(FedloomError, match="mine: sample 4 holds a number that is not finite"):
        own(torch.from_numpy(x))


def own(x: torch.Tensor, train: Any = None) -> Federation:
    n = len(x)
    zeros = torch.zeros(n, dtype=torch.int64)
    data = Dataset(x, zeros, zeros, zeros.bool(), ("a",), ("d",), "mine")
    rows = np.arange(n) if train is None else train
    return Federation(data, (Client(rows, np.arange(0), np.arange(0)),))


def test_large_finite_numbers_are_no_fault() -> None:
    assert len(own(torch.full((4, 1000), 3e38))) == 1
    assert len(own(torch.full((4, 1000), 6e4, dtype=torch.float16))) == 1


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (np.array([0, 9]), "client 0: train names sample 9, but mine has samples 0 to 3"),
        (np.array([-1]), "client 0: train names sample -1"),
        (np.array([0.0]), "must be a NumPy vector of sample numbers"),
        (np.array([[0]]), "must be a NumPy vector of sample numbers"),
        ([0, 1], "must be a NumPy vector of sample numbers"),
    ],
)
def test_rows_that_a_data_set_does_not_have(train: Any, said: str) -> None:
    with pytest.raises(FedloomError, match=said):
        own(torch.ones(4, 3), train)


def test_code_that_an_encoder_s_folder_brings_is_not_executed(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from fedloom.encoders.huggingface import load_model

    mark = tmp_path / "executed"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    (tmp_path / "evil.py").write_text(code)
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(FedloomError, match="cannot be loaded as a model"):
        load_model(tmp_path)
    assert not mark.exists()

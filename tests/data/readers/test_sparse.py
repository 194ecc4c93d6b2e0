"""Sparse rows give the same batches as the dense matrix would, here and in a worker process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.data.federation import federate
from fedloom.data.readers.sparse import SparseRows, read_sparse_npz
from fedloom.executors.shared import Parcel

REAL = os.environ.get("FEDLOOM_DATA")


def csr(dense: np.ndarray) -> dict[str, np.ndarray]:
    rows, columns = np.nonzero(dense)
    return {
        "data": dense[rows, columns].astype(np.float32),
        "indices": columns.astype(np.int16),
        "indptr": np.searchsorted(rows, np.arange(len(dense) + 1)).astype(np.int32),
    }


def sparse(dense: np.ndarray) -> SparseRows:
    return SparseRows(*(torch.from_numpy(a) for a in csr(dense).values()), width=dense.shape[1])


@pytest.fixture
def dense() -> np.ndarray:
    rng = np.random.default_rng(0)
    made = np.where(rng.random((40, 17)) < 0.2, rng.normal(size=(40, 17)), 0).astype(np.float32)
    made[[0, 7, 8, 39]] = 0  # empty rows, first and last among them
    return made


def test_batches_equal_the_dense_ones(dense: np.ndarray) -> None:
    rows, full = sparse(dense), torch.from_numpy(dense)
    for index in (
        torch.arange(40),
        torch.tensor([39, 3, 3, 0, 7, 8, 12]),
        torch.tensor([-1, -40, 5]),
        torch.tensor([], dtype=torch.int64),
        torch.tensor([7]),
        torch.tensor([1, 2], dtype=torch.int32),
        torch.arange(40) % 3 == 0,
        torch.tensor(5),
        slice(3, 11),
        slice(None, None, 4),
        slice(38, 100),
        6,
        -2,
    ):
        assert torch.equal(rows[index], full[index])
    assert rows[torch.arange(3)].dtype == rows.dtype == torch.float32
    assert (len(rows), rows.shape) == (40, (40, 17))
    assert rows.nbytes == 8 * int((dense != 0).sum()) + 41 * 8


def test_entries_named_twice_add_up() -> None:
    rows = SparseRows(torch.tensor([1.0, 2.0]), torch.tensor([1, 1]), torch.tensor([0, 2]), 3)
    assert rows[0].tolist() == [0, 3, 0]


@pytest.mark.parametrize(
    "index", [40, -41, torch.tensor([0, 40]), torch.zeros(2, 2, dtype=torch.int64)]
)
def test_rows_out_of_range(dense: np.ndarray, index: int | torch.Tensor) -> None:
    with pytest.raises(IndexError):
        sparse(dense)[index]


def test_iteration_ends(dense: np.ndarray) -> None:
    assert torch.equal(torch.stack(list(sparse(dense))), torch.from_numpy(dense))


@pytest.mark.parametrize(
    ("data", "indices", "indptr", "sentence"),
    [
        ([1.0], [0, 1], [0, 1], "one length"),
        ([1.0], [0], [0, 2], "from 0 to the number"),
        ([1.0], [0], [1, 1], "from 0 to the number"),
        ([1.0, 2.0], [0, 1], [0, 2, 1, 2], "must not fall"),
        ([1.0], [3], [0, 1], "between 0 and 2"),
        ([1.0], [-1], [0, 1], "between 0 and 2"),
    ],
)
def test_wrong_arrays(
    data: list[float], indices: list[int], indptr: list[int], sentence: str
) -> None:
    with pytest.raises(FedloomError, match=sentence):
        SparseRows(torch.tensor(data), torch.tensor(indices), torch.tensor(indptr), 3)


def test_worker_processes_share_the_rows(dense: np.ndarray) -> None:
    parcel = Parcel(sparse(dense))
    here, there = parcel.open(), parcel.open()
    index = torch.tensor([39, 3, 3, 0])
    assert torch.equal(here[index], torch.from_numpy(dense)[index])
    there.data *= 2  # what one writes the other sees: no copy was made
    assert torch.equal(here[index], 2 * torch.from_numpy(dense)[index])
    parcel.close()


def arrays(**sizes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    out = {}
    for domain in ("toys", "old_books"):
        for part, n in sizes.items():
            x = (rng.random((n, 9)) < 0.4) * rng.integers(1, 5, (n, 9))
            out |= {f"{domain}_{part}_{key}": value for key, value in csr(x).items()}
            out[f"{domain}_{part}_y"] = np.arange(n) % 2
            out[f"{domain}_{part}_x"] = x
    return out


def test_reading_a_file(tmp_path: Path) -> None:
    held = arrays(train=7, test=4)
    np.savez(tmp_path / "a.npz", **held)
    data = read_sparse_npz(tmp_path / "a.npz", name="a", width=9)
    assert data.domains == ("toys", "old_books")
    assert data.classes == ("negative", "positive")
    assert data.x.shape == (22, 9)
    for d, domain in enumerate(data.domains):
        for part in ("train", "test"):
            index = ((data.domain == d) & (data.test == (part == "test"))).nonzero().squeeze(1)
            assert torch.equal(data.x[index], torch.from_numpy(held[f"{domain}_{part}_x"]).float())
            assert data.y[index].tolist() == held[f"{domain}_{part}_y"].tolist()
    clients = federate(data, "iid", clients=2)
    assert clients.samples(0)[0].shape[1] == 9


def test_more_classes_are_numbered(tmp_path: Path) -> None:
    held = arrays(train=7, test=4)
    held["toys_test_y"] = np.array([0, 1, 2, 2])
    np.savez(tmp_path / "a.npz", **held)
    assert read_sparse_npz(tmp_path / "a.npz", name="a").classes == ("0", "1", "2")


def test_wrong_files(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"

    def refused(sentence: str, **changes: np.ndarray | None) -> None:
        held = arrays(train=7, test=4) | changes
        np.savez(file, **{key: value for key, value in held.items() if value is not None})
        with pytest.raises(FedloomError, match=sentence) as error:
            read_sparse_npz(file, name="a")
        assert str(file) in str(error.value)

    refused("toys_test_y missing", toys_test_y=None)
    refused("toys_test_indptr has 5 entries, 3 labels need 4", toys_test_y=np.arange(3))
    refused("vector of whole numbers from 0", toys_test_y=np.array([0, 1, -1, 0]))
    refused("vector of whole numbers from 0", toys_test_y=np.ones(4))
    refused("whole numbers", toys_test_indices=np.ones(3))
    refused(
        "toys_test: .*indptr must not fall|toys_test: .*from 0",
        toys_test_indptr=np.array([0, 9, 8, 7, 3]),
    )
    refused("plain arrays", toys_test_y=np.array([{}], dtype=object))
    np.savez(file, x=np.ones(3))
    with pytest.raises(FedloomError, match="found x"):
        read_sparse_npz(file, name="a")
    np.savez(file, **arrays(train=7, test=4))
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(FedloomError, match=r"a\.npz: not a readable"):
        read_sparse_npz(file, name="a")
    with pytest.raises(FedloomError, match="no such file"):
        read_sparse_npz(tmp_path / "b.npz", name="a")


@pytest.mark.skipif(not REAL, reason="FEDLOOM_DATA is not set: no real data")
def test_amazon_reviews() -> None:
    data = read_sparse_npz(Path(str(REAL)) / "amazon_reviews.npz", name="amazon_reviews")
    assert data.domains == ("books", "dvd", "electronics", "kitchen")
    assert data.classes == ("negative", "positive")
    assert data.x.shape == (27677, 5000)
    assert int((~data.test).sum()) == 8000
    assert data.x.nbytes < 20e6  # 554 MB if dense
    start = time.process_time()
    index = torch.randperm(len(data.x))[:32]
    for _ in range(100):
        batch = data.x[index]
    assert time.process_time() - start < 5
    assert batch.shape == (32, 5000) and int((batch > 0).sum()) > 32 * 20
    with np.load(Path(str(REAL)) / "amazon_reviews.npz") as stored:
        dvd = ((data.domain == 1) & data.test).nonzero().squeeze(1)
        assert float(data.x[dvd].sum()) == pytest.approx(float(stored["dvd_test_data"].sum()))
        assert data.y[dvd].tolist() == stored["dvd_test_y"].tolist()

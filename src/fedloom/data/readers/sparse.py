"""Rows of mostly zeros (bags of words), kept compressed and made dense one batch at a time."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...core.errors import FedloomError
from ..dataset import Dataset
from .archives import refuse_bombs
from .arrays import count_classes, is_sparse, npz_keys
from .base import READERS, Kind, Progress, Reader, Source
from .naming import plain_names

_KEY = re.compile(r"(?P<domain>.+)_(?P<part>train|test)_(?P<array>data|indices|indptr|y)")
_PARTS = ("train", "test")
_ARRAYS = ("data", "indices", "indptr", "y")


class SparseRows:
    """A matrix as CSR arrays.

    Row `i` has `data[indptr[i]:indptr[i + 1]]` in the columns `indices[...]`, else 0.
    """

    def __init__(self, data: Tensor, indices: Tensor, indptr: Tensor, width: int) -> None:
        self.data = data.to(torch.float32)
        self.indices = indices.to(torch.int32)
        self.indptr = indptr.to(torch.int64)
        self.width = width
        flat = self.data.ndim == self.indices.ndim == self.indptr.ndim == 1
        if not flat or len(self.data) != len(self.indices):
            raise FedloomError(
                "sparse rows: data and indices must be vectors of one length, indptr a vector."
            )
        if not len(self.indptr) or self.indptr[[0, -1]].tolist() != [0, len(self.data)]:
            raise FedloomError("sparse rows: indptr must go from 0 to the number of entries.")
        if bool((self.indptr.diff() < 0).any()):
            raise FedloomError("sparse rows: indptr must not fall.")
        if len(indices) and (int(self.indices.min()) < 0 or int(self.indices.max()) >= width):
            raise FedloomError(f"sparse rows: indices must lie between 0 and {width - 1}.")

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self), self.width

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        """Bytes in memory, compressed as they are."""
        return self.data.nbytes + self.indices.nbytes + self.indptr.nbytes

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, rows: Tensor | int | slice) -> Tensor:
        """The rows of these numbers (or of a mask), dense; a single number gives a vector."""
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(len(self)))
        rows = torch.as_tensor(rows)
        if rows.dtype == torch.bool:
            if rows.shape != (len(self),):
                raise IndexError(
                    f"the mask has shape {tuple(rows.shape)}, there are {len(self)} rows."
                )
            rows = rows.nonzero().squeeze(1)
        if rows.ndim > 1:
            raise IndexError("sparse rows take a vector of row numbers.")
        flat = rows.reshape(-1).to(torch.int64)
        if len(flat) and (int(flat.min()) < -len(self) or int(flat.max()) >= len(self)):
            raise IndexError(f"row numbers must lie between {-len(self)} and {len(self) - 1}.")
        dense = self._dense(torch.where(flat < 0, flat + len(self), flat))
        if rows.ndim == 0:
            return dense[0]
        return dense

    def take(self, rows: Tensor) -> SparseRows:
        """The rows of these numbers, still compressed."""
        at, counts = self._entries(rows)
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        return SparseRows(self.data[at], self.indices[at], indptr, self.width)

    def _entries(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Where the entries of some rows stand, and how many each row has."""
        first = self.indptr[rows]
        counts = self.indptr[rows + 1] - first
        # Entry e of the batch is entry e - (entries of the rows before) of its row.
        shift = torch.repeat_interleave(first - (counts.cumsum(0) - counts), counts)
        return torch.arange(len(shift)) + shift, counts

    def _dense(self, rows: Tensor) -> Tensor:
        at, counts = self._entries(rows)
        row = torch.repeat_interleave(torch.arange(len(rows)), counts)
        out = torch.zeros(len(rows) * self.width)
        # Entries named twice add up, as in SciPy.
        out.index_add_(0, row * self.width + self.indices[at], self.data[at])
        return out.view(len(rows), self.width)

    def tensors(self) -> tuple[Tensor, ...]:
        """What holds the rows, compressed as they are."""
        return self.data, self.indices, self.indptr


def read_sparse_npz(path: Path, *, name: str, width: int | None = None) -> Dataset:
    """A `.npz` with CSR arrays `<domain>_{train,test}_{data,indices,indptr}` and labels `..._y`.

    Domains come in the order stored. The rows are `width` wide, or as wide as the largest index
    asks for. Two classes are called negative and positive.
    """
    path = Path(path)
    arrays = _arrays(path)
    domains = tuple(dict.fromkeys(domain for domain, _, _ in arrays))
    data, indices, counts, ys, of, tests = [], [], [], [], [], []
    for d, domain in enumerate(domains):
        for part in _PARTS:
            values, columns, ends, y = _part(path, arrays, domain, part, width)
            data.append(values.astype(np.float32))
            indices.append(columns.astype(np.int32))
            counts.append(np.diff(ends.astype(np.int64)))
            ys.append(y.astype(np.int64))
            of.append(np.full(len(y), d))
            tests.append(np.full(len(y), part == "test"))
    columns = np.concatenate(indices)
    y = np.concatenate(ys)
    ends = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return Dataset(
        name=name,
        x=SparseRows(
            torch.from_numpy(np.concatenate(data)),
            torch.from_numpy(columns),
            torch.from_numpy(ends),
            width or int(columns.max(initial=0)) + 1,
        ),
        y=torch.from_numpy(y),
        domain=torch.from_numpy(np.concatenate(of)),
        test=torch.from_numpy(np.concatenate(tests)),
        classes=_classes(path, torch.from_numpy(y)),
        domains=domains,
    )


def _classes(path: Path, y: Tensor) -> tuple[str, ...]:
    classes = 1
    if len(y):
        classes = count_classes(path, y)
    if classes == 2:
        return "negative", "positive"
    return plain_names(classes)


def _arrays(path: Path) -> dict[tuple[str, str, str], np.ndarray]:
    """The arrays of a file by domain, part and name."""
    arrays = {}
    try:
        refuse_bombs(path)
        with np.load(path) as stored:  # refuses pickled arrays
            names = stored.files
            for key in names:
                match = _KEY.fullmatch(key)
                if match:
                    arrays[match["domain"], match["part"], match["array"]] = stored[key]
    except FileNotFoundError:
        raise FedloomError(f"{path}: there is no such file.") from None
    except FedloomError:
        raise
    except Exception as error:  # damaged bytes may raise anything
        raise FedloomError(
            f"{path}: not a readable .npz file of plain arrays ({error})."
        ) from error
    if not arrays:
        raise FedloomError(
            f"{path}: wants arrays <domain>_train_data, _indices, _indptr, _y and the same with "
            f"test; found {', '.join(names) or 'none'}."
        )
    return arrays


def _part(
    path: Path,
    arrays: dict[tuple[str, str, str], np.ndarray],
    domain: str,
    part: str,
    width: int | None,
) -> tuple[np.ndarray, ...]:
    """The values, columns, row ends and labels of one part of a domain, checked."""
    where = f"{domain}_{part}"
    missing = [f"{where}_{name}" for name in _ARRAYS if (domain, part, name) not in arrays]
    if missing:
        raise FedloomError(f"{path}: {', '.join(missing)} missing.")
    values, columns, ends, y = (arrays[domain, part, name] for name in _ARRAYS)
    if y.ndim != 1 or y.dtype.kind not in "iu" or (y.size and y.min() < 0):
        raise FedloomError(f"{path}: {where}_y must be a vector of whole numbers from 0.")
    if not np.isfinite(values.astype(np.float32)).all():
        entry = int(np.flatnonzero(~np.isfinite(values.astype(np.float32)))[0])
        row = int(np.searchsorted(ends, entry, side="right")) - 1
        raise FedloomError(f"{path}: {where}: row {row} holds a number that is not finite.")
    if columns.dtype.kind not in "iu" or ends.dtype.kind not in "iu":
        raise FedloomError(f"{path}: {where}_indices and {where}_indptr must be whole numbers.")
    if len(ends) != len(y) + 1:
        raise FedloomError(
            f"{path}: {where}_indptr has {len(ends)} entries, {len(y)} labels need {len(y) + 1}."
        )
    wide = width or int(columns.max(initial=0)) + 1
    try:
        SparseRows(
            torch.from_numpy(values), torch.from_numpy(columns), torch.from_numpy(ends), wide
        )
    except (FedloomError, TypeError) as error:
        raise FedloomError(f"{path}: {where}: {error}") from error
    return values, columns, ends, y


@READERS.register("sparse")
class Sparse(Reader):
    """An .npz file of sparse rows."""

    order = 10

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".npz" and path.is_file() and is_sparse(npz_keys(path))

    def kind(self, path: str) -> Kind:
        return "sparse"

    def read(self, path: str, name: str, source: Source, progress: Progress | None) -> Dataset:
        return read_sparse_npz(Path(path), name=name)

"""The tensors of a TorchScript archive, in which OpenAI publishes CLIP, without its program.

Such an archive holds compiled code and a pickle of the modules that it belongs to. Here the code is
not looked at, and the pickle is read by an unpickler to which nothing exists but modules without
behaviour and tensors made of the bytes in the file.
"""

from __future__ import annotations

import io
import mmap
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..data.readers.pickles import StandIn, refuse_large_memo

MODULES = 100_000  # that one network may have
LONGEST = 1000  # characters of a tensor's name
LARGEST_PICKLE = 64_000_000  # bytes; that of CLIP has some hundred thousand
DTYPES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.uint8,
}


def is_torchscript(archive: zipfile.ZipFile) -> bool:
    """Whether a zip file is what `torch.jit.save` writes: it holds constants beside the data."""
    names = archive.namelist()
    return any(name.count("/") == 1 and name.endswith("/constants.pkl") for name in names)


def tensors_of_archive(path: Path, archive: zipfile.ZipFile) -> dict[str, Tensor]:
    """The parameters and buffers of the archive's network, by their names."""
    names = archive.namelist()
    main = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(main) != 1:
        raise FedloomError(f"{path} is no TorchScript archive: it has {len(main)} data.pkl.")
    if archive.getinfo(main[0]).file_size > LARGEST_PICKLE:
        raise FedloomError(f"{path}: its description of the network is far too long.")
    content = archive.read(main[0])
    refuse_large_memo(content)
    folder = main[0].removesuffix("data.pkl")
    network = _Unpickler(content, path, _Storages(path, archive, f"{folder}data/")).load()
    return _tensors(network, path)


class _Storages:
    """The numbers of an archive, mapped into memory from where they lie in the file."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, folder: str) -> None:
        self._path = path
        self._archive = archive
        self._folder = folder
        with open(path, "rb") as file:
            # Private pages: torch wants memory that could be written to.
            self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def get(self, key: str, dtype: torch.dtype) -> Tensor:
        """All numbers of one storage."""
        entry = self._archive.getinfo(self._folder + key)
        if entry.compress_type != zipfile.ZIP_STORED:
            raise FedloomError(f"{self._path}: {entry.filename[:80]} is compressed.")
        # The header in front of the bytes has its own idea of how long its name and notes are.
        lengths = self._file[entry.header_offset + 26 : entry.header_offset + 30]
        name, notes = struct.unpack("<HH", lengths)
        start = entry.header_offset + 30 + name + notes
        if start + entry.file_size > len(self._file):
            raise FedloomError(f"{self._path} ends before its tensors do.")
        count = entry.file_size // dtype.itemsize
        if not count:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._file, dtype=dtype, count=count, offset=start)


class _Module(StandIn):
    """A module of the archive: what it has, and nothing that it could do."""

    def __init__(self, *args: object) -> None:
        self.state: dict[str, Any] = {}

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            raise ValueError("a module whose state has no names")
        self.state = state


class _Kind(StandIn):
    """A kind of storage, which a pickle names and never calls."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype


class _Storage(StandIn):
    """The numbers that tensors are views of."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers


class _Tensor(StandIn):
    """For `_rebuild_tensor_v2`: a view of a storage that has that many numbers."""

    def __init__(
        self, storage: object, offset: object, size: object, stride: object, *rest: object
    ) -> None:
        if not isinstance(storage, _Storage):
            raise ValueError("a tensor without storage")
        shape, steps, start = _whole(size), _whole(stride), _whole((offset,))[0]
        if len(shape) != len(steps):
            raise ValueError("a tensor whose shape and strides differ in length")
        last, count = start, 1
        for length, step in zip(shape, steps, strict=True):
            last += (length - 1) * step
            count *= length
        numbers = storage.numbers
        if count and (last >= numbers.numel() or count > numbers.numel()):
            raise ValueError("a tensor that is larger than its storage")
        self.tensor = numbers.as_strided(shape, steps, start) if count else numbers[:0].view(shape)


def _whole(values: object) -> list[int]:
    """Whole numbers that are not negative."""
    if not isinstance(values, tuple | list):
        raise ValueError("numbers expected")
    numbers = []
    for value in values:
        if type(value) is not int or not 0 <= value < 2**40:
            raise ValueError("a tensor of no possible shape")
        numbers.append(value)
    return numbers


class _Same(StandIn):
    """For functions that mark a tensor or a list: it stays what it is."""

    def __new__(cls, value: object = None, *rest: object) -> Any:
        return value


STAND_INS: dict[tuple[str, str], type[StandIn]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _Tensor,
    ("torch._utils", "_rebuild_parameter"): _Same,
    ("collections", "OrderedDict"): _Same,  # of hooks that tensors do not have
    ("torch.jit._pickle", "restore_type_tag"): _Same,
}
for _list in ("intlist", "doublelist", "boollist", "tensorlist"):
    STAND_INS["torch.jit._pickle", f"build_{_list}"] = _Same


class _Unpickler(pickle.Unpickler):
    """An unpickler to which nothing exists but stand-ins."""

    def __init__(self, content: bytes, path: Path, storages: _Storages) -> None:
        super().__init__(io.BytesIO(content))
        self._path = path
        self._storages = storages

    def find_class(self, module: str, name: str, /) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _Module
        if module == "torch" and name in DTYPES:
            return _Kind(DTYPES[name])
        if (module, name) not in STAND_INS:
            raise FedloomError(
                f"{self._path}: asks for {module}.{name}, which weights have no need of; refused."
            )
        return STAND_INS[module, name]

    def persistent_load(self, pid: Any, /) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) != 5 or not isinstance(pid[1], _Kind):
            raise ValueError("a reference to something that is no storage")
        return _Storage(self._storages.get(str(pid[2]), pid[1].dtype))


def _tensors(network: object, path: Path) -> dict[str, Tensor]:
    """The tensors of a module and of those inside it, as its `state_dict` would name them."""
    tensors: dict[str, Tensor] = {}
    pending = [("", network)]
    visited = 0
    while pending:
        prefix, module = pending.pop()
        visited += 1
        if visited > MODULES or len(prefix) > LONGEST:
            raise FedloomError(f"{path} describes more modules than a network has.")
        if not isinstance(module, _Module):
            continue
        for name, value in module.state.items():
            if isinstance(value, _Tensor):
                tensors[f"{prefix}{name}"] = value.tensor
            elif isinstance(value, _Module):
                pending.append((f"{prefix}{name}.", value))
    return tensors

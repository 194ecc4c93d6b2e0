"""Data that PFLlib has dealt out: `config.json`, and one `.npz` per client in `train` and `test`.

Those files are pickles, which are read as `pickles` says: nothing in them is run.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from ...core.errors import FedloomError
from ...core.files import read_regular
from ..dataset import Dataset
from .archives import refuse_bombs
from .base import READERS, Kind, Progress, Reader, Source
from .naming import plain_names
from .pickles import Array, numbers, unpickled

PARTS = ("train", "test")


def read_pfllib(path: Path, *, name: str) -> Dataset:
    """A folder made by PFLlib's `generate_*.py`.

    Every sample keeps its client (`owner`) and its part. Numbers become float32, bytes of images
    stay bytes, and token rows (whole numbers; or PFLlib's pairs of a row and its length) become
    int64.
    """
    path = Path(path)
    clients, classes = described(path / "config.json")
    xs: list[np.ndarray] = []
    ys: list[np.ndarray] = []
    owners = []
    tests = []
    for part in PARTS:
        for k in range(clients):
            file = path / part / f"{k}.npz"
            if not file.is_file():
                raise FedloomError(
                    f"{file}: missing, though config.json says there are {clients} clients."
                )
            x, y = _samples(file, classes)
            if xs and len(x) and (x.shape[1:] != xs[0].shape[1:] or x.dtype != xs[0].dtype):
                raise FedloomError(
                    f"{file}: samples are {x.dtype} of shape {x.shape[1:]},"
                    f" those before are {xs[0].dtype} of shape {xs[0].shape[1:]}."
                )
            if len(x):
                xs.append(x)
                ys.append(y)
                owners.append(np.full(len(y), k))
                tests.append(np.full(len(y), part == "test"))
    if not xs:
        raise FedloomError(f"{path}: no client has a sample.")
    x = np.concatenate(xs)
    tokens = None
    if x.dtype == np.int64:
        tokens = int(x.max()) + 1
    return Dataset(
        name=name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(np.concatenate(ys)),
        domain=torch.zeros(len(x), dtype=torch.int64),
        test=torch.from_numpy(np.concatenate(tests)),
        classes=plain_names(classes),
        domains=(name,),
        vocabulary=tokens,
        owner=torch.from_numpy(np.concatenate(owners)),
    )


def is_pfllib(path: Path) -> bool:
    """Whether this looks like such a folder."""
    return path.is_dir() and any((path / "train").glob("*.npz"))


def pfllib_kind(path: Path) -> Kind:
    """What the samples of the first client that has any are."""
    clients, classes = described(path / "config.json")
    for k in range(clients):
        x, _ = _samples(path / "train" / f"{k}.npz", classes)
        if len(x) and x.dtype == np.int64:
            return "text"
        if len(x) and x.ndim == 4:
            return "image"
        if len(x):
            return "vector"
    return "vector"


def described(file: Path) -> tuple[int, int]:
    """How many clients and classes PFLlib's `config.json` says there are."""
    try:
        config = json.loads(read_regular(file).decode())
    except FileNotFoundError:
        raise FedloomError(
            f"{file}: there is no such file; PFLlib writes it beside train and test."
        ) from None
    except (OSError, ValueError) as error:
        raise FedloomError(f"{file}: cannot be read ({error}).") from error
    if not isinstance(config, dict):
        config = {}
    for key in ("num_clients", "num_classes"):
        if type(config.get(key)) is not int or config[key] < 1:
            raise FedloomError(
                f"{file}: wants {key}, a whole number from 1, found {config.get(key)!r}."
            )
    return config["num_clients"], config["num_classes"]


def _samples(file: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The samples and labels of one client's file, of the types a `Dataset` holds."""
    stored, length = _unpickled(file)
    room = [length]  # every number takes a byte at least
    if not isinstance(stored, dict) or not {"x", "y"} <= stored.keys():
        raise FedloomError(f"{file}: wants a dictionary with x and y.")
    try:
        x = numbers(stored["x"], room)
        y = numbers(stored["y"], room)
    except (ValueError, TypeError, RecursionError) as error:
        raise FedloomError(f"{file}: x and y must be arrays of numbers ({error}).") from error
    if x.ndim < 1 or y.ndim != 1 or len(x) != len(y):
        raise FedloomError(
            f"{file}: x has shape {x.shape} and y {y.shape}; wants one label per sample."
        )
    if len(y) and y.dtype.kind not in "iu":
        raise FedloomError(f"{file}: labels must be whole numbers, found {y.dtype}.")
    if len(y) and (y.min() < 0 or y.max() >= classes):
        raise FedloomError(
            f"{file}: labels must lie between 0 and {classes - 1}, as config.json has {classes} "
            "classes."
        )
    if x.dtype.kind in "iu" and x.ndim == 2 and x.dtype != np.uint8:
        if x.size and x.min() < 0:
            raise FedloomError(f"{file}: token numbers must not be negative.")
        return x.astype(np.int64), y.astype(np.int64)
    if x.dtype != np.uint8 or x.ndim != 4:
        x = x.astype(np.float32)
    return x, y.astype(np.int64)


def _unpickled(file: Path) -> tuple[Any, int]:
    """What NumPy stored as the object `data` in a `.npz`, with stand-ins for its arrays.

    The number is the length of what is stored.
    """
    try:
        refuse_bombs(file)
        with zipfile.ZipFile(file) as archive:
            entries = archive.namelist()
            if "data.npy" not in entries:
                raise FedloomError(
                    f"{file}: wants one entry, data; found {', '.join(entries) or 'none'}."
                )
            stream = io.BytesIO(archive.read("data.npy"))
        version = npy.read_magic(stream)
        header = npy.read_array_header_2_0
        if version == (1, 0):
            header = npy.read_array_header_1_0
        shape, _, dtype = header(stream)
        if not dtype.hasobject or shape != ():
            raise FedloomError(
                f"{file}: data must be one dictionary, found an array of {dtype}, shape {shape}."
            )
        stored = unpickled(stream.read(), file)
        if (
            not isinstance(stored, Array)
            or not stored.array.dtype.hasobject
            or stored.array.shape != ()
        ):
            raise FedloomError(f"{file}: data must be one dictionary.")
        return stored.array.item(), stream.getbuffer().nbytes
    except FedloomError:
        raise
    except Exception as error:  # damaged bytes may raise anything
        why = " ".join(str(error).split())
        raise FedloomError(f"{file}: damaged or cut short, or not PFLlib's ({why}).") from error


@READERS.register("pfllib")
class PFLlib(Reader):
    """A PFLlib folder, which comes with its clients."""

    order = 20
    has_clients = True

    def recognises(self, path: Path) -> bool:
        return is_pfllib(path)

    def kind(self, path: str) -> Kind:
        return pfllib_kind(Path(path))

    def read(self, path: str, name: str, source: Source, progress: Progress | None) -> Dataset:
        return read_pfllib(Path(path), name=name)

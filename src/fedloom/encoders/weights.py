"""Files of weights: safetensors, torch's own and TorchScript archives.

Nothing in such a file is executed. A file that claims to hold more than its length is refused
before anything of that size is made.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..core.errors import FedloomError
from ..core.files import refuse_no_file
from .torchscript import is_torchscript, tensors_of_archive

# Where training scripts put the weights among other things.
WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
PARALLEL = "module."  # what torch's wrappers for several devices put in front of every name
SHARED = 3  # how often a tensor may be stored once and named again


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in a file by name; fractions have 32 bits, whatever the file gives them."""
    try:
        refuse_no_file(path)
        tensors = _plain(_read(path), path)
    except FedloomError:
        raise
    except FileNotFoundError:
        raise FedloomError(f"there is no file of weights {path}.") from None
    except Exception as error:  # torch raises many kinds; whatever it is, the file is what is wrong
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise FedloomError(
            f"{path} cannot be read as weights ({reason[:200]}); a file that holds more than "
            "tensors must be saved anew: torch.save(model.state_dict(), FILE)."
        ) from error
    _refuse_larger_than_file(tensors, path)
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            tensors[name] = tensor.to(torch.float32)
    return tensors


def _read(path: Path) -> Any:
    """What is in the file, read in the way of its format."""
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise FedloomError(f"{path} is no safetensors file: {error}.") from None
    if not zipfile.is_zipfile(path):  # as torch wrote until 2020, and wherever it is told to
        return torch.load(path, map_location="cpu", weights_only=True)
    with zipfile.ZipFile(path) as archive:
        if is_torchscript(archive):
            return tensors_of_archive(path, archive)
        _refuse_compressed(path, archive)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _refuse_compressed(path: Path, archive: zipfile.ZipFile) -> None:
    """Torch compresses no tensors; a file that does may unpack to anything."""
    unpacked = 0
    for entry in archive.infolist():
        unpacked += entry.file_size
        if entry.compress_type != zipfile.ZIP_STORED:
            raise FedloomError(f"{path}: {entry.filename[:80]} is compressed, as torch does not.")
    if unpacked > path.stat().st_size:
        raise FedloomError(f"{path} claims to hold {unpacked} bytes, more than it has.")


def _plain(content: Any, path: Path) -> dict[str, Tensor]:
    """The tensors by name, without what a training script puts round them."""
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    tensors = {}
    if isinstance(content, Mapping):
        for name, value in content.items():
            if isinstance(name, str) and isinstance(value, Tensor):
                tensors[name] = value.detach()
    if not tensors:
        raise FedloomError(f"{path} holds no tensors by name.")
    if all(name.startswith(PARALLEL) for name in tensors):
        tensors = {name.removeprefix(PARALLEL): tensor for name, tensor in tensors.items()}
    return tensors


def _refuse_larger_than_file(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that repeat a few stored numbers many times over."""
    claimed = 0
    for tensor in tensors.values():
        claimed += tensor.numel() * tensor.element_size()
    if claimed > SHARED * path.stat().st_size:
        raise FedloomError(
            f"{path}: its tensors would take {claimed} bytes, far more than the file has."
        )

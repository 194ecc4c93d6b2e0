"""Install each peer from the package index into its own environment in the cache folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fedloom.core.errors import FedloomError
from fedloom.data.catalogue import cache_folder


@dataclass(frozen=True)
class Peer:
    """Another library: what is installed, and what is installed without its own requirements."""

    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()
    version_of: str = ""  # the package whose version is reported


PEERS = {
    "flower": Peer("flower", ("flwr[simulation]",), version_of="flwr"),
    "pfl": Peer("pfl", ("pfl",), version_of="pfl"),
    # Of what fluke asks for, this is only what its engine imports. Its loggers and named data sets
    # need more, among it torchvision, each build of which fits one build of torch.
    "fluke": Peer(
        "fluke",
        (
            "cerberus",
            "diskcache",
            "matplotlib",
            "numpy",
            "omegaconf",
            "pandas",
            "psutil",
            "rich",
            "scikit-learn",
            "seaborn",
            "torchmetrics",
        ),
        alone=("fluke-fl",),
        version_of="fluke-fl",
    ),
    "pfllib": Peer("pfllib", ("h5py", "matplotlib", "numpy", "scikit-learn", "ujson")),
}


class PeerError(FedloomError):
    """A peer could not be installed or did not run."""


def installed(peer: Peer, say: Callable[[str], object] = lambda text: None) -> Path:
    """The interpreter of the peer's environment, which is made if it is not there."""
    folder = cache_folder() / "peers" / peer.name
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    wanted = {
        "packages": [f"torch=={torch.__version__.split('+')[0]}", *peer.packages],
        "alone": list(peer.alone),
        "python": sys.version.split()[0],
    }
    note = folder / "installed.json"  # written last: half an environment has none
    if note.exists() and json.loads(note.read_text()) == wanted:
        return python
    say(f"installing {peer.name} into {folder} (once)")
    shutil.rmtree(folder, ignore_errors=True)
    _do(peer, [sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _do(peer, [*pip, *wanted["packages"]])
    if peer.alone:
        _do(peer, [*pip, "--no-deps", *peer.alone])
    note.write_text(json.dumps(wanted))
    return python


def version(peer: Peer, python: Path) -> str | None:
    """Which version of the peer is there."""
    if not peer.version_of:
        return None
    code = f"from importlib.metadata import version; print(version({peer.version_of!r}))"
    return subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def _do(peer: Peer, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(
            f"{peer.name} could not be installed: {last_words(done.stderr or done.stdout)}"
        )


def last_words(text: str) -> str:
    """The line that most likely says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "ERROR" in line]
    return (told or lines or ["it said nothing"])[-1][:300]

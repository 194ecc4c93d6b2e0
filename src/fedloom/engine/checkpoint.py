"""Checkpoints: the server and all clients' states, written so that a kill loses nothing.

A checkpoint is a manifest `round-000007.json` that names safetensors files by their content. The
files are written first, each whole or not at all, and the manifest last. The previous manifest and
its files stay until the next one is written. A manifest holds a checksum of every file and one of
itself. Nothing is pickled. `Store.load` only reads; `tidy` and `save` remove what is damaged or not
needed.

The system keeps what a killed process has written; only a power cut loses what has not reached the
disk. Waiting for the disk in every round can take longer than the round (80 clients with 4 MB
each), so the store waits every `SYNC` seconds and at the end. The last checkpoint that is
certainly on the disk is kept too.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import CheckpointError
from ..core.files import sha256, sync, write_atomic
from ..core.payload import Payload

FORMAT = 2
KEEP = 2  # manifests
SYNC = 20.0  # seconds


@dataclass
class Checkpoint:
    """The run after a round."""

    round: int = 0
    server: Payload | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class _OtherFormat(CheckpointError):
    """The checkpoint is whole but of another format, so it must be neither skipped nor removed."""


class Store:
    """Clients' states: in memory or, given a folder, on disk as soon as they are checkpointed."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._unsaved: dict[int, Payload] = {}  # states that changed since the last checkpoint
        self._files: dict[int, str] = {}  # the file of every other client's state
        self._damaged: set[Path] = set()  # what `load` could not use, removed by `tidy` or `save`
        self._afloat: set[str] = set()  # files that may not be on the disk yet
        self._durable = ""  # the last manifest that is certainly on the disk
        self._synced = -math.inf  # when it was written

    def get(self, k: int) -> Payload:
        """Client `k`'s state; empty if it has none."""
        if k in self._unsaved:
            return self._unsaved[k]
        if k in self._files and self.folder:
            return Payload.sealed((self.folder / self._files[k]).read_bytes())
        return Payload()

    def put(self, k: int, state: Payload) -> None:
        """Remember client `k`'s state."""
        if state or k in self._unsaved or k in self._files:
            self._unsaved[k] = state

    @property
    def waiting(self) -> int:
        """Bytes of the states that changed since the last checkpoint."""
        return sum(state.nbytes for state in self._unsaved.values())

    def save(self, checkpoint: Checkpoint, last: bool = False) -> None:
        """Write a checkpoint and remove older ones; the `last` one is on the disk on return.

        If the disk is full, the checkpoint before this one stays as it was.
        """
        if self.folder is None:
            return
        durable = last or time.monotonic() - self._synced >= SYNC
        try:
            self._discard_damaged()
            files = self._write_states()
            manifest = self._write_manifest(checkpoint, files, durable)
        except OSError as error:
            raise CheckpointError(
                f"could not write the checkpoint of round {checkpoint.round}: "
                f"{error.strerror or error}; the one before it is intact, so the run can be "
                "resumed from there."
            ) from error
        if durable:
            self._afloat = set()
            self._durable = manifest
            self._synced = time.monotonic()
        self._files = files
        self._unsaved = {}
        self._discard_old()

    def load(self) -> Checkpoint:
        """Read the newest whole checkpoint; an empty one if there is none yet.

        A warning says so if a newer one is damaged. Nothing in the folder changes.
        """
        problems = []
        self._damaged = set()
        for path in reversed(self._manifests()):
            try:
                body, server = self._read(path)
            except _OtherFormat:
                raise
            except CheckpointError as error:
                problems.append(str(error))
                self._damaged.add(path)
                continue
            if problems:
                text = f"{' '.join(problems)} Going on from {path.name} instead."
                warnings.warn(text, stacklevel=2)
            self._unsaved = {}
            self._files = {int(k): name for k, name in body["clients"].items()}
            self._afloat = {body["server"], *self._files.values()}  # nobody knows
            return Checkpoint(body["round"], Payload.decode(server), body["extra"])
        if problems:
            raise CheckpointError(
                f"{' '.join(problems)} No whole checkpoint is left in {self.folder}; "
                "`fedloom run` with --fresh starts anew."
            )
        return Checkpoint()

    def roll_back(self, round: int) -> None:
        """Remove the checkpoints after a round, so that `load` reads the one of that round."""
        rounds = {}
        for path in self._manifests():
            number = path.stem.removeprefix("round-")
            if number.isdecimal():
                rounds[int(number)] = path
        if round not in rounds:
            there = ", ".join(map(str, sorted(rounds))) or "none"
            raise CheckpointError(
                f"{self.folder} has no checkpoint of round {round}; there are those of: {there}."
            )
        self._read(rounds[round])  # refuse a damaged one before any other is removed
        for number, path in rounds.items():
            if number > round:
                path.unlink()

    def tidy(self) -> None:
        """Remove what `load` found damaged, old checkpoints, and what a killed writer left."""
        if self.folder is not None:
            self._discard_damaged()
            self._discard_old()

    def _manifests(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.json")) if self.folder else []

    # -- writing ------------------------------------------------------------------------------
    def _write_states(self) -> dict[int, str]:
        files = dict(self._files)
        for k, state in self._unsaved.items():
            files[k] = self._write(state)
        return files

    def _write(self, payload: Payload) -> str:
        """Store a payload under its own checksum, unless it is there already."""
        assert self.folder is not None
        data = payload.encode()
        name = f"{sha256(data)}.safetensors"
        if not (self.folder / name).exists():
            write_atomic(self.folder / name, data, durable=False)
            self._afloat.add(name)
        return name

    def _write_manifest(self, checkpoint: Checkpoint, files: dict[int, str], durable: bool) -> str:
        """Write the manifest and return its name; `durable` puts all that it names on the disk."""
        assert self.folder is not None and checkpoint.server is not None
        body = {
            "format": FORMAT,
            "round": checkpoint.round,
            "server": self._write(checkpoint.server),
            "clients": {str(k): files[k] for k in sorted(files)},
            "extra": checkpoint.extra,
        }
        body = json.loads(json.dumps(body))  # as it will be read: keys are texts
        text = json.dumps({**body, "sha256": sha256(_canonical(body))}, indent=1)
        if durable:
            for name in sorted(self._afloat & _files_of(body)):
                sync(self.folder / name)
        manifest = f"round-{checkpoint.round:06d}.json"
        write_atomic(self.folder / manifest, text.encode(), durable)
        return manifest

    # -- reading ------------------------------------------------------------------------------
    def _read(self, path: Path) -> tuple[dict[str, Any], bytes]:
        """A manifest and the server's file, after checking all of its files."""
        assert self.folder is not None
        try:
            body = json.loads(path.read_bytes())
            claimed = body.pop("sha256")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CheckpointError(f"{path.name} is damaged (not readable).") from None
        if sha256(_canonical(body)) != claimed:
            raise CheckpointError(f"{path.name} is damaged (its checksum does not fit).")
        if body["format"] != FORMAT:
            age = "an older" if body["format"] < FORMAT else "a newer"
            raise _OtherFormat(
                f"{path.name} has format {body['format']}, from {age} version of fedloom; "
                f"this one reads {FORMAT}."
            )
        server = b""
        damaged = []
        for name in _files_of(body):
            file = self.folder / name
            data = file.read_bytes() if file.exists() else b""
            if f"{sha256(data)}.safetensors" != name:
                damaged.append(name)
                self._damaged.add(file)
            elif name == body["server"]:
                server = data
        if damaged:
            raise CheckpointError(
                f"{path.name} is damaged ({damaged[0][:12]}... is missing or its checksum does "
                "not fit)."
            )
        return body, server

    # -- removing -----------------------------------------------------------------------------
    def _discard_damaged(self) -> None:
        """Remove what `load` could not use, so that it is written anew and not taken for whole."""
        for path in self._damaged:
            path.unlink(missing_ok=True)
        self._damaged = set()

    def _discard_old(self) -> None:
        """Remove old manifests, files that no manifest names, and what a killed writer left."""
        assert self.folder is not None
        for path in self._manifests()[:-KEEP]:
            if path.name != self._durable:
                path.unlink()
        named: set[str] = set()
        for path in self._manifests():
            try:
                named |= _files_of(json.loads(path.read_bytes()))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        for file in self.folder.iterdir():
            if file.suffix == ".tmp" or (file.suffix == ".safetensors" and file.name not in named):
                file.unlink(missing_ok=True)


def _files_of(body: dict[str, Any]) -> set[str]:
    """The files that a manifest names."""
    return {body["server"], *body["clients"].values()}


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()

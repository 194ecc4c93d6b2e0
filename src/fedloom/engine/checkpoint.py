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
import re
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..core.errors import CheckpointError, FedloomError
from ..core.files import parse_object, read_regular, sha256, sync, write_atomic
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
    versions: dict[int, Payload] = field(default_factory=dict)  # earlier servers still in use


# What is written here, and so may be removed here: states, and what a killed writer left of them.
OURS = re.compile(r"[0-9a-f]{64}\.safetensors|\..*\.tmp|upload-\d+\.tmp")
# The name of a file: its checksum. No name leads out of the folder.
_FileName = Annotated[str, Field(pattern=r"^[0-9a-f]{64}\.safetensors$")]
_Number = Annotated[int, Field(ge=0, lt=2**31)]


class Manifest(BaseModel):
    """What a manifest says, checked before anything that it names is touched."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    round: Annotated[_Number, Field(strict=True)]
    server: _FileName
    clients: dict[_Number, _FileName]
    extra: dict[str, Any]
    versions: dict[_Number, _FileName] = {}

    @property
    def files(self) -> set[str]:
        """The files that it names."""
        return {self.server, *self.clients.values(), *self.versions.values()}


class _OtherFormat(CheckpointError):
    """The checkpoint is whole but of another format, so it must be neither skipped nor removed."""


class Store:
    """Clients' states: in memory or, given a folder, on disk as soon as they are checkpointed."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder and folder.is_symlink():
            # What is old or damaged is removed here, and a stranger's run may point anywhere.
            raise CheckpointError(f"{folder} is a link to another folder; put the folder here.")
        self.folder = folder
        self._unsaved: dict[int, Payload] = {}  # states that changed since the last checkpoint
        self._files: dict[int, str] = {}  # the file of every other client's state
        self._damaged: set[Path] = set()  # what `load` could not use, removed by `tidy` or `save`
        self._named: dict[str, set[str]] = {}  # the files that each manifest names
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
                manifest, server = self._read(path)
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
            self._files = dict(manifest.clients)
            self._afloat = manifest.files  # nobody knows
            versions = {number: self._version(name) for number, name in manifest.versions.items()}
            return Checkpoint(manifest.round, server, manifest.extra, versions)
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
        for later, path in rounds.items():
            if later > round:
                path.unlink()

    def tidy(self) -> None:
        """Remove what `load` found damaged, old checkpoints, and what a killed writer left."""
        if self.folder is not None:
            self._discard_damaged()
            self._discard_old()

    def _manifests(self) -> list[Path]:
        if self.folder is None:
            return []
        return sorted(path for path in self.folder.glob("round-*.json") if path.is_file())

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
        named = {str(body["server"]), *files.values()}
        if checkpoint.versions:
            versions = {str(n): self._write(kept) for n, kept in checkpoint.versions.items()}
            body["versions"] = versions
            named |= set(versions.values())
        body = json.loads(json.dumps(body))  # as it will be read: keys are texts
        text = json.dumps({**body, "sha256": sha256(_canonical(body))}, indent=1)
        if durable:
            for name in sorted(self._afloat & named):
                sync(self.folder / name)
        manifest = f"round-{checkpoint.round:06d}.json"
        self._named[manifest] = named
        write_atomic(self.folder / manifest, text.encode(), durable)
        return manifest

    # -- reading ------------------------------------------------------------------------------
    def _read(self, path: Path) -> tuple[Manifest, Payload]:
        """A manifest and the server's memory, after checking all of its files."""
        manifest = _parsed(path)
        self._named[path.name] = manifest.files
        server = None
        damaged = []
        for name in manifest.files:
            data = self._content(name)
            if data is None:
                damaged.append(name)
            elif name == manifest.server:
                server = data
        if damaged or server is None:
            raise CheckpointError(
                f"{path.name} is damaged ({damaged[0][:12]}... is missing or its checksum does "
                "not fit)."
            )
        try:
            return manifest, Payload.decode(server)
        except FedloomError as error:
            raise CheckpointError(f"{path.name} is damaged ({error}).") from None

    def _version(self, name: str) -> Payload:
        """An earlier server, whose file has been checked."""
        assert self.folder is not None
        return Payload.decode((self.folder / name).read_bytes())

    def _content(self, name: str) -> bytes | None:
        """What a file of the folder holds; None if it is not there, or not what its name says."""
        assert self.folder is not None
        file = self.folder / name
        try:
            data = read_regular(file)
        except OSError:
            return None
        if f"{sha256(data)}.safetensors" == name:
            return data
        self._damaged.add(file)
        return None

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
                named |= self._named.get(path.name) or _parsed(path).files
            except _OtherFormat:
                return  # nobody knows which files it names
            except CheckpointError:
                continue
        for file in self.folder.iterdir():
            if OURS.fullmatch(file.name) and file.name not in named and not file.is_dir():
                file.unlink(missing_ok=True)


def _parsed(path: Path) -> Manifest:
    """What a manifest says; whoever wrote it is not trusted."""
    try:
        body = parse_object(read_regular(path), path)
    except (FedloomError, OSError):
        raise CheckpointError(f"{path.name} is damaged (not readable).") from None
    claimed = body.pop("sha256", None)
    if sha256(_canonical(body)) != claimed:
        raise CheckpointError(f"{path.name} is damaged (its checksum does not fit).")
    if body.get("format") != FORMAT:
        raise _other_format(path, body.get("format"))
    try:
        return Manifest.model_validate(body)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise CheckpointError(
            f"{path.name} is damaged (its {place!r} is not what a checkpoint has there)."
        ) from None


def _other_format(path: Path, number: object) -> CheckpointError:
    if not isinstance(number, int):
        return CheckpointError(f"{path.name} is damaged (it names no format).")
    age = "an older" if number < FORMAT else "a newer"
    return _OtherFormat(
        f"{path.name} has format {number}, from {age} version of fedloom; this one reads {FORMAT}."
    )


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()

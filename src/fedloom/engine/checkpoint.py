"""What survives: the server and every client's state, written so that a kill at any moment loses nothing.

A checkpoint is a manifest `round-000007.json` that names safetensors files by content. Files are written first, each
whole or not at all, the manifest last; the previous manifest and its files stay until the one after. Every file is
checked against the manifest's checksum, the manifest against its own. Nothing is pickled.

What a killed process has written is kept by the system; only a power cut loses what is not on the disk yet. To wait for
the disk in every round can take longer than the round (80 clients with 4 MB each), so that is done every `SYNC` seconds
and at the end, and the last checkpoint known to be on the disk is kept as well.
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


class _Other(CheckpointError):
    """Whole, but of a format this version does not know: not to be skipped, let alone removed."""


class Store:
    """Client states, in memory or, given a folder, on disk as soon as they are checkpointed."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._fresh: dict[int, Payload] = {}  # changed since the last checkpoint
        self._files: dict[int, str] = {}
        self._afloat: set[str] = set()  # files that may not be on the disk yet
        self._durable = ""  # the last manifest known to be on the disk
        self._synced = -math.inf

    def get(self, k: int) -> Payload:
        """Client `k`'s state; empty if it has none."""
        if k in self._fresh:
            return self._fresh[k]
        if k in self._files and self.folder:
            return Payload.sealed((self.folder / self._files[k]).read_bytes())
        return Payload()

    def put(self, k: int, state: Payload) -> None:
        """Remember client `k`'s state."""
        if state or k in self._fresh or k in self._files:
            self._fresh[k] = state

    @property
    def waiting(self) -> int:
        """Bytes of states that were changed since the last checkpoint."""
        return sum(state.nbytes for state in self._fresh.values())

    def save(self, checkpoint: Checkpoint, last: bool = False) -> None:
        """Write a checkpoint. If the disk is full, the one before it stays as it was. The `last` is on the disk."""
        if self.folder is None:
            return
        durable = last or time.monotonic() - self._synced >= SYNC
        manifest = f"round-{checkpoint.round:06d}.json"
        try:
            assert checkpoint.server is not None
            files = dict(self._files) | {k: self._write(s) for k, s in self._fresh.items()}
            body = {
                "format": FORMAT,
                "round": checkpoint.round,
                "server": self._write(checkpoint.server),
                "clients": {str(k): files[k] for k in sorted(files)},
                "extra": checkpoint.extra,
            }
            body = json.loads(json.dumps(body))  # as it will be read: keys are text
            text = json.dumps({**body, "sha256": sha256(_canonical(body))}, indent=1)
            if durable:
                for name in sorted(self._afloat & {body["server"], *files.values()}):
                    sync(self.folder / name)
            write_atomic(self.folder / manifest, text.encode(), durable)
        except OSError as error:
            raise CheckpointError(
                f"could not write the checkpoint of round {checkpoint.round}: {error.strerror or error}; "
                "the one before it is intact, so the run can be resumed from there."
            ) from error
        if durable:
            self._afloat, self._durable, self._synced = set(), manifest, time.monotonic()
        self._files, self._fresh = files, {}
        self._clean()

    def load(self) -> Checkpoint:
        """The newest checkpoint that is whole (an empty one if there is none yet); says so if it had to go back."""
        bad = []
        for path in reversed(self._manifests()):
            try:
                body, files = self._read(path)
            except _Other:
                raise
            except CheckpointError as error:
                bad.append(str(error))
                continue
            if bad:
                warnings.warn(f"{' '.join(bad)} Going on from {path.name} instead.", stacklevel=2)
                for later in self._manifests():
                    if later > path:
                        later.unlink()
            self._files, self._fresh = {int(k): name for k, name in body["clients"].items()}, {}
            self._afloat = {body["server"], *self._files.values()}  # who knows
            self._clean()
            return Checkpoint(body["round"], Payload.decode(files[body["server"]]), body["extra"])
        if bad:
            raise CheckpointError(
                f"{' '.join(bad)} No whole checkpoint is left in {self.folder}; `fedloom run` with --fresh starts anew."
            )
        return Checkpoint()

    def _manifests(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.json")) if self.folder else []

    def _write(self, payload: Payload) -> str:
        """Store a payload under its own checksum, unless it is there already."""
        assert self.folder is not None
        data = payload.encode()
        name = f"{sha256(data)}.safetensors"
        if not (self.folder / name).exists():
            write_atomic(self.folder / name, data, durable=False)
            self._afloat.add(name)
        return name

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
        """A manifest and its server file, all of its files checked."""
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
            raise _Other(
                f"{path.name} has format {body['format']}, from {age} version of fedloom; this one reads {FORMAT}."
            )
        files = {}
        for name in {body["server"], *body["clients"].values()}:
            file = self.folder / name
            data = file.read_bytes() if file.exists() else b""
            if not file.exists() or f"{sha256(data)}.safetensors" != name:
                file.unlink(missing_ok=True)  # so that it is written anew, not taken for whole
                raise CheckpointError(
                    f"{path.name} is damaged ({name[:12]}... is missing or its checksum does not fit)."
                )
            if name == body["server"]:
                files[name] = data
        return body, files

    def _clean(self) -> None:
        """Remove old manifests, files that no manifest names, and what a killed writer left."""
        assert self.folder is not None
        for path in self._manifests()[:-KEEP]:
            if path.name != self._durable:
                path.unlink()
        named = set()
        for path in self._manifests():
            try:
                body = json.loads(path.read_bytes())
                named |= {body["server"], *body["clients"].values()}
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        for file in self.folder.iterdir():
            if file.suffix == ".tmp" or (file.suffix == ".safetensors" and file.name not in named):
                file.unlink(missing_ok=True)


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()

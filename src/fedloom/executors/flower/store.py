"""What a client remembers, on its own disk.

A state has a *version*, (attempt, round): the round it came from, and the number of times that the
server had been started when it asked for it. For each client, the server keeps only the version
that it has accepted and checkpointed, and names it in every message. So a client is never ahead of
the server: if the server never accepted a result, or forgot it when it was killed, nobody asks for
that version again. Each version is one file with its checksum in its name, written whole or not at
all.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...core.errors import CheckpointError, FedloomError
from ...core.files import locked, sha256, write_atomic
from ...core.payload import Payload

Version = tuple[int, int]  # (attempt, round)
NOTHING: Version = (0, 0)  # the empty state of a client that has not taken part yet
_FILE = re.compile(r"(\d{6})-(\d{6})-([0-9a-f]{16})\.safetensors")


class Late(FedloomError):
    """A message that a newer one has overtaken."""


def root() -> Path:
    """The default folder of states: `FEDLOOM_STATE`, or `fedloom` in the user's state folder."""
    folder = os.environ.get("FEDLOOM_STATE")
    if folder:
        return Path(folder)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "fedloom"


class Versions:
    """One client's states in one experiment."""

    def __init__(self, root: Path, experiment: str, client: int) -> None:
        # The name becomes that of a folder.
        if not re.fullmatch(r"[\w.-]+", experiment) or experiment.startswith("."):
            raise FedloomError(f"{experiment!r} is no name of an experiment.")
        self.folder = root / experiment / f"client-{client:05d}"

    def held(self) -> dict[Version, Path]:
        """The versions on disk, oldest first."""
        files: dict[Version, Path] = {}
        for path in self.folder.glob("*.safetensors"):
            match = _FILE.fullmatch(path.name)
            if match:
                files[int(match[1]), int(match[2])] = path
        return dict(sorted(files.items()))

    def get(self, version: Version) -> Payload:
        """The state of that version."""
        if version == NOTHING:
            return Payload()
        path = self.held().get(version)
        if path is None:
            raise CheckpointError(
                f"there is no state of round {version[1]} in {self.folder}: it was removed, or "
                "this is another machine."
            )
        data = path.read_bytes()
        if not path.name.endswith(f"-{sha256(data)[:16]}.safetensors"):
            raise CheckpointError(f"{path} is damaged (its checksum does not fit).")
        return Payload.decode(data)

    def check(self, version: Version) -> None:
        """Refuse to work on a version that a newer one has overtaken."""
        newest = max(self.held(), default=NOTHING)
        if newest > version:
            raise Late(
                f"the message of round {version[1]} came late: round {newest[1]} has begun since."
            )

    def put(self, version: Version, since: Version, state: Payload) -> None:
        """Keep a new state beside the one it came from and the one before that.

        The server may have to go back once. It never accepted any other state: these are removed.
        """
        data = state.encode()
        path = self.folder / f"{version[0]:06d}-{version[1]:06d}-{sha256(data)[:16]}.safetensors"
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".lock"):  # two messages to one client may come at once
            self.check(version)
            write_atomic(path, data)
            held = self.held()
            older = [v for v in held if v < since]
            for v, file in held.items():
                if v not in (version, since, *older[-1:]):
                    file.unlink(missing_ok=True)
            prefix = path.name[:14]  # attempt and round
            for file in self.folder.iterdir():
                interrupted = file.suffix == ".tmp"
                outdated = file.name.startswith(prefix) and file != path
                if interrupted or outdated:
                    file.unlink(missing_ok=True)

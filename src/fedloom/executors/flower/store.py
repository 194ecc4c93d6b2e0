"""What a client remembers, on its own disk.

A state is kept under a *version*: (attempt, round), the round it came from and the how-manieth start of the server had
asked for it. The server keeps of each client only the version that it has accepted and checkpointed, and names it in
every message. So a client is never ahead of the server: what it computed and the server never accepted, or forgot when
it was killed, is a version that nobody asks for again. One file per version, written whole or not at all, its checksum
in its name.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...core.errors import CheckpointError, FedloomError
from ...core.files import sha256, write_atomic
from ...core.payload import Payload

try:
    import fcntl
except ImportError:  # not a POSIX system: two messages at once to one client are not guarded there
    fcntl = None  # type: ignore[assignment]

Version = tuple[int, int]  # (attempt, round)
NOTHING: Version = (0, 0)  # the version of a client that has not taken part: an empty state
_FILE = re.compile(r"(\d{6})-(\d{6})-([0-9a-f]{16})\.safetensors")


class Late(FedloomError):
    """A message that a newer one has overtaken."""


def root() -> Path:
    """Where states lie if nobody says otherwise: `FEDLOOM_STATE`, or `fedloom` in the user's state folder."""
    given = os.environ.get("FEDLOOM_STATE")
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(given) if given else Path(base) / "fedloom"


class Versions:
    """One client's states in one experiment."""

    def __init__(self, root: Path, experiment: str, client: int) -> None:
        if not re.fullmatch(r"[\w.-]+", experiment) or experiment.startswith("."):
            raise FedloomError(
                f"{experiment!r} is no name of an experiment."
            )  # it becomes the name of a folder
        self.folder = root / experiment / f"client-{client:05d}"

    def held(self) -> dict[Version, Path]:
        """The versions on disk, oldest first."""
        found = {}
        for path in self.folder.glob("*.safetensors") if self.folder.is_dir() else ():
            if match := _FILE.fullmatch(path.name):
                found[int(match[1]), int(match[2])] = path
        return dict(sorted(found.items()))

    def get(self, version: Version) -> Payload:
        """The state of that version."""
        if version == NOTHING:
            return Payload()
        path = self.held().get(version)
        if path is None:
            raise CheckpointError(
                f"there is no state of round {version[1]} in {self.folder}: it was removed, or this is another machine."
            )
        data = path.read_bytes()
        if not path.name.endswith(f"-{sha256(data)[:16]}.safetensors"):
            raise CheckpointError(f"{path} is damaged (its checksum does not fit).")
        return Payload.decode(data)

    def check(self, version: Version) -> None:
        """Refuse work for a version that a newer one has overtaken."""
        newest = max(self.held(), default=NOTHING)
        if newest > version:
            raise Late(
                f"the message of round {version[1]} came late: round {newest[1]} has been worked on since."
            )

    def put(self, version: Version, since: Version, state: Payload) -> None:
        """Keep a new state beside the one it came from (and the one before that: the server may have to go back once).

        What else there is was never accepted by the server and goes. A version put twice is there once.
        """
        data = state.encode()
        path = self.folder / f"{version[0]:06d}-{version[1]:06d}-{sha256(data)[:16]}.safetensors"
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            self.check(version)
            write_atomic(path, data)
            held = self.held()
            older = [v for v in held if v < since]
            for v, file in held.items():
                if v not in (version, since, *older[-1:]):
                    file.unlink(missing_ok=True)
            for file in (
                self.folder.iterdir()
            ):  # an interrupted write, or the same version with other contents
                if file.suffix == ".tmp" or (file.name.startswith(path.name[:14]) and file != path):
                    file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if fcntl is None:
            yield
            return
        held = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

"""What a run is made with: checksums of its data, and the software and hardware that computed it.

It stands in `made_with.json`. A run that is resumed must find the data it began with. It may go on
with another torch or on another machine, but then its last digits are not those of a run that was
never interrupted: a warning says so, and the file notes after which round that was.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..core.device import Device
from ..core.errors import FedloomError
from ..core.files import parse_object, read_regular, write_atomic
from .summary import versions

FILE = "made_with.json"
Word = Annotated[str, Field(max_length=200)]


class Part(BaseModel):
    """The rounds after one round, up to those of the next part, and what computed them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after_round: Annotated[int, Field(ge=0, strict=True)]
    computed_with: dict[Word, Word]


class MadeWith(BaseModel):
    """What the file says. `data` is None for a federation whose samples are elsewhere."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: dict[Word, Word] | None
    parts: list[Part]

    def refuse_other_data(self, folder: Path, now: Mapping[str, str] | None) -> None:
        """Refuse to continue with other data than those that the run began with."""
        if self.data is None or now is None:
            return
        changed = [name for name, checksum in now.items() if self.data.get(name) != checksum]
        if changed:
            raise FedloomError(
                f"the data of {folder} have changed since it began ({' and '.join(changed)}): put "
                "them back, choose another folder with --out, or start anew with --fresh."
            )

    def going_on(self, after_round: int, now: Mapping[str, str]) -> MadeWith:
        """The same with the rounds to come; a warning says what will compute them otherwise."""
        parts = [part for part in self.parts if part.after_round <= after_round]
        before: Mapping[str, str] = parts[-1].computed_with if parts else {}
        changes = []
        for name, value in now.items():
            if before and before.get(name) != value:
                changes.append(f"{name} {value} (before: {before.get(name, 'unknown')})")
        if changes:
            warnings.warn(
                f"the rounds after {after_round} are computed with {', '.join(changes)}: their "
                "last digits may not be those of a run that was never interrupted.",
                stacklevel=2,
            )
        if changes or not parts:
            parts.append(Part(after_round=after_round, computed_with=dict(now)))
        return self.model_copy(update={"parts": parts})

    def write(self, folder: Path) -> None:
        """Write it to a run folder."""
        write_atomic(folder / FILE, json.dumps(self.model_dump(), indent=1).encode())


def new(data: Mapping[str, str] | None) -> MadeWith:
    """That of a run which has not begun."""
    return MadeWith(data=None if data is None else dict(data), parts=[])


def read(folder: Path, data: Mapping[str, str] | None) -> MadeWith:
    """That of a run which has begun.

    If the folder does not say, a warning does, and the run is taken to have begun with `data`.
    """
    path = folder / FILE
    try:
        return MadeWith.model_validate(parse_object(read_regular(path), path))
    except FileNotFoundError:
        why = "an earlier version of fedloom wrote it"
    except (FedloomError, ValidationError, OSError):
        why = f"{FILE} is damaged"
    warnings.warn(
        f"{folder} does not say what it was made with ({why}), so nobody can tell whether its data "
        "have changed; they are noted from now on.",
        stacklevel=2,
    )
    return new(data)


def computed_with(devices: Sequence[Device]) -> dict[str, str]:
    """Everything here that the last digits of a result may depend on."""
    names = []
    for device in devices:
        name = device.type
        if device.accelerated:
            name = f"{device.type} ({device.title})"
        names.append(name)
    kinds = ", ".join(dict.fromkeys(names))
    capability = torch.backends.cpu.get_cpu_capability()
    return {**versions(), "CPU capability": capability, "device": kinds}

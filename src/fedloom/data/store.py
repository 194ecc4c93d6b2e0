"""What a folder that `fedloom data import` has made says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.errors import FedloomError
from ..core.files import parse_object, read_regular

FACTS = "fedloom.json"
FILES = "files.csv"  # the list of image files
VERSION = 1


def is_kept(folder: Path) -> bool:
    """Whether an import has made this folder."""
    return (folder / FACTS).is_file()


def facts_of(folder: Path) -> dict[str, Any]:
    """What a kept set says of itself."""
    try:
        facts = parse_object(read_regular(folder / FACTS), folder / FACTS)
    except OSError as error:
        raise FedloomError(f"{folder / FACTS}: cannot be read ({error}).") from error
    if facts.get("fedloom") != VERSION:
        raise FedloomError(f"{folder}: was kept by another version of fedloom; import it again.")
    for key, kind in (("form", str), ("kind", str), ("classes", list), ("domains", list)):
        if not isinstance(facts.get(key), kind):
            raise FedloomError(f"{folder / FACTS} is damaged: it has no {key}.")
    return facts

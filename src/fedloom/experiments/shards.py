"""A table's runs, divided between machines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import FedloomError
from ..engine.config import Config
from .plan import folder_of

Shard = tuple[int, int]  # the second of three is (2, 3)


def parse_shard(text: str | None) -> Shard | None:
    """`2/3` as a pair of numbers."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise FedloomError(f"--shard wants I/N, such as 2/3 for the second of three, got {text!r}.")
    return int(match[1]), int(match[2])


def of_shard(configs: Sequence[Config], shard: Shard | None, out: Path) -> list[Config]:
    """The configs whose runs are this shard's, or are finished in the folder already.

    Every n-th run belongs to a shard, whatever the rows that show it.
    """
    if shard is None:
        return list(configs)
    numbers: dict[Path, int] = {}
    chosen = []
    for config in configs:
        folder = folder_of(out, config)
        number = numbers.setdefault(folder, len(numbers))
        if number % shard[1] == shard[0] - 1 or (folder / "summary.json").exists():
            chosen.append(config)
    return chosen

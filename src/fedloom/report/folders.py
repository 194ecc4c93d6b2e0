"""Finding runs in folders: a run, a comparison with its leaderboard, or any folder that holds runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import CheckpointError, FedloomError
from ..engine.folder import Run


def found(folders: Sequence[Path]) -> list[Path]:
    """The run folders that are meant: the folders themselves, or those inside."""
    runs: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise FedloomError(f"there is no folder {folder}.")
        inside = [folder] if (folder / "config.toml").is_file() else []
        inside = inside or sorted(p.parent for p in folder.glob("*/config.toml"))
        runs += inside or sorted(p.parent for p in folder.rglob("config.toml"))
    return list(dict.fromkeys(runs))


def load(folders: Sequence[Path]) -> tuple[list[Run], dict[str, Any]]:
    """The runs in these folders, local first, and the board of the comparison if it is just one."""
    runs = []
    for folder in found(folders):
        try:
            runs.append(Run.load(folder))
        except CheckpointError:  # names the folder, and an older format
            raise
        except FedloomError as error:
            raise FedloomError(f"{folder} cannot be read: {error}") from None
    board = _board(folders[0]) if len(folders) == 1 else {}
    listed = [str(r.get("method")) for r in board.get("runs") or [] if isinstance(r, dict)]
    place = {method: i for i, method in reversed(list(enumerate(listed)))}
    runs.sort(
        key=lambda r: (
            r.config.method != "local",
            place.get(r.config.method, len(place)),
            r.config.method,
        )
    )
    return runs, board


def title(runs: Sequence[Run], board: dict[str, Any]) -> str:
    """What a page about these runs is called."""
    if board.get("title"):
        return str(board["title"])
    methods = list(dict.fromkeys(Path(r.config.method).stem for r in runs))
    what = ", ".join(methods) if len(methods) <= 6 else f"{len(methods)} methods"
    data = ", ".join(dict.fromkeys(f"{r.config.data}, {r.config.partition}" for r in runs))
    return f"{what} on {data}" if runs else "No runs yet"


def _board(folder: Path) -> dict[str, Any]:
    path = folder / "leaderboard.json"
    try:
        board = json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError:
        raise FedloomError(f"{path} is damaged: it is not valid JSON.") from None
    return board if isinstance(board, dict) else {"rows": board}  # once it was the rows alone

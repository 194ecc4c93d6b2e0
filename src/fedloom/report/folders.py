"""Finding runs: a folder is a run, a comparison, or holds runs somewhere below."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import CheckpointError, FedloomError
from ..engine.folder import Run


def run_folders(folders: Sequence[Path]) -> list[Path]:
    """The run folders among these folders or inside them."""
    runs: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise FedloomError(f"there is no folder {folder}.")
        if (folder / "config.toml").is_file():
            runs.append(folder)
            continue
        configs = list(folder.glob("*/config.toml")) or list(folder.rglob("config.toml"))
        runs += sorted(path.parent for path in configs)
    return list(dict.fromkeys(runs))


def load(folders: Sequence[Path], trust: bool = False) -> tuple[list[Run], dict[str, Any]]:
    """The runs in these folders, `local` first, and the leaderboard if one comparison is meant.

    A page needs no method, so method files are executed only with `trust`, for looks into models.
    """
    runs = []
    for folder in run_folders(folders):
        try:
            runs.append(Run.load(folder, trust))
        except CheckpointError:  # it names the folder and the older format already
            raise
        except FedloomError as error:
            raise FedloomError(f"{folder} cannot be read: {error}") from None
    board: dict[str, Any] = {}
    if len(folders) == 1:
        board = _board(folders[0])
    place: dict[str, int] = {}
    for row in board.get("runs") or []:
        if isinstance(row, dict):
            place.setdefault(str(row.get("method")), len(place))

    def rank(run: Run) -> tuple[bool, int, str]:
        method = run.config.method
        return method != "local", place.get(method, len(place)), method

    return sorted(runs, key=rank), board


def title(runs: Sequence[Run], board: dict[str, Any]) -> str:
    """The title of a page about these runs."""
    if board.get("title"):
        return str(board["title"])
    if not runs:
        return "No runs yet"
    methods: dict[str, None] = {}
    data: dict[str, None] = {}
    for run in runs:
        methods[Path(run.config.method).stem] = None
        data[f"{run.config.data}, {run.config.partition}"] = None
    listed = ", ".join(methods)
    if len(methods) > 6:
        listed = f"{len(methods)} methods"
    return f"{listed} on {', '.join(data)}"


def _board(folder: Path) -> dict[str, Any]:
    path = folder / "leaderboard.json"
    if not path.is_file():
        return {}
    try:
        board = json.loads(path.read_bytes())
    except ValueError:
        raise FedloomError(f"{path} is damaged: it is not valid JSON.") from None
    if not isinstance(board, dict):  # early versions wrote the rows alone
        return {"rows": board}
    return board

"""What comparisons and sweeps give back in Python: the board, with tables and a look for notebooks.

`Comparison` and `Sweep` can stand wherever a path can: for their folders.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import FedloomError
from ..core.tables import to_html, to_pandas
from ..engine.folder import Run
from ..metrics.registry import DEFAULT, headline
from . import leaderboard_text
from . import sweep as sweeps

SHOWN = (
    "personal",
    "personal_std",
    "common",
    "worst_client",
    "better_than_local",
    "gain_over_local",
    "bytes_up_per_round",
    "seconds",
)


@dataclass(frozen=True)
class Outcome:
    """Many runs in one folder, and the board made from them."""

    board: dict[str, Any]
    folder: Path

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def runs(self) -> list[Run]:
        """The finished runs, read from the folder."""
        runs = []
        for run in self.board["runs"]:
            if run["status"] == "finished":
                runs.append(Run.load(self.folder / run["folder"]))
        return runs

    @property
    def failed(self) -> list[str]:
        """What went wrong, one sentence for each run that failed."""
        sentences = []
        for row in self.board["rows"]:
            name = row.get("method") or row.get("values")
            for failure in row["failed"]:
                sentences.append(f"{name}, seed {failure['seed']}: {failure['error']}")
        return sentences

    def table(self) -> list[dict[str, Any]]:
        """A row for each method or point."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """The table as a data frame."""
        return to_pandas(self.table())


@dataclass(frozen=True)
class Comparison(Outcome):
    """The outcome of `fedloom.compare`: methods side by side, best first, and a verdict."""

    @staticmethod
    def load(folder: str | Path) -> Comparison:
        """The comparison in a folder."""
        return Comparison(_board(Path(folder), "leaderboard.json", "comparison"), Path(folder))

    @property
    def verdict(self) -> str:
        """The conclusion in one line; empty if no run was evaluated."""
        return str((self.board.get("verdict") or {}).get("line", ""))

    @property
    def notes(self) -> list[str]:
        """For whom, at what cost, how surely."""
        return list((self.board.get("verdict") or {}).get("more", []))

    @property
    def chosen(self) -> dict[str, dict[str, Any] | None]:
        """By method, the values that were chosen for it; empty if nothing was tuned."""
        tuning = self.board.get("tuning") or {}
        return {method["method"]: method["chosen"] for method in tuning.get("methods", [])}

    @property
    def tests(self) -> list[dict[str, Any]]:
        """Every two methods against each other."""
        return list(self.board["tests"])

    @property
    def page(self) -> Path:
        """The report."""
        return self.folder / "report.html"

    def table(self) -> list[dict[str, Any]]:
        """The main figures of each method, best first; all of them are in `board["rows"]`."""
        metric = headline(self.board["settings"]["metric"])
        names = list(SHOWN)
        if metric.name != DEFAULT:
            names = [metric.name, f"{metric.name}_std", *names]
        rows = []
        for row in self.board["rows"]:
            rows.append({"method": row["method"], **{name: row[name] for name in names}})
        return rows

    def __str__(self) -> str:
        return leaderboard_text.markdown(self.board)

    def _repr_html_(self) -> str:
        return to_html(self.table(), self.verdict, " ".join([*self.notes, *self.failed]))


@dataclass(frozen=True)
class Sweep(Outcome):
    """The outcome of `fedloom.sweep`: a row for each point of the grid, and the chosen one."""

    @staticmethod
    def load(folder: str | Path) -> Sweep:
        """The sweep in a folder."""
        return Sweep(_board(Path(folder), "sweep.json", "sweep"), Path(folder))

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The values that are best on validation data; None if every point failed."""
        chosen: dict[str, Any] | None = self.board["chosen"]
        return chosen

    def table(self) -> list[dict[str, Any]]:
        """Each point with its headline on validation and on test data."""
        rows = []
        for row in self.board["rows"]:
            figures = {name: row[name] for name in ("validation", "test")}
            rows.append({**row["values"], **figures, "chosen": row["values"] == self.chosen})
        return rows

    def __str__(self) -> str:
        return sweeps.markdown(self.board)

    def _repr_html_(self) -> str:
        chosen = "nothing could be chosen"
        if self.chosen is not None:
            chosen = ", ".join(f"{key} = {value}" for key, value in self.chosen.items())
        return to_html(self.table(), f"Chosen: {chosen}", " ".join(self.failed))


def _board(folder: Path, name: str, what: str) -> dict[str, Any]:
    try:
        board: dict[str, Any] = json.loads((folder / name).read_bytes())
    except FileNotFoundError:
        raise FedloomError(f"{folder} holds no {what}: there is no {name}.") from None
    except ValueError:
        raise FedloomError(f"{folder / name} is damaged: it is not valid JSON.") from None
    return board

"""Figures that no run has in its summary, computed where a column of a table asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..engine.folder import Run
from ..engine.setup import last_checkpoint
from .table import Setting
from .theory import theory


def add_asked(setting: Setting, runs: Sequence[Run]) -> None:
    """Add to the summaries what the columns of a setting ask for."""
    wanted: set[str] = set()
    for paths in setting.columns.values():
        wanted.update(path.partition(".")[0] for path in paths)
    for name in sorted(wanted & FIGURES.keys()):
        for run in runs:
            run.summary[name] = FIGURES[name](run)


def until_best(run: Run) -> float | None:
    """The seconds from the beginning to the end of the best round, with evaluation."""
    best = run.summary["chosen_rounds"]["best"]
    if best is None:
        return None
    return float(sum(line["seconds"] for line in run.timing if line["round"] <= best))


def parameters(run: Run) -> dict[str, float]:
    """Millions of numbers in each part of the model that travels, by the part's name, and in all.

    A text side that is made of class names, and trained, is the part `text`.
    """
    checkpoint, _ = last_checkpoint(run)
    assert checkpoint.server is not None
    counts = {"all": 0.0}
    for name, tensor in checkpoint.server.tree("model").items():
        part = name.partition(".")[0]
        counts[part] = counts.get(part, 0.0) + tensor.numel() / 1e6
        counts["all"] += tensor.numel() / 1e6
    return counts


# By the first word of a column's path.
FIGURES: dict[str, Callable[[Run], object]] = {
    "until_best": until_best,
    "parameters": parameters,
    "theory": theory,
}

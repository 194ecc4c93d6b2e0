"""Several methods and seeds on the same federation: one leaderboard, one page.

Local and FedAvg are always among the methods. Every method is scored before and after local
training, so FedAvg with local fine-tuning needs no run of its own: it is FedAvg's `after` models.
In round t each client received the average of round t-1 and trained it on its own data, which is
what fine-tuning is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import unknown
from ..core.files import write_atomic
from ..engine.config import Config
from ..engine.folder import Run
from ..report.answer import answer
from ..report.document import html
from ..report.entries import ALONE, RunData
from ..report.page import Page
from ..report.side import side_figure
from .flops import flops_per_round
from .leaderboard import leaderboard
from .leaderboard_text import markdown
from .plan import Cell, Dealer, Display, Logs, Place, carry_out, finished_runs, name_of, plan
from .tune import Tuner

ALWAYS = (ALONE, "fedavg")  # what every method has to be measured against
TRIALS = "tuning"  # the folder of the runs in which settings are found


def with_references(methods: Sequence[str]) -> list[str]:
    """The methods asked for, each once, and those that are always run."""
    return list(dict.fromkeys((*methods, *ALWAYS)))


def compare(
    configs: Sequence[Config],
    out: Path,
    watch: Display,
    title: str,
    target: float | None = None,
    logs: Logs | None = None,
    report: bool = True,
    against: str = ALONE,
    dealer: Dealer | None = None,
    tuner: Tuner | None = None,
) -> dict[str, Any]:
    """Carry out what is missing of a plan, then write `leaderboard.json`, `.md` and `report.html`.

    Each run lives in a folder named after its method, seed and config hash, so a finished one is
    found again and an interrupted one goes on. Without `report`, runs get no picture of who
    has what. `target` is an accuracy; None takes what clients reach alone. `against` is the
    method that the others are measured against. A `dealer` is for a federation that no config can
    describe. A `tuner` first finds settings for every method, in runs in the folder `tuning`.
    """
    names = list(dict.fromkeys(name_of(config.method) for config in configs))
    if against not in (*names, ALONE):
        raise unknown("method to compare against", against, names)
    dealer = dealer or Dealer()
    tuning = None
    place = Place()
    if tuner:
        place = Place(rounds_before=tuner.rounds)
        watch.total(tuner.rounds + sum(config.schedule.rounds for config in configs))
        tuning = tuner.run(out / TRIALS, watch, dealer, logs)
        configs = tuner.chosen(configs)
    cells = carry_out(configs, out, watch, dealer, logs, report=report, place=place)
    board = leaderboard(cells, title, target, _flops(cells, out, dealer), against, tuning)
    page = Page(list(map(RunData.of, finished_runs(cells))), title, board, interactive=True)
    board["verdict"] = side_figure("the verdict", lambda: _verdict(page), None)
    write_atomic(out / "leaderboard.json", json.dumps(board, indent=1).encode())
    write_atomic(out / "leaderboard.md", markdown(board).encode())
    write_atomic(out / "report.html", html(page).encode())
    return board


def _verdict(page: Page) -> dict[str, Any] | None:
    """What the page says first, as plain values."""
    found = answer(page)
    if found is None:
        return None
    return {"line": found.line, "more": list(found.more), "method": found.entry.name}


def _flops(cells: Sequence[Cell], out: Path, dealer: Dealer) -> dict[str, float | None]:
    """Each method's operations per round, measured once and kept in `flops.json`, by run folder.

    What could not be counted is not kept, so that the next time tries again.
    """
    path = out / "flops.json"
    kept: dict[str, float | None] = {}
    if path.exists():
        kept = json.loads(path.read_bytes())
    by_method: dict[str, float | None] = {}
    for cell in cells:
        if cell.run and cell.name not in by_method:
            if cell.folder.name not in kept:
                count = partial(_count, cell.run, cell.config, dealer)
                kept |= side_figure(f"the FLOP count of {cell.name}", count, {})
            by_method[cell.name] = kept.get(cell.folder.name)
    write_atomic(path, json.dumps(kept, indent=1).encode())
    return by_method


def _count(run: Run, config: Config, dealer: Dealer) -> dict[str, float | None]:
    """A run's operations per round, by the name of its folder."""
    assert run.folder is not None
    return {run.folder.name: flops_per_round(run, dealer(config))}


__all__ = ["compare", "leaderboard", "markdown", "plan", "with_references"]

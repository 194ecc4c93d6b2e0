"""A paper's table from our own runs: the paper's setting on the data at hand, figure by figure.

Nothing is filled in by hand: a cell is measured, or it says why it is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.files import write_atomic
from ..engine.config import Config
from ..engine.folder import Run
from ..report.table_figures import Runs
from .board import LEFT_OUT, markdown
from .derived import compare_prototypes, count_costs
from .pictures import write_pictures
from .plan import Cell, Dealer, Display, carry_out, finished_runs
from .recipe import Recipe, Scale, Setting, available, is_part, locate_data, recipe, titled
from .values import mean_and_std, value_at

# The table describes the data in words; the others of these change no figure.
NOT_DIFFERENCES = {"data", "source", "seed", "method", "hyper"}


@dataclass
class Block:
    """One setting of a table: what is run of it, and what came out."""

    setting: Setting
    why_not: str | None  # why none of it is run
    plan: list[tuple[str, Config]]  # each run with its row
    cells: list[tuple[str, Cell]] = field(default_factory=list)

    def of_row(self, row: str) -> list[Cell]:
        """The runs of a row."""
        return [cell for its_row, cell in self.cells if its_row == row]

    @property
    def runs(self) -> list[Run]:
        """The runs that did not fail."""
        return finished_runs(cell for _, cell in self.cells)

    def by_row(self) -> Runs:
        """The runs that did not fail, for pictures."""
        rows = {row: finished_runs(self.of_row(row)) for row in self.setting.rows}
        return Runs(self.setting.name, self.setting.who, rows)


def reproduce(
    name: str,
    scale: Scale,
    out: Path,
    watch: Display,
    only: Sequence[str] = (),
    execution: Mapping[str, Any] | None = None,
    encoder: str | None = None,
    settings: Sequence[str] = (),
    precision: str | None = None,
) -> dict[str, Any]:
    """Run what is missing of a table, then write `table.json`, `table.md` and its pictures.

    `only` restricts the methods, `settings` the settings (by parts of their names); `encoder` and
    `precision` replace the recipe's.
    """
    table = recipe(name)
    table.has(only, settings)
    _override(table, scale, encoder, precision)
    reasons = {}
    for row in table.rows:
        reasons[row] = _why_not_row(table.method(row), only)
    blocks = _planned(table, scale, settings, reasons, dict(execution or {}))
    dealer = Dealer()
    _run(blocks, out, watch, dealer)
    for block in blocks:
        if table.similar:
            compare_prototypes(block.cells, table.similar)
        if table.costs:
            count_costs(block.cells, table.costs, dealer)
    board = _board(table, scale, blocks, reasons)
    runs = [block.by_row() for block in blocks]
    device = str((execution or {}).get("device", "cpu"))
    board["pictures"] = write_pictures(table.drawings, board, runs, out, device)
    write_atomic(out / "table.json", json.dumps(board, indent=1, ensure_ascii=False).encode())
    write_atomic(out / "table.md", markdown(board).encode())
    return board


def _override(table: Recipe, scale: Scale, encoder: str | None, precision: str | None) -> None:
    """Put the user's encoder and precision in place of the recipe's."""
    for setting in table.settings:
        given = setting.given[scale]
        if encoder:
            given["encoder"] = encoder
        if precision:
            given["training"] = {**given.get("training", {}), "precision": precision}


def _why_not_row(method: str, only: Sequence[str]) -> str | None:
    if not available(method):
        return "not run: method not available"
    if only and method not in only:
        return LEFT_OUT
    return None


def _planned(
    table: Recipe,
    scale: Scale,
    settings: Sequence[str],
    reasons: Mapping[str, str | None],
    execution: Mapping[str, Any],
) -> list[Block]:
    """Every setting with the configs of its runs, seed by seed."""
    blocks = []
    for setting in table.settings:
        given, why_not = locate_data(setting, scale, execution.get("data_root"))
        setting.given[scale].update(given)
        if settings and not is_part(settings, setting.name):
            why_not = LEFT_OUT
        if "{encoder}" in table.title and not setting.given[scale].get("encoder"):
            why_not = "not run: it needs CLIP's weights, say --encoder clip:PATH"
        block = Block(setting, why_not, [])
        for seed in table.seeds[scale]:
            for row in setting.rows:
                if why_not is None and reasons[row] is None:
                    config = table.config(setting, scale, row, seed, execution)
                    block.plan.append((row, config))
        blocks.append(block)
    return blocks


def _run(blocks: Sequence[Block], out: Path, watch: Display, dealer: Dealer) -> None:
    """Carry out the runs of all blocks."""
    configs: list[Config] = []
    labels: list[str] = []
    rounds = 0
    for block in blocks:
        for row, config in block.plan:
            configs.append(config)
            labels.append(f"{block.setting.name}: {row}")
            rounds += config.schedule.rounds
    watch.total(rounds)
    cells = iter(carry_out(configs, out, watch, dealer, labels=labels))
    for block in blocks:
        for row, _ in block.plan:
            block.cells.append((row, next(cells)))


def _board(
    table: Recipe, scale: Scale, blocks: Sequence[Block], reasons: Mapping[str, str | None]
) -> dict[str, Any]:
    """The whole table as plain values."""
    seconds = 0.0
    for block in blocks:
        for run in block.runs:
            seconds += run.summary["seconds"]
    return {
        "table": table.name,
        "title": titled(table, scale),
        "paper": table.paper,
        "measure": table.measure,
        "scale": scale,
        "seeds": table.seeds[scale],
        "means": table.means,
        "seconds": seconds,
        "settings": [_described_block(table, block, scale, reasons) for block in blocks],
        "pictures": [],
    }


def _described_block(
    table: Recipe, block: Block, scale: Scale, reasons: Mapping[str, str | None]
) -> dict[str, Any]:
    """One setting's part of the table, as plain values."""
    setting = block.setting
    rows = []
    for row in setting.rows:
        ours = None
        failed = []
        cells = block.of_row(row)
        if cells:
            ours = _figures(table, setting, row, cells)
        for cell in cells:
            if cell.error:
                failed.append(f"failed for seed {cell.config.seed}: {cell.error}")
        rows.append(
            {
                "row": row,
                "method": table.method(row),
                "ours": ours,
                "paper": table.printed(row, setting),
                "remark": block.why_not or reasons[row] or "; ".join(failed) or None,
            }
        )
    differs: list[str] = []
    if scale == "mini":
        differs = [*setting.differs, *_changed(table, setting), *_fewer_seeds(table)]
    return {
        "name": setting.name,
        "columns": list(setting.columns),
        "plain": [column in table.plain for column in setting.columns],
        "rows": rows,
        "data": _data(block),
        "differs": differs,
    }


def _figures(
    table: Recipe, setting: Setting, row: str, cells: Sequence[Cell]
) -> list[dict[str, float | None]]:
    """The mean and the standard deviation over seeds, for each column."""
    who = table.rows[row].get("who", setting.who)
    figures = []
    for paths in setting.columns.values():
        values = [_figure(run, who, paths) for run in finished_runs(cells)]
        mean, std = mean_and_std(values)
        figures.append({"mean": mean, "std": std})
    return figures


def _figure(run: Run, who: str, paths: Sequence[str]) -> float | None:
    """One number of a run's summary: the common model's, where it is wanted and has one."""
    parts = [run.summary]
    if who == "common" and run.summary.get("common"):
        parts.insert(0, run.summary["common"])
    for path in paths:
        for part in parts:
            value = value_at(part, path)
            if value is not None:
                return value
    return None


def _data(block: Block) -> str | None:
    """How many clients and samples the runs of a block have."""
    if not block.runs:
        return None
    clients = block.runs[0].federation["clients"]
    samples = 0
    for client in clients:
        samples += client["train"] + client["validation"]
    return f"{len(clients)} clients with {samples} training samples"


def _fewer_seeds(table: Recipe) -> list[str]:
    """A line if there are fewer seeds than in the paper."""
    ours = len(table.seeds["mini"])
    theirs = len(table.seeds["full"])
    if ours >= theirs:
        return []
    if ours == 1:
        return [f"1 seed, not {theirs}"]
    return [f"{ours} seeds, not {theirs}"]


def _changed(table: Recipe, setting: Setting) -> list[str]:
    """What `mini` changes in the paper's setting, apart from the data.

    Where the paper's network is not available, `all` names another one, and the setting says so in
    words.
    """
    row = next(row for row in setting.rows if available(table.method(row)))
    ours = _flat(table.config(setting, "mini", row, 0, {}))
    theirs = _flat(table.config(setting, "full", row, 0, {}))
    silent: tuple[str, ...] = ()
    if "full" in setting.missing:
        silent = ("model", "network.", "encoder")
    elif "{encoder}" in table.title:  # the title names it
        silent = ("encoder",)
    changes = []
    for key, value in ours.items():
        if value != theirs.get(key) and not key.startswith(silent):
            changes.append(f"{key} = {value} (paper: {theirs.get(key)})")
    return changes


def _flat(config: Config) -> dict[str, Any]:
    """The config's values by key: `model`, `training.lr`."""
    flat: dict[str, Any] = {}
    for name, value in config.what().items():
        if name in NOT_DIFFERENCES:
            continue
        if isinstance(value, dict):
            for key, inner in value.items():
                flat[f"{name}.{key}"] = inner
        else:
            flat[name] = value
    return flat

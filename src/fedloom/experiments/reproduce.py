"""A paper's table from our own runs: the paper's setting on the data at hand, figure by figure.

Nothing is filled in by hand: a cell is measured, or it says why it is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.files import write_atomic
from ..data.described import number_of, samples_of
from ..engine.folder import Run
from .asked import add_asked
from .blocks import Block, Order, all_configs, differences, planned
from .board import markdown
from .derived import compare_prototypes, count_costs
from .floors import floors
from .needs import titled, told
from .pictures import write_pictures
from .plan import Cell, Dealer, Display, carry_out, finished_runs
from .recipe import recipe
from .shards import of_shard
from .table import Brought, Recipe, Scale, Setting, parse_encoders
from .values import mean_and_std, value_at


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
    *,
    changes: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (),
    shard: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Run what is missing of a table, then write `table.json`, `table.md` and its pictures.

    `only` restricts the methods, `settings` the settings (by parts of their names); `encoder`
    brings the paper's frozen networks, `changes` and `seeds` replace the recipe's, and so does
    `precision`. A `shard` (2, 3) runs the second of three parts of the table.
    """
    table = recipe(name)
    changes = dict(changes or {})
    if precision:
        changes["training.precision"] = precision
    brought = Brought(parse_encoders(table, encoder), changes, seeds)
    order = Order(scale, only, settings, dict(execution or {}), brought, shard)
    return carry_out_table(table, order, planned(table, order), out, watch)


def carry_out_table(
    table: Recipe, order: Order, blocks: Sequence[Block], out: Path, watch: Display
) -> dict[str, Any]:
    """Run what is planned of a table, and write the table."""
    dealer = Dealer()
    _run(table, blocks, order, out, watch, dealer)
    for block in blocks:
        if table.similar:
            compare_prototypes(block.cells, table.similar)
        add_asked(block.setting, block.runs)
        if table.costs:
            count_costs(block.cells, table.costs, dealer)
    board = _board(table, order, blocks)
    runs = [block.by_row() for block in blocks]
    device = str(order.execution.get("device", "cpu"))
    board["pictures"] = write_pictures(table.drawings, board, runs, out, device)
    write_atomic(out / "table.json", json.dumps(board, indent=1, ensure_ascii=False).encode())
    write_atomic(out / "table.md", markdown(board).encode())
    return board


def _run(
    table: Recipe,
    blocks: Sequence[Block],
    order: Order,
    out: Path,
    watch: Display,
    dealer: Dealer,
) -> None:
    """Carry out the runs of all blocks, or those of one shard and what is there of the others."""
    ours = {id(config) for config in of_shard(all_configs(blocks), order.shard, out)}
    chosen = []
    for block in blocks:
        for row, config in block.plan:
            if id(config) in ours:
                chosen.append((block, row, config))
    configs = [config for _, _, config in chosen]
    watch.total(sum(config.schedule.rounds for config in configs))
    labels = [f"{block.setting.name}: {row}" for block, row, _ in chosen]
    cells = carry_out(configs, out, watch, dealer, labels=labels, go_on=True, apart=table.apart)
    for (block, row, _), cell in zip(chosen, cells, strict=True):
        block.cells.append((row, cell))


def _board(table: Recipe, order: Order, blocks: Sequence[Block]) -> dict[str, Any]:
    """The whole table as plain values."""
    seconds = 0.0
    for block in blocks:
        for run in block.runs:
            seconds += run.summary["seconds"]
    return {
        "table": table.name,
        "title": titled(table, order.scale, order.brought),
        "paper": table.paper,
        "measure": table.measure,
        "scale": order.scale,
        "seeds": order.seeds(table),
        "means": table.means,
        "seconds": seconds,
        "settings": [_described_block(table, block, order) for block in blocks],
        "pictures": [],
    }


def _described_block(table: Recipe, block: Block, order: Order) -> dict[str, Any]:
    """One setting's part of the table, as plain values."""
    setting = block.setting
    rows = []
    for row in setting.rows:
        ours = None
        if finished_runs(block.of_row(row)):
            ours = _figures(table, setting, row, block.of_row(row))
        rows.append(
            {
                "row": row,
                "method": table.method(row),
                "ours": ours,
                "paper": table.printed(row, setting),
                "remark": block.reasons[row] or _remark(block, row),
            }
        )
    return {
        "name": setting.name,
        "columns": list(setting.columns),
        "plain": [column in table.plain for column in setting.columns],
        "rows": rows,
        "floors": floors(setting.columns, block.runs),
        "data": _data(block),
        "differs": _differences(table, block, order),
    }


def _differences(table: Recipe, block: Block, order: Order) -> list[str]:
    """What deviates from the paper: where nothing is run, in words only."""
    if block.plan:
        return differences(table, block.setting, order)
    return told(table, block.setting, order.scale, order.root, order.brought)


def _remark(block: Block, row: str) -> str | None:
    """What went wrong in the runs of a row, and which of them are another shard's."""
    remarks = []
    for cell in block.of_row(row):
        if cell.refused:
            remarks.append(f"not run: {cell.error}")
        elif cell.error:
            remarks.append(f"failed for seed {cell.config.seed}: {cell.error}")
    planned_runs = [config for its_row, config in block.plan if its_row == row]
    absent = len(planned_runs) - len(block.of_row(row))
    if absent:
        remarks.append(f"not run: {absent} of {len(planned_runs)} runs are another shard's")
    return "; ".join(dict.fromkeys(remarks)) or None


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
    federation = block.runs[0].federation
    samples = samples_of(federation, "train") + samples_of(federation, "validation")
    return f"{number_of(federation)} clients with {samples} training samples"

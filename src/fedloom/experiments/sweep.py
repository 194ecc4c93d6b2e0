"""A grid of settings for one method: a table, heat maps, a choice on validation data only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from ..core.errors import FedloomError
from ..core.files import write_atomic
from ..engine.config import Config, build
from ..metrics.registry import Metric, headline
from ..report.entries import present
from ..report.figures import Heat
from ..report.static import save
from .choice import Grid, Point, best_row, on_validation, points, refuse_no_validation
from .plan import Cell, Dealer, Display, Logs, carry_out, finished_runs
from .values import mean_and_std, value_at


def plan(
    method: str,
    grid: Grid,
    seeds: Sequence[int],
    given: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> list[Config]:
    """One config per point and seed."""
    if not grid:
        raise FedloomError("sweep needs at least one --grid key=value,value,...")
    for key in grid:
        if key in changes:
            raise FedloomError(f"{key!r} is in the grid and has a fixed value as well.")
    configs = []
    for point in points(grid):
        for seed in dict.fromkeys(seeds):
            start = {**given, "method": method, "seed": seed}
            configs.append(build(start, {**changes, **point}))
    refuse_no_validation(configs[0], "sweep")
    return configs


def sweep(
    grid: Grid,
    configs: Sequence[Config],
    out: Path,
    watch: Display,
    title: str,
    logs: Logs | None = None,
    dealer: Dealer | None = None,
    report: bool = True,
) -> dict[str, Any]:
    """Run what is missing; write `sweep.json`, `sweep.md` and a heat map for every two keys.

    With `report`, each run gets a picture of who has what.
    """
    cells = carry_out(configs, out, watch, dealer, logs, report=report)
    board = tabulate(grid, cells, title)
    write_atomic(out / "sweep.json", json.dumps(board, indent=1).encode())
    write_atomic(out / "sweep.md", markdown(board).encode())
    for x, y in combinations(grid, 2):
        write_atomic(out / f"heat-{x}-{y}.svg", heat_map(board, x, y).encode())
    return board


def tabulate(grid: Grid, cells: Sequence[Cell], title: str) -> dict[str, Any]:
    """One row per point, and the chosen one.

    That has the best validation value of the headline metric, as the mean over seeds; of equals,
    the first. In every run the round is chosen on validation data too, and the test value is that
    round's.
    """
    values = points(grid)
    seeds = len(cells) // len(values)
    rows = []
    runs = []
    for i, point in enumerate(values):
        cells_here = cells[i * seeds : (i + 1) * seeds]
        rows.append({"values": point, **_figures(cells_here)})
        for cell in cells_here:
            run = {"seed": cell.config.seed, "folder": cell.folder.name, "status": cell.status}
            runs.append({"values": point, **run})
    config = cells[0].config
    return {
        "title": title,
        "method": config.method,
        "settings": {
            "data": config.data,
            "partition": config.partition,
            "rounds": config.schedule.rounds,
            "metric": config.schedule.metric,
            "seeds": sorted({cell.config.seed for cell in cells}),
        },
        "grid": grid,
        "rows": rows,
        "chosen": _chosen(rows, headline(config.schedule.metric)),
        "runs": runs,
    }


def _figures(cells: Sequence[Cell]) -> dict[str, Any]:
    """The headline metric of one point over its seeds, and the runs that failed."""
    test = []
    for run in finished_runs(cells):
        metric = headline(run.config.schedule.metric)
        test.append(value_at(run.summary, f"personal.{metric.key}.best_by_validation"))
    row = on_validation(cells)
    row["test"], row["test_std"] = mean_and_std(test)
    return row


def _chosen(rows: Sequence[Mapping[str, Any]], metric: Metric) -> Point | None:
    """The values of the point that is best on validation data."""
    best = best_row(rows, metric)
    if best is None:
        return None
    values: Point = best["values"]
    return values


def markdown(board: Mapping[str, Any]) -> str:
    """The sweep as a Markdown table."""
    metric = headline(board["settings"]["metric"])
    keys = list(board["grid"])
    heads = [*keys, f"validation{metric.sign}", f"test{metric.sign}"]
    lines = [f"# {board['title']}", "", f"| {' | '.join(heads)} | |"]
    lines.append("|" + " ---: |" * len(heads) + " --- |")
    for row in board["rows"]:
        cells = [str(row["values"][key]) for key in keys]
        cells += [shown(board, row, "validation"), shown(board, row, "test"), remark(board, row)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", legend(board)]) + "\n"


def legend(board: Mapping[str, Any]) -> str:
    """What the table shows, and how its point was chosen."""
    metric = headline(board["settings"]["metric"])
    text = metric.label
    if metric.unit == "percent":
        text += " in percent"
    if not metric.higher:
        text += ", lower is better"
    text += (
        ", as a mean over clients of their own models. The point and, in every run, the round are "
        "chosen on validation data; test data decide nothing."
    )
    if len(board["settings"]["seeds"]) > 1:
        text += " ± is the std over seeds (ddof 1)."
    return text


def shown(board: Mapping[str, Any], row: Mapping[str, Any], name: str) -> str:
    """A figure with its spread, as the headline metric shows it."""
    metric = headline(board["settings"]["metric"])
    text = metric.shown(row[name])
    std = row[f"{name}_std"]
    if std is not None:
        text += f" ± {metric.shown(std)}"
    return text


def remark(board: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Whether a point failed or was chosen."""
    if row["failed"]:
        failures = []
        for failed in row["failed"]:
            failures.append(f"seed {failed['seed']}: {failed['error']}")
        return "failed for " + "; ".join(failures)
    if row["values"] == board["chosen"]:
        return "chosen"
    return ""


def heat_map(board: Mapping[str, Any], x: str, y: str) -> str:
    """Validation values over two keys as SVG; of more keys, the best over the others' values."""
    metric = headline(board["settings"]["metric"])
    columns = board["grid"][x]
    rows = board["grid"][y]
    cells: list[list[float | None]] = [[None] * len(columns) for _ in rows]
    for point in board["rows"]:
        value = point["validation"]
        if value is None:
            continue
        i = rows.index(point["values"][y])
        j = columns.index(point["values"][x])
        best = cells[i][j]
        if best is None or metric.better(value, best):
            cells[i][j] = value
    values: list[float] = []
    for line in cells:
        values += present(line)
    title = f"{metric.label} on validation data by {x} and {y}"
    if metric.unit == "percent":
        title += ", %"
    heat = Heat(
        title=title,
        rows=[f"{y} = {value}" for value in rows],
        columns=list(map(str, columns)),
        bands=[x] * len(columns),
        cells=cells,
        ends=(min(values, default=0.0), max(values, default=1.0)),
        show=metric.shown,
        of="",
    )
    return save(heat, "svg", legend=True).decode()

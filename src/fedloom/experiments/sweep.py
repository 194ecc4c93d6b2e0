"""A grid of settings for one method: a table, heat maps, a choice on validation data only."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from ..core.errors import FedloomError
from ..core.files import write_atomic
from ..engine.config import Config, build, parse_set
from ..engine.folder import Run
from ..metrics.registry import Metric, headline
from ..report.entries import present
from ..report.figures import Heat
from ..report.static import save
from .plan import Cell, Dealer, Display, Logs, carry_out
from .values import mean_and_std, value_at

Grid = dict[str, list[Any]]


def parse_grid(items: Iterable[str]) -> Grid:
    """`["mu=0,0.1", "optimizer=sgd,adam"]` as keys and their values, each once."""
    grid: Grid = {}
    for item in items:
        key, equals, text = item.partition("=")
        key = key.strip()
        if not equals or not key or not text.strip():
            raise FedloomError(f"--grid wants key=value,value,..., got {item!r}.")
        if key in grid:
            raise FedloomError(
                f"--grid has {key!r} twice; give all of its values at once, separated by commas."
            )
        try:
            values = tomllib.loads(f"values = [{text}]")["values"]
        except tomllib.TOMLDecodeError:  # bare words
            values = []
            for word in text.split(","):
                values.append(parse_set([f"{key}={word}"])[key])
        grid[key] = []
        for value in values:
            if value not in grid[key]:
                grid[key].append(value)
    if not grid:
        raise FedloomError("sweep needs at least one --grid key=value,value,...")
    return grid


def points(grid: Grid) -> list[dict[str, Any]]:
    """Every combination of values, the last key changing fastest."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def plan(
    method: str,
    grid: Grid,
    seeds: Sequence[int],
    given: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> list[Config]:
    """One config per point and seed."""
    for key in grid:
        if key in changes:
            raise FedloomError(f"{key!r} is in the grid and has a fixed value as well.")
    configs = []
    for point in points(grid):
        for seed in dict.fromkeys(seeds):
            start = {**given, "method": method, "seed": seed}
            configs.append(build(start, {**changes, **point}))
    if not configs[0].validation:
        raise FedloomError("sweep chooses on validation data, and validation = 0 leaves none.")
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

    With `report`, each run gets a page of its own.
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
    validation = []
    test = []
    failed = []
    for cell in cells:
        if cell.error:
            failed.append({"seed": cell.config.seed, "error": cell.error})
        if cell.run is None:
            continue
        metric = headline(cell.config.schedule.metric)
        validation.append(_best_on_validation(cell.run, metric))
        test.append(value_at(cell.run.summary, f"personal.{metric.key}.best_by_validation"))
    row: dict[str, Any] = {}
    row["validation"], row["validation_std"] = mean_and_std(validation)
    row["test"], row["test_std"] = mean_and_std(test)
    row["failed"] = failed
    return row


def _best_on_validation(run: Run, metric: Metric) -> float | None:
    """The headline metric on validation data in the best round of a run."""
    best: float | None = None
    for record in run.metrics:
        value = record["validation"]["personal"]
        if value is not None and (best is None or metric.better(value, best)):
            best = value
    return best


def _chosen(rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, Any] | None:
    """The values of the point that is best on validation data.

    A point that fails for some seed is out: its mean is over kinder seeds than the others'.
    """
    best: Mapping[str, Any] | None = None
    for row in rows:
        if row["validation"] is None or row["failed"]:
            continue
        if best is None or metric.better(row["validation"], best["validation"]):
            best = row
    if best is None:
        return None
    values: dict[str, Any] = best["values"]
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

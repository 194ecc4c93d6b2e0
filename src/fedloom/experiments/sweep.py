"""A grid of hyper-parameters for one method: a table, heat maps, and a choice made on validation data only."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import combinations, product
from pathlib import Path
from typing import Any

from ..core.errors import FedloomError
from ..core.files import write_atomic
from ..engine.config import Config, build, parse_set
from .plan import Cell, Display, Logs, carry_out
from .values import mean_and_std

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
            values = [parse_set([f"{key}={word}"])[key] for word in text.split(",")]
        grid[key] = [v for i, v in enumerate(values) if v not in values[:i]]
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
    if both := [key for key in grid if key in changes]:
        raise FedloomError(f"{both[0]!r} is in the grid and has a fixed value as well.")
    seeds = list(dict.fromkeys(seeds))
    configs = [
        build({**given, "method": method, "seed": seed}, {**changes, **point})
        for point in points(grid)
        for seed in seeds
    ]
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
) -> dict[str, Any]:
    """Carry out what is missing, then write `sweep.json`, `sweep.md` and a heat map for every two keys."""
    board = tabulate(grid, carry_out(configs, out, watch, logs=logs), title)
    write_atomic(out / "sweep.json", json.dumps(board, indent=1).encode())
    write_atomic(out / "sweep.md", markdown(board).encode())
    for x, y in combinations(grid, 2):
        write_atomic(out / f"heat-{x}-{y}.svg", heat_map(board, x, y).encode())
    return board


def tabulate(grid: Grid, cells: Sequence[Cell], title: str) -> dict[str, Any]:
    """One row per point. The chosen one has the highest validation accuracy, the mean over seeds; ties go to the first.

    In every run the round is chosen on validation data too; the test accuracy shown is the one of that round.
    """
    rows, each = [], len(cells) // len(points(grid))
    for i, point in enumerate(points(grid)):
        own = cells[i * each : (i + 1) * each]
        runs = [c.run for c in own if c.run]
        held = [
            max(
                (v for m in r.metrics if (v := m["validation"]["personal"]) is not None),
                default=None,
            )
            for r in runs
        ]
        tested = [
            r.summary["personal"].get("accuracy_mean", {}).get("best_by_validation") for r in runs
        ]
        row: dict[str, Any] = {"values": point}
        row["validation"], row["validation_std"] = mean_and_std(held)
        row["test"], row["test_std"] = mean_and_std(tested)
        row["failed"] = [{"seed": c.config.seed, "error": c.error} for c in own if c.error]
        rows.append(row)
    # A point that fails for some seed is not chosen: its mean is over kinder seeds than the others'.
    able = [r for r in rows if r["validation"] is not None and not r["failed"]]
    chosen = max(able, key=lambda r: r["validation"]) if able else None
    config = cells[0].config
    return {
        "title": title,
        "method": config.method,
        "settings": {
            "data": config.data,
            "partition": config.partition,
            "rounds": config.schedule.rounds,
            "seeds": sorted({c.config.seed for c in cells}),
        },
        "grid": grid,
        "rows": rows,
        "chosen": chosen["values"] if chosen else None,
        "runs": [{"values": p, "seed": c.config.seed, "folder": c.folder.name, "status": c.status}
                 for p, c in zip((p for p in points(grid) for _ in range(each)), cells, strict=True)],
    }  # fmt: skip


def markdown(board: Mapping[str, Any]) -> str:
    """The sweep as a Markdown table."""
    keys = list(board["grid"])
    lines = [f"# {board['title']}", "", f"| {' | '.join(keys)} | validation % | test % | |"]
    lines.append("|" + " ---: |" * (len(keys) + 2) + " --- |")
    for row in board["rows"]:
        values = [str(row["values"][k]) for k in keys]
        lines.append(
            f"| {' | '.join(values)} | {shown(row, 'validation')} | {shown(row, 'test')} | {remark(board, row)} |"
        )
    said = "± is the std over seeds (ddof 1). " if len(board["settings"]["seeds"]) > 1 else ""
    lines += ["", f"{said}The point and, in every run, the round are chosen on validation data; test accuracy decides "
              "nothing. Both are means over clients of their own models."]  # fmt: skip
    return "\n".join(lines) + "\n"


def shown(row: Mapping[str, Any], name: str) -> str:
    """A figure in percent with its spread."""
    if row[name] is None:
        return "-"
    std = row[f"{name}_std"]
    return f"{100 * row[name]:.1f}" + (f" ± {100 * std:.1f}" if std is not None else "")


def remark(board: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """What is to be said of a row."""
    if row["failed"]:
        return "failed for " + "; ".join(f"seed {f['seed']}: {f['error']}" for f in row["failed"])
    return "chosen" if row["values"] == board["chosen"] else ""


def heat_map(board: Mapping[str, Any], x: str, y: str) -> str:
    """Validation accuracy over two keys as SVG; with more keys, the best over the values of the others."""
    best: dict[tuple[int, int], float] = {}
    xs, ys = board["grid"][x], board["grid"][y]
    for row in board["rows"]:
        at = (xs.index(row["values"][x]), ys.index(row["values"][y]))
        if row["validation"] is not None:
            best[at] = max(best.get(at, 0.0), row["validation"])
    low, high = (min(best.values()), max(best.values())) if best else (0.0, 1.0)
    left, top, wide, tall = 110, 40, 76, 34
    parts = []
    for i, j in product(range(len(xs)), range(len(ys))):
        value = best.get((i, j))
        depth = 0.0 if value is None or high == low else (value - low) / (high - low)
        px, py = left + i * wide, top + j * tall
        said, ink = (
            "-" if value is None else f"{100 * value:.1f}",
            "#fff" if depth > 0.55 else "#222",
        )
        parts.append(
            f'<rect x="{px}" y="{py}" width="{wide - 2}" height="{tall - 2}" fill="#1f6f8b" '
            f'fill-opacity="{0.08 + 0.92 * depth:.3f}"/>'
            f'<text x="{px + wide / 2 - 1}" y="{py + tall / 2 + 4}" fill="{ink}">{said}</text>'
        )
    for i, value in enumerate(xs):
        parts.append(
            f'<text x="{left + i * wide + wide / 2 - 1}" y="{top - 8}">{escape(str(value))}</text>'
        )
    for j, value in enumerate(ys):
        middle = top + j * tall + tall / 2 + 4
        parts.append(
            f'<text x="{left - 8}" y="{middle}" text-anchor="end">{escape(str(value))}</text>'
        )
    width, height = left + len(xs) * wide + 10, top + len(ys) * tall + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12" text-anchor="middle" fill="#222">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        f'<text x="8" y="16" text-anchor="start">validation %: {escape(x)} across, {escape(y)} down</text>'
        f"{''.join(parts)}</svg>\n"
    )

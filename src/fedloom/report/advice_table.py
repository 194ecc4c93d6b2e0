"""The table of the methods that `fedloom advise` has tried: the same words everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..metrics.registry import DEFAULT, Metric


def heads(metric: Metric) -> list[str]:
    """The heads of the table."""
    sign = metric.sign
    if metric.name != DEFAULT:
        sign = f" {metric.in_a_sentence}{metric.sign}"
    return ["method", "rounds", "seeds", f"held-out{sign}", "over local there", f"test{sign}", ""]


def cells(row: Mapping[str, Any], metric: Metric) -> list[str]:
    """A row of the table as texts."""

    def change(value: float) -> str:
        return f"{metric.factor * value:+.{metric.decimals}f}"

    over = "-"
    if row["gain"] is not None:
        over = change(row["gain"])
    if row["low"] is not None:
        over += f" ({change(row['low'])} to {change(row['high'])})"
    figures = [metric.shown(row[name]) for name in ("validation", "test")]
    counts = [str(row["rounds"]), str(row["seeds"])]
    return [row["method"], *counts, figures[0], over, figures[1], row["what"]]

"""The leaderboard: a row for each method, a column for each figure, and what the columns mean."""

from __future__ import annotations

from typing import Any

from ..columns import COLUMNS, NOTES, Column
from ..entries import Entry
from ..figures import ABSENT
from ..page import Page
from . import section

EMPTY = "no evaluated round yet"


@section("leaderboard", "Leaderboard", order=10)
def leaderboard(page: Page) -> str:
    """The table with its notes."""
    columns = page.ranking.columns() or list(COLUMNS[:1])
    marks = {column.key: page.ranking.marks(column) for column in columns}
    edges = _edges(columns)
    rows = []
    for entry in page.ranking.order():
        cells = [_cell(page, entry, column, marks[column.key]) for column in columns]
        row = {"entry": entry, "about": _about(entry), "remarks": _remarks(entry), "cells": cells}
        rows.append(row)
    used = {mark for by_method in marks.values() for mark in by_method.values()}
    return page.render(
        "leaderboard.html.j2",
        groups=_groups(columns),
        columns=columns,
        edges=edges,
        rows=rows,
        marked="best" in used,
        tied="tie" in used,
        notes=_notes(columns),
    )


def _groups(columns: list[Column]) -> dict[str, int]:
    """How many columns each group has."""
    groups: dict[str, int] = {}
    for column in columns:
        groups[column.group] = groups.get(column.group, 0) + 1
    return groups


def _edges(columns: list[Column]) -> set[str]:
    """The keys of the columns that begin a group."""
    firsts: dict[str, str] = {}
    for column in columns:
        firsts.setdefault(column.group, column.key)
    return set(firsts.values())


def _cell(page: Page, entry: Entry, column: Column, marks: dict[int, str]) -> dict[str, Any]:
    value, std = page.ranking.values(column.key)[entry.number]
    return {
        "column": column,
        "value": "" if value is None else value,
        "shown": ABSENT if value is None else column.show(value),
        "spread": column.show(std).lstrip("+") if std else "",
        "mark": marks.get(entry.number, ""),
    }


def _about(entry: Entry) -> str:
    """What a method's figures are based on."""
    notes = []
    if entry.shown:
        count = len(entry.seeds)
        stages = " and ".join(dict.fromkeys(r.stage for r in entry.shown))
        seeds = "1 seed" if count == 1 else f"{count} seeds"
        notes.append(f"{seeds}, {stages} local training")
    elif not entry.failed and not entry.row:
        notes.append(EMPTY)
    if entry.row.get("note"):
        notes.append(str(entry.row["note"]))
    under_way = [r for r in entry.runs if not r.finished]
    if under_way and len(under_way) == len(entry.runs):
        rounds = [f"round {r.round} of {r.planned or '?'}" for r in under_way]
        notes.append("unfinished, " + ", ".join(rounds))
    elif under_way:
        notes.append(f"{len(under_way)} more under way")
    return "; ".join(notes)


def _remarks(entry: Entry) -> list[str]:
    """What must not be missed, such as a model that predicts one class, with the seeds."""
    seeds: dict[str, list[str]] = {}
    for run in entry.shown:
        for remark in run.remarks:
            seeds.setdefault(remark, []).append(str(run.seed))
    if len(entry.seeds) < 2:
        return list(seeds)
    return [f"{remark} (seed {', '.join(which)})" for remark, which in seeds.items()]


def _notes(columns: list[Column]) -> dict[str, str]:
    """The notes about the columns shown. One note may be about several labels, as in `Up, Down`."""
    labels = {column.label for column in columns} | {"±", "before / after local training"}
    notes = {}
    for name, note in NOTES.items():
        if name in labels or labels & set(name.split(", ")):
            notes[name] = note
    return notes

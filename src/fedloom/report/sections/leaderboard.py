"""The leaderboard: a row for each method, a column for each figure, and what the columns mean."""

from __future__ import annotations

from typing import Any

from ..columns import Column, notes_for
from ..entries import Entry, RunData, listed_seeds, number
from ..figures import ABSENT
from ..page import Page
from ..twins import SENTENCE
from . import section

EMPTY = "no evaluated round yet"


@section("leaderboard", "Leaderboard", order=10)
def leaderboard(page: Page) -> str | None:
    """The table with its notes."""
    if not page.entries:  # a live page whose runs have not begun
        return None
    columns = page.ranking.columns()
    if not columns:  # nothing is evaluated yet
        columns = [page.ranking.columns_by_key[page.ranking.headline]]
    marks = {column.key: page.ranking.marks(column) for column in columns}
    edges = _edges(columns)
    rows = []
    for entry in page.ranking.order():
        cells = [_cell(page, entry, column, marks[column.key]) for column in columns]
        about = _about(entry, entry in page.ranking.twins)
        row = {"entry": entry, "about": about, "remarks": _remarks(entry), "cells": cells}
        rows.append(row)
    used: list[str] = []
    for by_method in marks.values():
        used += by_method.values()
    return page.render(
        "leaderboard.html.j2",
        few_groups=_groups([column for column in columns if not column.minor]),
        all_groups=_groups(columns),
        columns=columns,
        edges=edges,
        rows=rows,
        marked="best" in used,
        tied="tie" in used,
        notes=_notes(columns, notes_for(page.ranking.metric, page.ranking.against)),
        more=any(column.minor for column in columns),
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
    cell = {"column": column, "mark": marks.get(entry.number, "")}
    value, std = page.ranking.values(column.key)[entry.number]
    if value is None:
        return {**cell, "value": "", "shown": ABSENT, "spread": ""}
    spread = ""
    if std:
        spread = column.show(std).lstrip("+")
    return {**cell, "value": value, "shown": column.show(value), "spread": spread}


def _about(entry: Entry, twin: bool) -> str:
    """What a method's figures are based on; a twin is one of `local`."""
    notes = []
    if entry.shown:
        stages = " and ".join(dict.fromkeys(run.stage for run in entry.shown))
        seeds = "1 seed"
        if len(entry.seeds) != 1:
            seeds = f"{len(entry.seeds)} seeds"
        notes.append(f"{seeds}, {stages} local training, {_rounds(entry)}")
    elif not entry.failed and not entry.row:
        notes.append(EMPTY)
    if twin and not entry.row.get("note"):
        notes.append(SENTENCE)
    if entry.row.get("note"):
        notes.append(str(entry.row["note"]))
    under_way = []
    for run in entry.runs:
        if not run.finished:
            under_way.append(f"round {run.round} of {run.planned or '?'}")
    if under_way and len(under_way) == len(entry.runs):
        notes.append("unfinished, " + ", ".join(under_way))
    elif under_way:
        notes.append(f"{len(under_way)} more under way")
    return "; ".join(notes)


def _rounds(entry: Entry) -> str:
    """Which rounds a method's figures are of."""
    if not all(run.by_validation for run in entry.shown):
        return "last round"
    turns = sorted({int(number(run.chosen, "round") or 0) for run in entry.shown})
    if len(turns) == 1:
        return f"round {turns[0]} by validation"
    return f"rounds {turns[0]} to {turns[-1]} by validation"


def _remarks(entry: Entry) -> list[str]:
    """What must not be missed, such as a model that predicts one class, with the seeds."""
    runs: dict[str, list[RunData]] = {}
    for run in entry.shown:
        for remark in run.remarks:
            runs.setdefault(remark, []).append(run)
    if len(entry.seeds) < 2:
        return list(runs)
    texts = []
    for remark, concerned in runs.items():
        texts.append(f"{remark} ({listed_seeds(concerned)})")
    return texts


def _notes(columns: list[Column], notes: dict[str, str]) -> dict[str, str]:
    """The notes about the columns shown. One note may be about several labels, as in `Up, Down`."""
    labels = {column.label for column in columns} | {"±", "before / after local training"}
    needed = {}
    for name, note in notes.items():
        if name in labels or labels & set(name.split(", ")):
            needed[name] = note
    return needed

"""What a table needs, whether it is at hand, what would bring it, and what stands in for it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.catalogue import KNOWN, locate
from ..data.published import published
from ..data.store import is_kept
from .recipe import recipe, tables
from .table import NOTHING, Brought, Recipe, Scale, Setting, available, is_there


def locate_data(
    setting: Setting, scale: Scale, root: str | None
) -> tuple[dict[str, Any], str | None]:
    """What to change in a setting's config so that it finds its data, or why it is not run."""
    if scale in setting.missing:
        return {}, f"not run: {setting.missing[scale]}"
    name = setting.given(scale, root)["data"]
    if is_there(name, root):
        return {}, None
    folder = root or os.environ.get("FEDLOOM_DATA")
    if folder and name not in KNOWN:
        for path in (Path(folder) / name, Path(folder) / f"{name}.npz"):
            if path.exists():
                return {"data": str(path)}, None
    wanted = setting.data
    where = "its folder goes under --data-root or FEDLOOM_DATA"
    if wanted in published():
        where = f"`{published()[wanted].command}` brings it"
    return {}, f"not run: data set {wanted} not at hand ({where})"


def lacking(
    table: Recipe, setting: Setting, scale: Scale, row: str, root: str | None, brought: Brought
) -> str | None:
    """Why a row is not run for want of an encoder."""
    filled = table.filled(scale, brought)
    wanted = []
    for slot in table.slots(setting, scale, row, root):
        if slot.name not in filled:
            wanted.append(slot)
    if not wanted:
        return None
    papers = " and ".join(slot.paper for slot in wanted)
    forms = ",".join(option_of(table, slot.name) for slot in wanted)
    return f"not run: it needs {papers}, say --encoder {forms}"


def option_of(table: Recipe, name: str) -> str:
    """What `--encoder` is given for a slot."""
    if len(table.encoders) == 1:
        return table.encoders[name].give
    return f"{name}={table.encoders[name].give}"


def told(
    table: Recipe, setting: Setting, scale: Scale, root: str | None, brought: Brought
) -> list[str]:
    """What deviates from the paper in a setting, in words."""
    sentences: list[str] = []
    for layer in setting.layers(scale, root):
        sentences += layer.differs
    filled = table.filled(scale, brought)
    for row in setting.rows:
        for slot in table.slots(setting, scale, row, root):
            if slot.differs and filled.get(slot.name) == slot.stand_in:
                sentences.append(slot.differs)
    name = setting.given(scale, root)["data"]
    place = locate(name, root)
    if scale == "full" and name in published() and place and not is_kept(place):
        sentences.append(
            f"{name} was not imported (`fedloom data import {name} RAW`): whether it is complete "
            "is not known"
        )
    return list(dict.fromkeys(sentences))


def titled(table: Recipe, scale: Scale, brought: Brought = NOTHING) -> str:
    """The table's title, with the encoders in use."""
    encoders = ", ".join(table.filled(scale, brought).values())
    return table.title.replace("{encoder}", encoders or "none at hand")


def at_hand(table: Recipe, scale: Scale, root: str | None, brought: Brought = NOTHING) -> list[str]:
    """The settings of a table of which something can be run."""
    names = []
    for setting in table.settings:
        _, why_not = locate_data(setting, scale, root)
        if why_not is None and _some_row(table, setting, scale, root, brought):
            names.append(setting.name)
    return names


def _some_row(
    table: Recipe, setting: Setting, scale: Scale, root: str | None, brought: Brought
) -> bool:
    reasons = [lacking(table, setting, scale, row, root, brought) for row in setting.rows]
    return None in reasons


def to_get(table: Recipe, root: str | None) -> list[str]:
    """The commands that bring what the paper's setting needs and what is not here."""
    commands = []
    for name in _data_sets(table):
        place = locate(name, root)
        if name in published() and not (place and is_kept(place)):
            commands.append(published()[name].command)
    return commands


def to_bring(table: Recipe) -> list[str]:
    """The encoders that the paper has, each with the option that gives it."""
    return [
        f"--encoder {option_of(table, slot.name)} ({slot.paper})"
        for slot in table.encoders.values()
    ]


def _data_sets(table: Recipe) -> Sequence[str]:
    """The paper's data sets, of those settings that the paper has."""
    wanted = [setting.data for setting in table.settings if "full" not in setting.missing]
    return list(dict.fromkeys(wanted))


def _short(title: str) -> str:
    """A title without what it says of encoders."""
    return re.sub(r" \([^()]*\{encoder\}[^()]*\)", "", title)


def _counted(table: Recipe, scale: Scale, root: str | None) -> dict[str, int]:
    """How many of the settings that a scale has find their data here."""
    settings = [setting for setting in table.settings if scale not in setting.missing]
    found = [locate_data(setting, scale, root)[1] is None for setting in settings]
    return {"here": sum(found), "all": len(settings)}


def overview(root: str | None = None, only: str | None = None) -> list[dict[str, Any]]:
    """All tables, or one: what they are, how much of them can be run here, and what is lacking."""
    names = tables()
    if only:
        names = [recipe(only).name]
    rows = []
    for name in names:
        table = recipe(name)
        able = sum(map(available, map(table.method, table.rows)))
        rows.append(
            {
                "table": name,
                "title": _short(table.title),
                "minutes": table.minutes * able,
                "rows": {"here": able, "all": len(table.rows)},
                "mini": _counted(table, "mini", root),
                "full": _counted(table, "full", root),
                "get": to_get(table, root),
                "bring": to_bring(table),
            }
        )
    return rows

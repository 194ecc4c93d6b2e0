"""The seed papers' tables as TOML files in `tables/`.

- `extends` names another table, or a paper in `tables/papers`, from which this one takes what it
  does not say itself. `[all]`, `[mini]`, `[sets]` and `[encoders]` are merged with the other's;
  what is printed (`title`, `measure`, figures, pictures) is each table's own.
- `[methods]` maps the printed rows to our methods, or to a method with settings for that row
  (`{ method = "fedpcl", hyper = { loss = "ce" } }`); a row's `who` says whose figures it shows.
- `[paper_figures]` holds the printed lines.
- `apart` gives each run a process of its own, in tables of time and memory.
- `[[drawings]]` are the pictures: a `kind` of report/table_figures and its options.
- `[[settings]]` are the blocks of columns, each with one federation. Settings with the same name
  stand side by side. `[settings.of.METHOD]` holds what a setting gives to one method only. Of its
  `rows`, `mini` runs the `mini_rows`, and others where `--only` names their methods.
- `[sets.NAME]` says what belongs to a data set in whatever setting it is used: `all`, `mini`, `of`
  and `stand_in`, as in a setting. A setting's `stand_in` that names `data` is all its own.
- `[encoders.NAME]` is a frozen network that the user has to bring: `paper` says what the paper has,
  `give` in which form it is given, `stand_in` what `mini` has in its place, and `differs` what is
  to be said then. `"{NAME}"` stands for it wherever a setting is a text.

A config is put together from layers, the last of which wins: `all` of the table, of the data set
and of the setting; at the scale `mini` those of `mini`; where another data set stands in for the
paper's, those of `stand_in`; what `of` gives to the method; the settings of the row, and at `mini`
those of its `mini`. A layer that chooses other data, another partition or another model starts
without the options (`source`, `partitioning`, `network`) of the one before. So `all` is the paper's
setting, and the table lists whatever `mini` changes. Each layer says in `differs` what else
deviates from the paper where it is used; that of a setting itself, and of `all`, is printed at
every scale.

A title with `{encoder}` names the encoders in use. Figures are shares, shown in percent, except in
the columns listed in `plain`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from ..core.errors import FedloomError, unknown
from .layers import layer, merged
from .table import Recipe, Setting, Slot

INHERITED = ("paper", "seeds", "executor", "extra", "methods", "settings")
MERGED = ("all", "mini", "sets", "encoders")


def tables() -> list[str]:
    """The names of all tables."""
    folder = files("fedloom.experiments") / "tables"
    names = []
    for file in folder.iterdir():
        if file.name.endswith(".toml"):
            names.append(file.name.removesuffix(".toml"))
    return sorted(names)


def full_name(name: str) -> str:
    """A table's name as its file has it: `fedpcl-2` for `fedpcl-table2`, `-figure3` for `-fig3`."""
    return re.sub(r"-fig\.?-?(?=\d)", "-figure", re.sub(r"-table-?(?=\d)", "-", name))


def recipe(name: str) -> Recipe:
    """The table of that name; `fedpcl-2` and `fedpcl-table2` are the same."""
    name = full_name(name)
    if name not in tables():
        raise unknown("table", name, tables(), "`fedloom reproduce --list` shows them all")
    body = _body(name)
    rows = {}
    for row, given in body["methods"].items():
        if isinstance(given, str):
            given = {"method": given}
        rows[row] = given
    for method in body.get("extra", []):  # methods that are not in the paper come last
        rows[method] = {"method": method}
    table = Recipe(
        name=name,
        title=body["title"],
        paper=body["paper"],
        measure=body["measure"],
        minutes=body["minutes"],
        seeds=body["seeds"],
        rows=rows,
        settings=[_setting(body, part, list(rows)) for part in body["settings"]],
        encoders=_slots(body.get("encoders", {})),
        figures=_split(body.get("paper_figures", {})),
        plain=body.get("plain", []),
        similar=body.get("similar"),
        costs=body.get("costs"),
        apart=body.get("apart", False),
        executor=body.get("executor", "pool"),
        means=_split(body.get("paper_means", {})),
        drawings=body.get("drawings", []),
    )
    _check(table)
    return table


def _body(name: str) -> dict[str, Any]:
    """A table's file, with what it takes from the one that it extends."""
    folder = files("fedloom.experiments") / "tables"
    file = folder / f"{name}.toml"
    if not file.is_file():
        file = folder / "papers" / f"{name}.toml"
    if not file.is_file():
        raise FedloomError(f"there is no table and no paper {name!r} to extend.")
    body = tomllib.loads(file.read_text(encoding="utf-8"))
    if "extends" not in body:
        return body
    other = _body(body.pop("extends"))
    for key in INHERITED:
        if key in other:
            body.setdefault(key, other[key])
    for key in MERGED:
        body[key] = merged(other.get(key, {}), body.get(key, {}))
    return body


def _setting(body: Mapping[str, Any], part: Mapping[str, Any], rows: list[str]) -> Setting:
    data = merged(body.get("all", {}), part.get("all", {}))["data"]
    its = body.get("sets", {}).get(data, {})
    columns = {}
    for heading, paths in part["columns"].items():
        if isinstance(paths, str):
            paths = [paths]
        columns[heading] = paths
    stand_in = None
    if "data" in part.get("stand_in", {}):
        stand_in = layer(part["stand_in"])
    elif "stand_in" in its:
        stand_in = layer(its["stand_in"], part.get("stand_in"))
    chosen = {"data": data}  # before its options
    own = {"differs": part.get("differs", [])}
    return Setting(
        name=part["name"],
        columns=columns,
        who=part.get("who", "personal"),
        paper=layer(body.get("all"), chosen, its.get("all"), part.get("all"), own),
        mini=layer(body.get("mini"), its.get("mini"), part.get("mini")),
        stand_in=stand_in,
        missing=part.get("missing", {}),
        rows=part.get("rows", rows),
        mini_rows=part.get("mini_rows", part.get("rows", rows)),
        of=merged(its.get("of", {}), part.get("of", {})),
    )


def _slots(body: Mapping[str, Mapping[str, str]]) -> dict[str, Slot]:
    slots = {}
    for name, told in body.items():
        slots[name] = Slot(
            name, told["paper"], told["give"], told.get("stand_in"), told.get("differs")
        )
    return slots


def _split(lines: Mapping[str, str]) -> dict[str, list[str]]:
    return {row: line.split() for row, line in lines.items()}


def _check(table: Recipe) -> None:
    """Refuse a recipe whose rows do not fit together."""
    width = 0
    for setting in table.settings:
        width += len(setting.columns)
    for row, line in table.figures.items():
        if len(line) != width or row not in table.rows:
            raise FedloomError(
                f"table {table.name}: the row {row!r} does not fit its {width} columns."
            )
    for setting in table.settings:
        for row in [*setting.rows, *setting.mini_rows]:
            if row not in table.rows:
                raise FedloomError(f"table {table.name}: there is no row {row!r}.")

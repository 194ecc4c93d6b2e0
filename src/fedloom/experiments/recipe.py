"""The seed papers' tables as recipes, TOML files in `tables/`.

- `[methods]` maps the printed rows to our methods, or to a method with settings for that row
  (`{ method = "fedpcl", hyper = { loss = "ce" } }`); a row's `who` says whose figures it shows.
- `[paper_figures]` holds the printed lines.
- `[[drawings]]` are the pictures: a `kind` of report/table_figures and its options.
- `[[settings]]` are the blocks of columns, each with one federation. Settings with the same name
  stand side by side. `[settings.of.METHOD]` holds what a setting gives to one method only.

A config is put together from `all` of the table and of the setting; at the scale `mini`, those of
`mini` come on top; the settings of the row come last (those of its `mini` at that scale only). So
`all` is the paper's setting, and the table lists whatever `mini` changes.

A title with `{encoder}` belongs to a paper whose encoder the user has to bring. Figures are shares,
shown in percent, except in the columns listed in `plain`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from ..core.errors import FedloomError, unknown
from ..core.lookup import names as method_names
from ..core.lookup import parsed, plugins
from ..data.catalogue import KNOWN, locate
from ..engine.config import Config, build

Scale = Literal["mini", "full"]


@dataclass(frozen=True)
class Setting:
    """One block of columns: a federation, and which figures of a run go into which column."""

    name: str
    columns: dict[str, list[str]]  # heading -> paths in a summary; the first that exists counts
    who: str  # "common" or "personal": whose figures
    given: dict[Scale, dict[str, Any]]
    missing: dict[str, str]  # scale -> what it would need
    differs: list[str]
    rows: list[str]  # the rows that have figures here
    of: dict[str, dict[str, Any]]  # method -> what only this method is given


@dataclass(frozen=True)
class Recipe:
    """One table of one paper."""

    name: str
    title: str
    paper: str
    measure: str
    minutes: float  # estimated, per method at the scale `mini`, on two idle cores
    seeds: dict[Scale, list[int]]
    rows: dict[str, dict[str, Any]]  # printed name -> `method` and the row's settings
    settings: list[Setting]
    figures: dict[str, list[str]]  # as printed, by row, over all settings' columns
    plain: list[str]  # columns that are not shares
    similar: str | None  # the row to whose prototypes a heat map compares those of the others
    costs: str | None  # the row whose time per round is 1, in tables of what a round costs
    executor: str  # the executor that suits its runs, unless the user names another
    means: dict[str, list[str]]  # row -> the paper's mean over all columns of each name
    drawings: list[dict[str, Any]]  # pictures: the `kind` of each and the options of that kind

    def printed(self, row: str, setting: Setting) -> list[str]:
        """The paper's figures of a row in a setting; dashes for rows that are not in the paper."""
        width = len(setting.columns)
        if row not in self.figures:
            return ["-"] * width
        start = 0
        for other in self.settings[: self.settings.index(setting)]:
            start += len(other.columns)
        return self.figures[row][start : start + width]

    def config(
        self, setting: Setting, scale: Scale, row: str, seed: int, execution: Mapping[str, Any]
    ) -> Config:
        """The config of one run of the table."""
        row_settings = dict(self.rows[row])
        row_settings.pop("who", None)
        only_mini = row_settings.pop("mini", {})
        layers = [setting.given[scale], setting.of.get(self.method(row), {}), row_settings]
        if scale == "mini":
            layers.append(only_mini)
        return build(
            {"standardise": False, **_merged(*layers), "seed": seed, "execution": dict(execution)}
        )

    def has(self, methods: Sequence[str], settings: Sequence[str]) -> None:
        """Refuse methods, and parts of names of settings, that are not in the table."""
        available = set(map(self.method, self.rows))
        for method in methods:
            if method not in available:
                raise unknown(f"method in table {self.name}", method, available)
        names = [setting.name for setting in self.settings]
        for part in settings:
            matching = [name for name in names if is_part([part], name)]
            if not matching:
                raise unknown(f"setting of table {self.name}", part, names)

    def method(self, row: str) -> str:
        """The method of a row."""
        return str(self.rows[row]["method"])


def is_part(parts: Sequence[str], name: str) -> bool:
    """Whether one of the parts stands in the name, whatever its case."""
    return any(part.lower() in name.lower() for part in parts)


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
    file = files("fedloom.experiments") / "tables" / f"{name}.toml"
    body = tomllib.loads(file.read_text(encoding="utf-8"))
    rows = {}
    for row, given in body["methods"].items():
        if isinstance(given, str):
            given = {"method": given}
        rows[row] = given
    for method in body["extra"]:  # methods that are not in the paper come last
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
        figures=_split(body.get("paper_figures", {})),
        plain=body.get("plain", []),
        similar=body.get("similar"),
        costs=body.get("costs"),
        executor=body.get("executor", "pool"),
        means=_split(body.get("paper_means", {})),
        drawings=body.get("drawings", []),
    )
    _check(table)
    return table


def _setting(body: Mapping[str, Any], part: Mapping[str, Any], rows: list[str]) -> Setting:
    paper = _merged(body.get("all", {}), part.get("all", {}))
    columns = {}
    for heading, paths in part["columns"].items():
        if isinstance(paths, str):
            paths = [paths]
        columns[heading] = paths
    return Setting(
        name=part["name"],
        columns=columns,
        who=part.get("who", "personal"),
        given={
            "full": paper,
            "mini": _merged(paper, body.get("mini", {}), part.get("mini", {})),
        },
        missing=part.get("missing", {}),
        differs=part.get("differs", []),
        rows=part.get("rows", rows),
        of=part.get("of", {}),
    )


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
        for row in setting.rows:
            if row not in table.rows:
                raise FedloomError(f"table {table.name}: there is no row {row!r}.")


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values put together; a later layer wins."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping):
                result[key] = _merged(result.get(key, {}), value)
            else:
                result[key] = value
    return result


def available(method: str) -> bool:
    """Whether a method and the plug-ins around it are registered."""
    base, around = parsed(method)
    return base in method_names() and set(around) <= set(plugins())


def locate_data(
    setting: Setting, scale: Scale, root: str | None
) -> tuple[dict[str, Any], str | None]:
    """What to change in a setting's config so that it finds its data, or why it is not run."""
    if scale in setting.missing:
        return {}, f"not run: {setting.missing[scale]}"
    name = setting.given[scale]["data"]
    if name == "digits4" or locate(name, root) is not None:
        return {}, None
    folder = root or os.environ.get("FEDLOOM_DATA")
    if folder and name not in KNOWN:
        for path in (Path(folder) / name, Path(folder) / f"{name}.npz"):
            if path.exists():
                return {"data": str(path)}, None
    where = "its folder goes under --data-root or FEDLOOM_DATA"
    return {}, f"not run: data set {name} not at hand ({where})"


def at_hand(table: Recipe, scale: Scale, root: str | None) -> list[str]:
    """The settings of a table whose data are available."""
    names = []
    for setting in table.settings:
        _, why_not = locate_data(setting, scale, root)
        if why_not is None:
            names.append(setting.name)
    return names


def titled(table: Recipe, scale: Scale) -> str:
    """The table's title, with the encoder that was used."""
    encoders = set()
    for setting in table.settings:
        encoder = setting.given[scale].get("encoder")
        if encoder:
            encoders.add(str(encoder))
    return table.title.replace("{encoder}", ", ".join(sorted(encoders)) or "none at hand")


def overview(root: str | None = None) -> list[dict[str, Any]]:
    """All tables: what they are, how long `mini` takes, and how much of them can be run here."""
    rows = []
    for name in tables():
        table = recipe(name)
        able = sum(map(available, map(table.method, table.rows)))
        settings = at_hand(table, "mini", root)
        rows.append(
            {
                "table": name,
                "title": titled(table, "mini"),
                "minutes": table.minutes * able,
                "rows": {"here": able, "all": len(table.rows)},
                "settings": {"here": len(settings), "all": len(table.settings)},
            }
        )
    return rows

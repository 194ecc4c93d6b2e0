"""The seed papers' tables as recipes: the paper's setting on the data at hand, our figures beside the paper's.

A recipe is a TOML file in `tables/`. `[methods]` maps the printed rows to our methods, or to a method with settings of
the row's own (`{ method = "fedpcl", hyper = { loss = "ce" } }`); `[paper_figures]` holds the printed lines.
`[[settings]]` are the blocks of columns, each with one federation. A config is put together from `all` of the table and
of the setting; at the scale `mini` those of `mini` come on top, and the row's own last (those of its `mini` at that
scale only). So `all` is the paper's setting, and whatever `mini` changes is listed in the table by itself.
`[settings.of.METHOD]` holds what a setting gives to one method only; a row's `who` says whose figures it shows.
Settings of one name stand side by side. A title with `{encoder}` belongs to a paper whose encoder is the user's to
bring. Figures are shares, shown in percent, but for the columns in `plain`. Nothing is filled in by hand: a cell is
measured or says why it is not.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any, Literal

from torch import Tensor

from ..cli.progress import Watch
from ..core.errors import FedloomError, unknown
from ..core.files import write_atomic
from ..core.lookup import names as method_names
from ..core.lookup import parsed, plugins
from ..data.catalogue import KNOWN, locate
from ..engine.checkpoint import Store
from ..engine.config import Config, build
from .compare import _at, _spread
from .flops import flops_per_round
from .pictures import curves, heat_map, lines
from .plan import Cell, Dealer, carry_out

Scale = Literal["mini", "full"]
# Where the data come from is told in words; the rest of these changes no figure.
TOLD_ELSEWHERE = ("data", "source", "seed", "execution", "method", "hyper", "format")


@dataclass(frozen=True)
class Setting:
    """One block of columns: a federation, and which figures of a run go into which column."""

    name: str
    columns: dict[str, list[str]]  # heading -> paths in a summary, the first that is there counts
    who: str  # "common" or "personal": whose figures
    given: dict[Scale, dict[str, Any]]
    missing: dict[str, str]  # scale -> what it would need
    differs: list[str]
    rows: list[str]  # the rows that have figures here
    of: dict[str, dict[str, Any]]  # method -> what is given to it alone


@dataclass(frozen=True)
class Recipe:
    """One table of one paper."""

    name: str
    title: str
    paper: str
    measure: str
    minutes: float  # estimated, per method at the scale `mini`, on two idle cores
    seeds: dict[Scale, list[int]]
    rows: dict[
        str, dict[str, Any]
    ]  # as printed -> `method` and settings of the row's own; those not in the paper last
    settings: list[Setting]
    figures: dict[str, list[str]]  # as printed, by row, over all settings' columns
    plain: list[str]  # columns that are no shares
    similar: (
        str | None
    )  # the row with whose prototypes those of the others are compared, in a heat map
    costs: str | None  # the row whose time per round is 1: what a round costs is counted
    executor: str  # what suits its runs, where the user says nothing
    means: dict[
        str, list[str]
    ]  # row -> the paper's mean over all columns of a name, by name; empty: no such column
    charts: dict[str, list[str]]  # a picture's name -> the settings along its axis
    curves: str | None  # what is drawn by round, a picture for each setting

    def printed(self, row: str, setting: Setting) -> list[str]:
        """The paper's figures of a row in a setting; dashes for rows that are not in the paper."""
        if row not in self.figures:
            return ["-"] * len(setting.columns)
        start = sum(len(s.columns) for s in self.settings[: self.settings.index(setting)])
        return self.figures[row][start : start + len(setting.columns)]

    def config(
        self, setting: Setting, scale: Scale, row: str, seed: int, execution: Mapping[str, Any]
    ) -> Config:
        """A run of the table."""
        own = {k: v for k, v in self.rows[row].items() if k != "who"}
        small = own.pop("mini", {})
        given = _merged(setting.given[scale], setting.of.get(self.method(row), {}))
        given = _merged(_merged(given, own), small if scale == "mini" else {})
        return build({**given, "seed": seed, "execution": dict(execution)})

    def has(self, methods: Sequence[str], settings: Sequence[str]) -> None:
        """Refuse methods and parts of names of settings that are not in the table."""
        there = {self.method(row) for row in self.rows}
        if strange := [m for m in methods if m not in there]:
            raise unknown(f"method in table {self.name}", strange[0], there)
        called = [s.name for s in self.settings]
        if strange := [
            part for part in settings if not any(part.lower() in name.lower() for name in called)
        ]:
            raise unknown(f"setting of table {self.name}", strange[0], called)

    def method(self, row: str) -> str:
        """The method of a row."""
        return str(self.rows[row]["method"])


def tables() -> list[str]:
    """The names of all tables."""
    folder = files("fedloom.experiments") / "tables"
    return sorted(
        f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")
    )


def full_name(name: str) -> str:
    """The name of a table as its file has it: `fedpcl-table2` is `fedpcl-2`, `fedpcl-fig3` is `fedpcl-figure3`."""
    return re.sub(r"-fig\.?-?(?=\d)", "-figure", re.sub(r"-table-?(?=\d)", "-", name))


def recipe(name: str) -> Recipe:
    """The table of that name; `fedpcl-2` and `fedpcl-table2` are the same."""
    name = full_name(name)
    if name not in tables():
        raise unknown("table", name, tables(), "`fedloom reproduce --list` shows them all")
    body = tomllib.loads(
        (files("fedloom.experiments") / "tables" / f"{name}.toml").read_text(encoding="utf-8")
    )
    rows = {
        row: {"method": own} if isinstance(own, str) else own
        for row, own in body["methods"].items()
    }
    rows |= {method: {"method": method} for method in body["extra"]}
    made = []
    for s in body["settings"]:
        paper = _merged(body.get("all", {}), s.get("all", {}))
        mini = _merged(_merged(paper, body.get("mini", {})), s.get("mini", {}))
        columns = {
            head: [path] if isinstance(path, str) else path for head, path in s["columns"].items()
        }
        given: dict[Scale, dict[str, Any]] = {"full": paper, "mini": mini}
        shown = s.get("rows", list(rows))
        made.append(
            Setting(
                s["name"],
                columns,
                s.get("who", "personal"),
                given,
                s.get("missing", {}),
                s.get("differs", []),
                shown,
                s.get("of", {}),
            )
        )
    figures = {row: line.split() for row, line in body.get("paper_figures", {}).items()}
    width = sum(len(s.columns) for s in made)
    if wrong := [row for row, line in figures.items() if len(line) != width or row not in rows]:
        raise FedloomError(f"table {name}: the row {wrong[0]!r} does not fit its {width} columns.")
    if wrong := [row for s in made for row in s.rows if row not in rows]:
        raise FedloomError(f"table {name}: there is no row {wrong[0]!r}.")
    return Recipe(
        name,
        body["title"],
        body["paper"],
        body["measure"],
        body["minutes"],
        body["seeds"],
        rows,
        made,
        figures,
        body.get("plain", []),
        body.get("similar"),
        body.get("costs"),
        body.get("executor", "pool"),
        {row: line.split() for row, line in body.get("paper_means", {}).items()},
        body.get("charts", {}),
        body.get("curves"),
    )


def reproduce(
    name: str,
    scale: Scale,
    out: Path,
    watch: Watch,
    only: Sequence[str] = (),
    execution: Mapping[str, Any] | None = None,
    encoder: str | None = None,
    settings: Sequence[str] = (),
    precision: str | None = None,
) -> dict[str, Any]:
    """Carry out what is missing of a table, then write `table.json`, `table.md` and pictures of figures.

    `only` restricts the methods, `settings` the settings (by parts of their names); `encoder` and `precision` take the
    place of the recipe's.
    """
    table, execution = recipe(name), dict(execution or {})
    for setting in table.settings:
        given = setting.given[scale]
        if encoder:
            given["encoder"] = encoder
        if precision:
            given["training"] = {**given.get("training", {}), "precision": precision}
    reasons = {row: _why_not(table.method(row), only) for row in table.rows}
    table.has(only, settings)
    blocks, plans = [], []
    for setting in table.settings:
        given, lack = _with_data(setting, scale, execution.get("data_root"))
        if settings and not is_part(settings, setting.name):
            lack = "not run: left out"
        if "{encoder}" in table.title and not setting.given[scale].get("encoder"):
            lack = "not run: it needs CLIP's weights, say --encoder clip:PATH"
        rows = [row for row in setting.rows if reasons[row] is None] if lack is None else []
        setting.given[scale].update(given)
        plans.append(
            [
                (row, table.config(setting, scale, row, s, execution))
                for s in table.seeds[scale]
                for row in rows
            ]
        )
        blocks.append(lack)
    watch.total(sum(config.schedule.rounds for plan in plans for _, config in plan))
    dealer = Dealer()
    labels = [
        f"{s.name}: {row}" for s, plan in zip(table.settings, plans, strict=True) for row, _ in plan
    ]
    cells = carry_out(
        [config for plan in plans for _, config in plan], out, watch, dealer, labels=labels
    )
    board: dict[str, Any] = {
        "table": table.name, "title": titled(table, scale), "paper": table.paper, "measure": table.measure,
        "scale": scale, "seeds": table.seeds[scale], "means": table.means,
        "seconds": sum(c.run.summary["seconds"] for c in cells if c.run), "settings": [], "pictures": [],
    }  # fmt: skip
    pictures: list[str] = board["pictures"]
    for setting, plan, lack in zip(table.settings, plans, blocks, strict=True):
        own, cells = cells[: len(plan)], cells[len(plan) :]
        pairs = [(row, cell) for (row, _), cell in zip(plan, own, strict=True)]
        if table.similar:
            compare_prototypes(pairs, table.similar)
        if table.costs:
            count_costs(pairs, table.costs, dealer)
        board["settings"].append(_block(table, setting, scale, pairs, reasons, lack))
        if table.curves and any(cell.run for _, cell in pairs):
            runs = {
                row: [c.run for name, c in pairs if name == row and c.run] for row in setting.rows
            }
            picture = curves(f"{setting.name} by round", setting.who, table.curves, runs)
            pictures.append(f"{setting.name.replace(' ', '-')}-by-round.svg")
            write_atomic(out / pictures[-1], picture.encode())
    for chart, along in table.charts.items():
        pictures.append(f"{chart.replace(' ', '-')}.svg")
        write_atomic(out / pictures[-1], lines(board, chart, along).encode())
    for block in board["settings"] if table.similar else ():
        pictures.append(f"{block['name']}.svg")
        write_atomic(out / pictures[-1], heat_map(block).encode())
    write_atomic(out / "table.json", json.dumps(board, indent=1, ensure_ascii=False).encode())
    write_atomic(out / "table.md", markdown(board).encode())
    return board


def at_hand(table: Recipe, scale: Scale, root: str | None) -> list[str]:
    """The settings of a table whose data are here."""
    return [s.name for s in table.settings if _with_data(s, scale, root)[1] is None]


def is_part(parts: Sequence[str], name: str) -> bool:
    """Whether one of the parts stands in the name, whatever its case."""
    return any(part.lower() in name.lower() for part in parts)


def _why_not(method: str, only: Sequence[str]) -> str | None:
    if not _here(method):
        return "not run: method not available"
    return "not run: left out" if only and method not in only else None


def _here(method: str) -> bool:
    """Whether a method and the plug-ins round it are known."""
    base, around = parsed(method)
    return base in method_names() and set(around) <= set(plugins())


def _with_data(
    setting: Setting, scale: Scale, root: str | None
) -> tuple[dict[str, Any], str | None]:
    """Where a setting's data are, or why it is not run."""
    if scale in setting.missing:
        return {}, f"not run: {setting.missing[scale]}"
    name = setting.given[scale]["data"]
    if name == "digits4" or locate(name, root) is not None:
        return {}, None
    place = root or os.environ.get("FEDLOOM_DATA")
    if place and name not in KNOWN:
        for path in (Path(place) / name, Path(place) / f"{name}.npz"):
            if path.exists():
                return {"data": str(path)}, None
    return (
        {},
        f"not run: data set {name} not at hand (its folder goes under --data-root or FEDLOOM_DATA)",
    )


def _block(
    table: Recipe,
    setting: Setting,
    scale: Scale,
    cells: Sequence[tuple[str, Cell]],
    reasons: Mapping[str, str | None],
    lack: str | None,
) -> dict[str, Any]:
    """One setting's part of the table, as plain values."""
    rows = []
    for row in setting.rows:
        own = [c for of, c in cells if of == row]
        failed = [f"failed for seed {c.config.seed}: {c.error}" for c in own if c.error]
        who = table.rows[row].get("who", setting.who)
        values = [
            [_figure(c, who, paths) for c in own if c.run] for paths in setting.columns.values()
        ]
        ours = [dict(zip(("mean", "std"), _spread(v), strict=True)) for v in values]
        rows.append(
            {
                "row": row,
                "method": table.method(row),
                "ours": ours if own else None,
                "paper": table.printed(row, setting),
                "remark": lack or reasons[row] or "; ".join(failed) or None,
            }
        )
    described = next((c.run.federation["clients"] for _, c in cells if c.run), None)
    return {
        "name": setting.name,
        "columns": list(setting.columns),
        "plain": [c in table.plain for c in setting.columns],
        "rows": rows,
        "data": _described(described) if described else None,
        "differs": [*setting.differs, *_changed(table, setting), *_fewer(table)]
        if scale == "mini"
        else [],
    }


def titled(table: Recipe, scale: Scale) -> str:
    """The table's title, with the encoder that was used."""
    used = sorted(
        {
            str(s.given[scale].get("encoder"))
            for s in table.settings
            if s.given[scale].get("encoder")
        }
    )
    return table.title.replace("{encoder}", ", ".join(used) or "none at hand")


def _figure(cell: Cell, who: str, paths: Sequence[str]) -> float | None:
    """One number of a run's summary; of a common model, from its own figures, where they have it."""
    assert cell.run is not None
    summary = cell.run.summary
    own = summary["common"] if who == "common" and summary.get("common") else {}
    tried = ((part, path) for path in paths for part in (own, summary))
    return next((v for part, path in tried if (v := _at(part, path)) is not None), None)


def _described(clients: Sequence[Mapping[str, Any]]) -> str:
    trained = sum(c["train"] + c["validation"] for c in clients)
    return f"{len(clients)} clients with {trained} training samples"


def _fewer(table: Recipe) -> list[str]:
    """That there are fewer seeds than in the paper, if so."""
    ours, theirs = len(table.seeds["mini"]), len(table.seeds["full"])
    return [f"{ours} seed{'s' * (ours > 1)}, not {theirs}"] if ours < theirs else []


def _changed(table: Recipe, setting: Setting) -> list[str]:
    """What `mini` changes in the paper's setting, apart from the data.

    Where the paper's network is not to be had, `all` names another one, and the setting says so in words.
    """
    row = next(row for row in setting.rows if _here(table.method(row)))
    ours, theirs = (_flat(table.config(setting, scale, row, 0, {})) for scale in ("mini", "full"))
    silent = ("model", "network.", "encoder") if "full" in setting.missing else ()
    silent = (*silent, "encoder") if "{encoder}" in table.title else silent  # the title says which
    changed = {k: v for k, v in ours.items() if v != theirs.get(k) and not k.startswith(silent)}
    return [f"{key} = {value} (paper: {theirs.get(key)})" for key, value in changed.items()]


def _flat(config: Config) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json", exclude=set(TOLD_ELSEWHERE)).items():
        found |= (
            {f"{name}.{k}": v for k, v in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return found


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = {k: dict(v) if isinstance(v, Mapping) else v for k, v in below.items()}
    for key, value in above.items():
        result[key] = _merged(result.get(key, {}), value) if isinstance(value, Mapping) else value
    return result


def text(figure: Mapping[str, float | None], plain: bool = False) -> str:
    """One of our figures written like the papers': mean(std) in percent, or a plain number."""
    mean, std = figure["mean"], figure["std"]
    if mean is None:
        return "-"
    if plain:
        return f"{mean:.0f}" if mean >= 1000 or mean == int(mean) else f"{mean:.2f}"
    return f"{100 * mean:.2f}" + (f"({100 * std:.2f})" if std is not None else "")


def texts(block: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Our figures of a row, a dash for each if there are none."""
    if not row["ours"]:
        return ["-"] * len(block["columns"])
    return [text(figure, plain) for figure, plain in zip(row["ours"], block["plain"], strict=True)]


def markdown(board: Mapping[str, Any]) -> str:
    """The table as Markdown, with everything that differs from the paper beside it."""
    seeds = ", ".join(map(str, board["seeds"]))
    lines = [f"# {board['title']}", "", f"{board['paper']}.", "", board["measure"], ""]
    lines.append(
        f"Scale {board['scale']}, seeds {seeds}; the runs took {board['seconds'] / 60:.1f} minutes."
    )
    for block in asked_for(board):
        printed = any(set(row["paper"]) != {"-"} for row in block["rows"])
        who = ("ours", "paper") if printed else ("ours",)
        heads = [f"{c}, {w}" for c in block["columns"] for w in who]
        lines += ["", f"## {block['name']}", "", f"| method | {' | '.join(heads)} | |"]
        lines.append(f"| --- |{' ---: |' * len(heads)} --- |")
        for row in block["rows"]:
            pairs = [
                x
                for pair in zip(texts(block, row), row["paper"], strict=True)
                for x in pair[: len(who)]
            ]
            lines.append(f"| {row['row']} | {' | '.join(pairs)} | {row['remark'] or ''} |")
        if block["data"]:
            lines += ["", f"Ours: {block['data']}."]
        if block["differs"]:
            lines += ["", "Differs from the paper:", *(f"- {d}" for d in block["differs"])]
    for name in board.get("pictures", ()):
        lines += ["", f"![{name.removesuffix('.svg')}](<{name}>)"]
    return "\n".join(lines) + "\n"


def asked_for(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a table that were not left out on purpose."""
    return [
        b
        for b in side_by_side(board)
        if any(row["remark"] != "not run: left out" for row in b["rows"])
    ]


def side_by_side(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Blocks of one name and the same rows as one, their columns beside each other and, where the paper has one, a
    column of means."""
    joined: dict[tuple[str, ...], dict[str, Any]] = {}
    for block in board["settings"]:
        name = (block["name"], *(row["row"] for row in block["rows"]))
        blank = [{"mean": None, "std": None}] * len(block["columns"])
        rows = [
            {
                **row,
                "ours": row["ours"] or blank,
                "any": bool(row["ours"]),
                "not": [] if row["ours"] else block["columns"],
            }
            for row in block["rows"]
        ]
        if name not in joined:
            joined[name] = {**block, "rows": rows}
            continue
        whole = joined[name]
        for row, more in zip(whole["rows"], rows, strict=True):
            row["ours"], row["paper"] = (
                [*row["ours"], *more["ours"]],
                [*row["paper"], *more["paper"]],
            )
            row["any"], row["not"] = row["any"] or more["any"], [*row["not"], *more["not"]]
            row["remark"] = (
                "; ".join(dict.fromkeys(r for r in (row["remark"], more["remark"]) if r)) or None
            )
        whole["columns"], whole["plain"] = (
            [*whole["columns"], *block["columns"]],
            [*whole["plain"], *block["plain"]],
        )
        whole["data"] = (
            "; ".join(dict.fromkeys(d for d in (whole["data"], block["data"]) if d)) or None
        )
        whole["differs"] = list(dict.fromkeys([*whole["differs"], *block["differs"]]))
    for number, whole in enumerate(joined.values()):
        for row in whole["rows"]:
            some, lacking = row.pop("any"), row.pop("not")
            row["ours"] = row["ours"] if some else None
            if some and lacking:  # each column's own reason is in the file
                row["remark"] = f"not run: {', '.join(lacking)}"
        if board.get("means"):
            _with_mean(whole, {row: line[number] for row, line in board["means"].items()})
    return list(joined.values())


def _with_mean(block: dict[str, Any], printed: Mapping[str, str]) -> None:
    """Adds a column: the mean over the columns that were measured, beside the paper's over all of its own."""
    block["columns"], block["plain"] = [*block["columns"], "Mean"], [*block["plain"], False]
    for row in block["rows"]:
        row["paper"] = [*row["paper"], printed.get(row["row"], "-")]
        if row["ours"]:
            known = [f["mean"] for f in row["ours"] if f["mean"] is not None]
            row["ours"] = [
                *row["ours"],
                {"mean": sum(known) / len(known) if known else None, "std": None},
            ]
    block["differs"] = [
        *block["differs"],
        "Mean: ours is over the columns measured here, the paper's over all its own",
    ]


def compare_prototypes(cells: Sequence[tuple[str, Cell]], to: str) -> None:
    """Put into each run's summary how like its clients' class prototypes are to those of the row `to`, by domain.

    The likeness of two clients is the mean over classes of the inner products of their prototypes, as the server last
    received them; over the domains, a run's figures are scaled to sum to 1. The runs of `to` itself get none.
    """
    sets = {(row, c.config.seed): _received(c) for row, c in cells if c.run}
    for row, c in cells:
        if c.run and row != to and (to, c.config.seed) in sets:
            like = (sets[row, c.config.seed] * sets[to, c.config.seed]).sum(2).mean(1)
            shares = (like / like.sum()).tolist()
            domains = [client["domain"] for client in c.run.federation["clients"]]
            c.run.summary["similarity"] = dict(zip(domains, shares, strict=True))


def count_costs(cells: Sequence[tuple[str, Cell]], to: str, dealer: Dealer) -> None:
    """Put into each run's summary what a round costs: numbers and megabytes sent up by all clients, floating-point
    operations of local training, and the time of a round without evaluation, relative to that of the row `to`."""
    seconds = {(row, c.config.seed): _seconds(c) for row, c in cells if c.run}
    for row, c in cells:
        if c.run:
            summary, own, base = (
                c.run.summary,
                seconds[row, c.config.seed],
                seconds.get((to, c.config.seed)),
            )
            flops = flops_per_round(c.run, dealer(c.config))
            summary["cost"] = {
                "upload": (summary["floats"] or {}).get("up", 0)
                * len(c.run.federation["clients"])
                / 1e7,
                "megabytes": summary["bytes"]["up"]["per_round"] / 1e6,
                "flops": None if flops is None else flops / 1e10,
                "seconds": own,
                "ratio": own / base if own and base else None,
            }


def _seconds(cell: Cell) -> float | None:
    """The median time of a round that was not evaluated."""
    assert cell.run is not None
    scored = {m["round"] for m in cell.run.metrics}
    plain = [t["seconds"] for t in cell.run.timing if t["round"] not in scored]
    return median(plain) if plain else None


def _received(cell: Cell) -> Tensor:
    """Every client's prototypes at the end of a finished run."""
    server = Store(cell.folder / "checkpoint").load().server
    assert server is not None
    return server.tensor("every")


def overview(root: str | None = None) -> list[dict[str, Any]]:
    """All tables: what they are, how long `mini` takes, and how much of them can be run here."""
    found = []
    for name in tables():
        table = recipe(name)
        able = [r for r in table.rows if _here(table.method(r))]
        blocks = at_hand(table, "mini", root)
        found.append(
            {
                "table": name,
                "title": titled(table, "mini"),
                "minutes": table.minutes * len(able),
                "rows": {"here": len(able), "all": len(table.rows)},
                "settings": {"here": len(blocks), "all": len(table.settings)},
            }
        )
    return found

"""What is run of a table: its settings, each with the configs of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..client.training import NOT_ONLY_OF_STEPS, Training
from ..core.errors import FedloomError
from ..core.lookup import find
from ..engine.config import Config
from ..engine.folder import Run
from ..report.table_figures import Runs
from .board import LEFT_OUT
from .needs import lacking, locate_data, told
from .plan import Cell, changes_for, finished_runs, name_of, owner_of, refuse_private
from .table import NOTHING, Brought, Recipe, Scale, Setting, available

# What a table says of its settings in words, and what is said elsewhere.
IN_WORDS = {"data", "source", "hyper"}
SILENT = {"seed", "method", "encoder", "pixels"}


@dataclass(frozen=True)
class Order:
    """What is asked of a table."""

    scale: Scale
    only: Sequence[str] = ()  # methods
    settings: Sequence[str] = ()  # parts of their names
    execution: Mapping[str, Any] = field(default_factory=dict)
    brought: Brought = NOTHING
    shard: tuple[int, int] | None = None  # the first of three is (1, 3)

    @property
    def root(self) -> str | None:
        """Where the data lie."""
        return self.execution.get("data_root")

    def seeds(self, table: Recipe) -> list[int]:
        """The seeds that are run: the user's, or the table's."""
        return list(self.brought.seeds) or table.seeds[self.scale]


@dataclass
class Block:
    """One setting of a table: what is run of it, and what came out."""

    setting: Setting
    reasons: dict[str, str | None]  # why a row is not run
    plan: list[tuple[str, Config]]  # each run with its row
    absent: list[Config]  # runs that are asked for and whose data or weights are not at hand
    cells: list[tuple[str, Cell]] = field(default_factory=list)

    def of_row(self, row: str) -> list[Cell]:
        """The runs of a row."""
        return [cell for its_row, cell in self.cells if its_row == row]

    @property
    def runs(self) -> list[Run]:
        """The runs that did not fail."""
        return finished_runs(cell for _, cell in self.cells)

    def by_row(self) -> Runs:
        """The runs that did not fail, for pictures."""
        rows = {row: finished_runs(self.of_row(row)) for row in self.setting.rows}
        return Runs(self.setting.name, self.setting.who, rows)


def all_configs(blocks: Sequence[Block]) -> list[Config]:
    """The configs of all runs."""
    configs = []
    for block in blocks:
        configs += [config for _, config in block.plan]
    return configs


def absent_configs(blocks: Sequence[Block]) -> list[Config]:
    """The configs of all runs whose data or weights are not at hand."""
    configs = []
    for block in blocks:
        configs += block.absent
    return configs


def planned(table: Recipe, order: Order) -> list[Block]:
    """Every setting with the configs of its runs, seed by seed."""
    table.has(order.only, order.settings)
    _refuse_changes(table, order)
    _refuse_encoders(table, order)
    blocks = []
    for setting in table.settings:
        found, why_not = locate_data(setting, order.scale, order.root)
        reasons = {}
        lack = []  # rows for which data or weights are to be brought
        for row in setting.rows:
            reasons[row] = _not_asked(table, setting, row, order)
            if reasons[row] is None:
                damage = _damage(table, setting, row, order)
                reasons[row] = why_not or _lacking(table, setting, row, order) or damage
                if reasons[row] and not damage:
                    lack.append(row)
            elif reasons[row] != LEFT_OUT:
                reasons[row] = why_not or reasons[row]
        block = Block(setting, reasons, [], [])
        for seed in order.seeds(table):
            for row in setting.rows:
                if reasons[row] is None:
                    config = _config(table, setting, row, seed, order)
                    block.plan.append((row, config.model_copy(update=found)))
                elif row in lack:
                    block.absent.append(_config(table, setting, row, seed, _imagined(table, order)))
        blocks.append(block)
    _refuse_alike(table, order, blocks)
    return blocks


def _refuse_alike(table: Recipe, order: Order, blocks: Sequence[Block]) -> None:
    """Refuse changes that make alike what the table compares: its rows, or its settings."""
    if not order.brought.changes:
        return
    first = order.seeds(table)[0]
    usual = Brought(order.brought.encoders)
    seen: dict[str, tuple[str, str, str]] = {}
    for block in blocks:
        for row, config in block.plan:
            if config.seed != first:
                continue
            setting = block.setting
            unchanged = table.config(setting, order.scale, row, first, order.execution, usual)
            mine = (unchanged.hash(), setting.name, row)
            other = seen.setdefault(config.hash(), mine)
            if other[0] != mine[0]:
                changes = ", ".join(
                    f"{key}={value}" for key, value in order.brought.changes.items()
                )
                raise FedloomError(
                    f"--set {changes} would make alike what table {table.name} compares: row "
                    f"{other[2]!r} of {other[1]!r} and row {row!r} of {setting.name!r}."
                )


def _not_asked(table: Recipe, setting: Setting, row: str, order: Order) -> str | None:
    """Why a row is not run whatever is at hand."""
    method = table.method(row)
    if order.settings and not setting.chosen(order.settings):
        return LEFT_OUT
    if order.scale in setting.missing:
        return f"not run: {setting.missing[order.scale]}"
    if not available(method):
        return "not run: method not available"
    if order.only and method not in order.only:
        return LEFT_OUT
    if order.scale == "mini" and not order.only and row not in setting.mini_rows:
        return "not run at the scale mini unless --only names its method"
    return None


def _lacking(table: Recipe, setting: Setting, row: str, order: Order) -> str | None:
    return lacking(table, setting, order.scale, row, order.root, order.brought)


def _imagined(table: Recipe, order: Order) -> Order:
    """The same order with the published encoders, where some are to be brought."""
    published = {name: slot.give for name, slot in table.encoders.items()}
    encoders = {**published, **table.filled(order.scale, order.brought)}
    return replace(order, brought=replace(order.brought, encoders=encoders))


def _damage(table: Recipe, setting: Setting, row: str, order: Order) -> str | None:
    """Why a row cannot be run whatever is brought: its data are there but damaged, say."""
    try:
        encoders = Brought(order.brought.encoders)
        table.config(setting, order.scale, row, 0, order.execution, encoders)
    except FedloomError as error:
        return f"not run: {error}"
    return None


def _config(table: Recipe, setting: Setting, row: str, seed: int, order: Order) -> Config:
    """The config of a run with the user's changes, each of which must have a place in it."""
    methods = _methods(table, order)
    changes = changes_for(table.method(row), methods, order.brought.changes)
    brought = Brought(order.brought.encoders, changes)
    try:
        return table.config(setting, order.scale, row, seed, order.execution, brought)
    except FedloomError as error:
        if not changes:
            raise
        raise FedloomError(f"setting {setting.name!r}, row {row!r}: {error}") from None


def _methods(table: Recipe, order: Order) -> list[str]:
    """The methods that are run."""
    methods = []
    for row in table.rows:
        method = table.method(row)
        if available(method) and (not order.only or method in order.only):
            methods.append(method)
    return list(dict.fromkeys(methods))


def _refuse_changes(table: Recipe, order: Order) -> None:
    """Refuse changes that only some methods know, and what has options of its own."""
    methods = _methods(table, order)
    choices = table.settings[0].given(order.scale, order.root)
    for key, value in order.brought.changes.items():
        refuse_private(key, value, methods, choices)
        if key == "seed":
            raise FedloomError(f"--set seed={value}: a table's seeds are given with --seeds.")
        if key == "method":
            raise FedloomError(f"--set method={value}: --only chooses methods of the table.")
        _refuse_for_those_who_train(key, value, methods)


def _refuse_for_those_who_train(key: str, value: Any, methods: Sequence[str]) -> None:
    """Refuse a setting of local training where nobody trains."""
    owner, rest = owner_of(key, list(map(name_of, methods)))
    section, _, bare = rest.rpartition(".")
    of_steps = Training.model_fields.keys() - NOT_ONLY_OF_STEPS
    if section not in ("", "training") or bare not in of_steps:
        return
    reached = [method for method in methods if owner in (None, name_of(method))]
    if reached and not any(find(method).traits.trains for method in reached):
        names = ", ".join(map(name_of, reached))
        raise FedloomError(
            f"--set {key}={value} would change nothing: none of these trains ({names})."
        )


def _refuse_encoders(table: Recipe, order: Order) -> None:
    """Refuse encoders that no row that is asked for has a place for."""
    used: set[str] = set()
    for setting in table.settings:
        for row in setting.rows:
            if _not_asked(table, setting, row, order) is None:
                slots = table.slots(setting, order.scale, row, order.root)
                used.update(slot.name for slot in slots)
    for name, encoder in order.brought.encoders.items():
        if name not in used:
            raise FedloomError(
                f"--encoder {name}={encoder}: no row that is chosen uses it "
                f"(they use: {', '.join(sorted(used)) or 'none'}); leave it out."
            )


# ------------------------------------------------------------------------------ what differs


def differences(table: Recipe, setting: Setting, order: Order) -> list[str]:
    """What deviates from the paper in a setting that is run: in words, in settings, in seeds."""
    sentences = told(table, setting, order.scale, order.root, order.brought)
    return [*sentences, *_changed(table, setting, order), *_fewer_seeds(table, order)]


def _fewer_seeds(table: Recipe, order: Order) -> list[str]:
    """A line if there are fewer seeds than in the paper."""
    ours = len(order.seeds(table))
    theirs = len(table.seeds["full"])
    if ours >= theirs:
        return []
    if ours == 1:
        return [f"1 seed, not {theirs}"]
    return [f"{ours} seeds, not {theirs}"]


def _changed(table: Recipe, setting: Setting, order: Order) -> list[str]:
    """The settings that are not the paper's.

    Encoders are told in words; so are data and methods, unless it is the user who changes them.
    """
    row = next(row for row in setting.rows if available(table.method(row)))
    here = Order(order.scale, execution={"data_root": order.root}, brought=order.brought)
    paper = _flat(table.config(setting, "full", row, 0, {}))
    usual = _flat(table.config(setting, order.scale, row, 0, here.execution))
    changes = []
    for key, value in _flat(_config(table, setting, row, 0, here)).items():
        theirs = paper.get(key)
        if value == theirs or key in SILENT or "{" in str(theirs):
            continue
        if key.split(".")[0] not in IN_WORDS or value != usual.get(key):
            changes.append(f"{key} = {value} (paper: {theirs})")
    return changes


def _flat(config: Config) -> dict[str, Any]:
    """The config's values by key: `model`, `training.lr`."""
    flat: dict[str, Any] = {}
    for name, value in config.what().items():
        if isinstance(value, dict):
            for key, inner in value.items():
                flat[f"{name}.{key}"] = inner
        else:
            flat[name] = value
    return flat

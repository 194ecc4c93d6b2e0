"""A paper's table: its rows, its settings, and the config of each of its runs.

The tables are TOML files, which `recipe.py` reads and explains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..core.errors import FedloomError, unknown
from ..core.lookup import names as method_names
from ..core.lookup import parsed, plugins
from ..data.catalogue import locate
from ..engine.config import Config, build
from .layers import Layer, stacked

Scale = Literal["mini", "full"]
SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Slot:
    """A frozen network that the paper has and the user has to bring."""

    name: str
    paper: str  # what the paper has
    give: str  # the form in which an encoder is given
    stand_in: str | None  # what the scale `mini` has in its place
    differs: str | None  # what is to be said then


@dataclass(frozen=True)
class Setting:
    """One block of columns: a federation, and which figures of a run go into which column."""

    name: str
    columns: dict[str, list[str]]  # heading -> paths in a summary; the first that exists counts
    who: str  # "common" or "personal": whose figures
    paper: Layer  # the paper's setting
    mini: Layer  # what the scale `mini` changes in it
    stand_in: Layer | None  # what `mini` changes where the paper's data set is not at hand
    missing: dict[str, str]  # scale -> why it is not run
    rows: list[str]  # the rows that have figures here
    of: dict[str, dict[str, Any]]  # method -> what only this method is given
    mini_rows: list[str]  # the rows that `mini` runs unless it is asked for others

    @property
    def data(self) -> str:
        """The paper's data set."""
        return str(self.paper.given["data"])

    def chosen(self, parts: Sequence[str]) -> bool:
        """Whether parts of names choose it: of its own name or, in full, its data set's."""
        return is_part(parts, self.name) or self.data in [part.lower() for part in parts]

    def stands_in(self, scale: Scale, root: str | None) -> bool:
        """Whether another data set stands in for the paper's, which is not at hand."""
        return scale == "mini" and self.stand_in is not None and not is_there(self.data, root)

    def layers(self, scale: Scale, root: str | None) -> list[Layer]:
        """The layers of a config that hold here, the last of which wins."""
        layers = [self.paper]
        if scale == "mini":
            layers.append(self.mini)
        if self.stands_in(scale, root) and self.stand_in:
            layers.append(self.stand_in)
        return layers

    def given(self, scale: Scale, root: str | None) -> dict[str, Any]:
        """The settings that all rows share."""
        return stacked(*[layer.given for layer in self.layers(scale, root)])


@dataclass(frozen=True)
class Brought:
    """What the user brings to a table, or wants otherwise."""

    encoders: Mapping[str, str] = field(default_factory=dict)  # slot -> encoder
    changes: Mapping[str, Any] = field(default_factory=dict)  # as with --set
    seeds: Sequence[int] = ()


NOTHING = Brought()


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
    encoders: dict[str, Slot]
    figures: dict[str, list[str]]  # as printed, by row, over all settings' columns
    plain: list[str]  # columns that are not shares
    similar: str | None  # the row to whose prototypes a heat map compares those of the others
    costs: str | None  # the row whose time per round is 1, in tables of what a round costs
    apart: bool  # each run has a process of its own, so that no row uses another's memory
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
        self,
        setting: Setting,
        scale: Scale,
        row: str,
        seed: int,
        execution: Mapping[str, Any],
        brought: Brought = NOTHING,
    ) -> Config:
        """The config of one run of the table; an encoder that is lacking is named as `{slot}`."""
        body = self._body(setting, scale, row, execution.get("data_root"))
        encoders = self.filled(scale, brought)
        body = _replaced(body, lambda text: SLOT.sub(lambda m: encoders.get(m[1], m[0]), text))
        body |= {"seed": seed, "execution": dict(execution)}
        return build({"standardise": False, **body}, dict(brought.changes))

    def slots(self, setting: Setting, scale: Scale, row: str, root: str | None) -> list[Slot]:
        """The encoders that a row uses."""
        names: list[str] = []

        def note(text: str) -> str:
            names.extend(SLOT.findall(text))
            return text

        _replaced(self._body(setting, scale, row, root), note)
        return [self.encoders[name] for name in dict.fromkeys(names)]

    def filled(self, scale: Scale, brought: Brought) -> dict[str, str]:
        """The encoder in each slot: the user's, or at the scale `mini` its stand-in."""
        encoders = dict(brought.encoders)
        for slot in self.encoders.values():
            if scale == "mini" and slot.stand_in:
                encoders.setdefault(slot.name, slot.stand_in)
        return encoders

    def _body(self, setting: Setting, scale: Scale, row: str, root: str | None) -> dict[str, Any]:
        """The settings of a row, with slots where encoders belong."""
        row_settings = dict(self.rows[row])
        row_settings.pop("who", None)
        only_mini = row_settings.pop("mini", {})
        layers = [setting.given(scale, root), setting.of.get(self.method(row), {}), row_settings]
        if scale == "mini":
            layers.append(only_mini)
        return stacked(*layers)

    def has(self, methods: Sequence[str], settings: Sequence[str]) -> None:
        """Refuse methods, and parts of names of settings, that are not in the table."""
        available = set(map(self.method, self.rows))
        for method in methods:
            if method not in available:
                raise unknown(f"method in table {self.name}", method, available)
        for part in settings:
            if not any(setting.chosen([part]) for setting in self.settings):
                raise unknown(f"setting of table {self.name}", part, self.setting_names())

    def setting_names(self) -> list[str]:
        """What `--settings` knows: the settings' names and their data sets', each once."""
        names = [setting.name for setting in self.settings]
        return list(dict.fromkeys(names + [setting.data for setting in self.settings]))

    def method(self, row: str) -> str:
        """The method of a row."""
        return str(self.rows[row]["method"])


def _replaced(body: Any, change: Callable[[str], str]) -> Any:
    """Nested values with every text changed."""
    if isinstance(body, Mapping):
        return {key: _replaced(value, change) for key, value in body.items()}
    if isinstance(body, list):
        return [_replaced(value, change) for value in body]
    if isinstance(body, str):
        return change(body)
    return body


def is_part(parts: Sequence[str], name: str) -> bool:
    """Whether one of the parts stands in the name, whatever its case."""
    return any(part.lower() in name.lower() for part in parts)


def split_names(texts: Iterable[str], names: Sequence[str]) -> list[str]:
    """Parts of names in lists such as `CIFAR-10,Fashion`; commas inside of a name are its own."""
    parts = []
    for text in texts:
        pieces = text.split(",")
        while pieces:
            end = len(pieces)
            while end > 1 and not _in_some([",".join(pieces[:end]).strip()], names):
                end -= 1
            parts.append(",".join(pieces[:end]).strip())
            pieces = pieces[end:]
    return [part for part in parts if part]


def _in_some(parts: Sequence[str], names: Sequence[str]) -> bool:
    return any(is_part(parts, name) for name in names)


def available(method: str) -> bool:
    """Whether a method and the plug-ins around it are registered."""
    base, around = parsed(method)
    return base in method_names() and set(around) <= set(plugins())


def is_there(data: str, root: str | None) -> bool:
    """Whether a data set is at hand."""
    return data == "digits4" or locate(data, root) is not None


def parse_encoders(table: Recipe, text: str | None) -> dict[str, str]:
    """The user's encoders by slot: `clip:PATH`, several in the slots' order, or `slot=NAME`."""
    if not text:
        return {}
    if not table.encoders:
        raise FedloomError(f"table {table.name} has no frozen encoder: leave --encoder out.")
    slots = list(table.encoders)
    given: dict[str, str] = {}
    for number, part in enumerate(text.split(",")):
        slot, equals, encoder = part.strip().partition("=")
        if not equals:
            if number >= len(slots):
                raise FedloomError(
                    f"table {table.name} has {len(slots)} encoders ({', '.join(slots)}), "
                    f"but {number + 1} are given."
                )
            slot, encoder = slots[number], part.strip()
        if slot not in table.encoders:
            raise unknown(f"encoder of table {table.name}", slot, slots)
        given[slot] = encoder
    return given

"""What every setting means, in tables made from the fields and their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from .. import adapters, models
from ..client.training import Training
from ..core.lookup import PLUGINS, find, names, plugins
from ..core.registry import Registry
from ..core.settings import Option, described, keyword_options
from ..data import partitions
from ..data.catalogue import Source
from .clock import Clock
from .config import SECTIONS as TABLES
from .config import Config
from .execution import Execution
from .schedule import Schedule

SECTIONS: dict[str, tuple[type, str]] = {
    "": (Config, "what is run"),
    "schedule": (Schedule, "rounds, who takes part, when it is evaluated"),
    "clock": (Clock, "simulated time, for runs that are no real federation"),
    "training": (Training, "how a client trains"),
    "source": (Source, "how samples are read"),
    "execution": (Execution, "where it runs; changes no result"),
}


Row = tuple[str, str, str]  # key, default, meaning


def meaning(field: Any) -> str:
    """What a setting means: its values if there are only a few, its description and its symbol."""
    text = _choices(field.annotation) + (field.description or "")
    symbol = (field.json_schema_extra or {}).get("symbol")
    if symbol:
        text += f" Symbol: {symbol}."
    return text


def rows(section: str) -> Iterator[Row]:
    """The rows of a section of the config."""
    cls: Any = SECTIONS[section][0]
    for key, field in described(cls).items():
        if section or key not in TABLES:
            yield key, shown(field.default), meaning(field)


def method_rows(name: str) -> list[Row]:
    """The rows of a method's own settings."""
    return _rows(find(name))


def plugin_rows(name: str) -> list[Row]:
    """The rows of a plug-in's settings."""
    return _rows(PLUGINS.find(name))


def partition_rows(name: str) -> list[Row]:
    """The rows of a partition's options."""
    return _option_rows(partitions.PARTITIONS.find(name).options)


def model_rows(name: str) -> list[Row]:
    """The rows of a model's options."""
    return _option_rows(keyword_options(models.MODELS.find(name)))


def adapter_rows(name: str) -> list[Row]:
    """The rows of an adapter's options."""
    return _option_rows(keyword_options(adapters.ADAPTERS.find(name)))


def _option_rows(options: Mapping[str, Option]) -> list[Row]:
    rows = []
    for key, option in options.items():
        rows.append((key, shown(option.default), _choices(option.type) + option.description))
    return rows


def _rows(cls: Any) -> list[Row]:
    return [(key, shown(field.default), meaning(field)) for key, field in described(cls).items()]


def shown(value: Any) -> str:
    """A default as one would write it after `--set key=`."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def markdown() -> str:
    """All settings as a page."""
    lines = ["# Settings", "", *_INTRO, ""]
    for section, (_, about) in SECTIONS.items():
        heading = f"`[{section}]`" if section else "The run"
        lines += [f"## {heading}: {about}", "", *table(rows(section)), ""]
    lines += [
        "## `[partitioning]`: who gets what",
        "",
        *_entries(partitions.PARTITIONS, partitions),
    ]
    lines += [*table(_prefixed("", partitions.PARTITIONS.names(), partition_rows)), ""]
    lines += ["## `[network]`: options of the model", "", *_entries(models.MODELS, models)]
    lines += [*table(_prefixed("", models.MODELS.names(), model_rows)), ""]
    lines += ["## `[adapting]`: options of the adapter", ""]
    lines += [*_entries(adapters.ADAPTERS, adapters)]
    lines += [*table(_prefixed("", adapters.ADAPTERS.names(), adapter_rows)), ""]
    lines += ["## `[hyper]`: the method's own settings", ""]
    lines += ["`fedloom methods NAME` shows them with the method's description.", ""]
    lines += [*table(_prefixed("", names(), method_rows)), "", "## Plug-ins", ""]
    lines += ["`METHOD+NAME` wraps a method in a plug-in, whose settings become the method's own."]
    lines += ["", *table(_prefixed("+", plugins(), plugin_rows))]
    return "\n".join(lines) + "\n"


_INTRO = [
    "Give a setting with `--set key=value`, as a keyword of `fedloom.run`, or in a TOML file, in",
    "the table named below. Where two sections have the same key, name the section:",
    "`--set training.lr=0.1`. `fedloom settings --markdown` prints this page.",
]


def _prefixed(mark: str, owners: Iterable[str], rows_of: Callable[[str], list[Row]]) -> list[Row]:
    """The rows of several methods or plug-ins, each with its owner's name in front."""
    rows = []
    for owner in owners:
        for key, default, text in rows_of(owner):
            rows.append((f"{mark}{owner}: {key}", default, text))
    return rows


def table(rows: Iterable[Row]) -> list[str]:
    """The lines of a Markdown table of settings."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for key, default, text in rows:
        escaped = text.replace("|", r"\|")
        lines.append(f"| `{key}` | `{default}` | {escaped} |")
    return lines


def _entries(registry: Registry[Any], room: Any) -> list[str]:
    """What each entry of a registry of functions does."""
    lines = ["| name | what it does |", "|---|---|"]
    for name in registry.names():
        lines.append(f"| `{name}` | {room.doc(name)} |")
    return [*lines, ""]


def _choices(annotation: Any) -> str:
    """The values of a Literal in words, as the first sentence of a meaning."""
    kinds = (annotation, *get_args(annotation))
    for kind in kinds:
        if get_origin(kind) is Literal:
            values = [str(value) for value in get_args(kind)]
            if bool in kinds:
                values += ["true", "false"]
            return f"One of {', '.join(values)}. "
    return ""

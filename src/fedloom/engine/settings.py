"""What every setting means. The comment beside a field is its documentation; here it is read and put in tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from .. import models
from ..client.training import Training
from ..core.lookup import PLUGINS, find, names, plugins
from ..data import partitions
from ..data.catalogue import Source
from .config import Config, Execution
from .schedule import Schedule

SECTIONS: dict[str, tuple[type, str]] = {
    "": (Config, "what is run"),
    "schedule": (Schedule, "rounds, who takes part, when it is evaluated"),
    "training": (Training, "how a client trains"),
    "source": (Source, "how samples are read"),
    "execution": (Execution, "where it runs; changes no result"),
}


def described(cls: Any) -> dict[str, Any]:
    """The fields of a section, a method or a plug-in; each has a default and a description."""
    found: dict[str, Any] = getattr(cls, "model_fields", None) or cls.__pydantic_fields__
    return found


def rows(section: str) -> Iterator[tuple[str, str, str]]:
    """(key, default, meaning) of every setting of a section."""
    cls: Any = SECTIONS[section][0]
    for key, field in described(cls).items():
        if not (section == "" and (key in SECTIONS or key in ("hyper", "partitioning", "network"))):
            yield key, shown(field.default), _choices(field.annotation) + (field.description or "")


def method_rows(name: str) -> list[tuple[str, str, str]]:
    """(key, default, meaning) of a method's own settings."""
    return [
        (key, shown(f.default), f.description or "") for key, f in described(find(name)).items()
    ]


def plugin_rows(name: str) -> list[tuple[str, str, str]]:
    """(key, default, meaning) of a plug-in's settings."""
    fields = described(PLUGINS.find(name))
    return [(key, shown(f.default), f.description or "") for key, f in fields.items()]


def owners(key: str) -> list[str]:
    """Who else has a setting of that name: methods, plug-ins, partitions and models."""
    found = [f"the method {n}" for n in names() if key in find(n)().params()]
    found += [f"the plug-in {n}" for n in plugins() if key in {row[0] for row in plugin_rows(n)}]
    found += [
        f"the partition {n}" for n in partitions.PARTITIONS.names() if key in partitions.options(n)
    ]
    return found + [f"the model {n}" for n in models.MODELS.names() if key in models.options(n)]


def shown(value: Any) -> str:
    """A default as one would write it after `--set key=`."""
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def markdown() -> str:
    """All settings as a page."""
    lines = ["# Settings", "", *_INTRO, ""]
    for section, (_, what) in SECTIONS.items():
        lines += [
            f"## {f'`[{section}]`' if section else 'The run'}: {what}",
            "",
            *_table(rows(section)),
            "",
        ]
    lines += ["## `[partitioning]`: who gets what", ""]
    lines += _listed(
        {n: (partitions.options(n), partitions.doc(n)) for n in partitions.PARTITIONS.names()}
    )
    lines += ["", "## `[network]`: options of the model", ""]
    lines += _listed({n: (models.options(n), models.doc(n)) for n in models.MODELS.names()})
    lines += ["", "## `[hyper]`: the method's own settings", ""]
    lines += ["`fedloom methods NAME` shows them with the method's description.", ""]
    own = [
        (f"{name}: {key}", default, said)
        for name in names()
        for key, default, said in method_rows(name)
    ]
    lines += [*_table(own), "", "## Plug-ins", ""]
    lines += [
        "`METHOD+NAME` puts one round a method; its settings are then settings of the method (`[hyper]`).",
        "",
    ]
    own = [
        (f"+{name}: {key}", default, said)
        for name in plugins()
        for key, default, said in plugin_rows(name)
    ]
    return "\n".join([*lines, *_table(own)]) + "\n"


_INTRO = [
    "Every setting can be given with `--set key=value`, as a keyword of `fedloom.run`, or in a TOML file, in the table",
    "named below. Where two sections know the same key, say which: `--set training.lr=0.1`. This page is what",
    "`fedloom settings --markdown` prints.",
]


def _table(found: Any) -> list[str]:
    lines = ["| key | default | meaning |", "|---|---|---|"]
    return lines + [
        f"| `{key}` | `{default}` | {said.replace('|', chr(92) + '|')} |"
        for key, default, said in found
    ]


def _listed(found: dict[str, tuple[dict[str, Any], str]]) -> list[str]:
    lines = ["| name | options | what it does |", "|---|---|---|"]
    for name, (options, said) in found.items():
        written = ", ".join(f"`{k}={shown(v)}`" for k, v in options.items()) or "-"
        lines.append(f"| `{name}` | {written} | {said} |")
    return lines


def _choices(annotation: Any) -> str:
    """The values of a Literal, in words."""
    inner = [a for a in get_args(annotation) if a is not type(None)]
    for kind in (annotation, *inner):
        if str(get_origin(kind)) == "typing.Literal":
            return f"{' or '.join(map(str, get_args(kind)))}; "
    return ""

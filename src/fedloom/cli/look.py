"""The commands that show what there is: `methods`, `models`, `settings`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from .options import AsJson, console, print_json

if TYPE_CHECKING:
    from ..core.method import Method

LAID_OUT: Any = {
    "box": box.SIMPLE_HEAD,
    "title_justify": "left",
    "title_style": "bold",
    "pad_edge": False,
}


def methods(
    name: Annotated[
        str | None, typer.Argument(help="Show one method's page, with its settings.")
    ] = None,
    needing: Annotated[
        str | None,
        typer.Option(
            "--needs",
            help="Only what needs this: batchnorm, body, images, validation, projection, prompts, "
            "dual, or nothing; a plug-in also averaging, models or plain.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List methods and plug-ins by what they are for; with a name, show all about one method."""
    from ..core.lookup import PLUGINS, make, names, plugins
    from ..experiments.kinds import with_needs

    if name is not None and not as_json:
        _print_method(name)
        return
    wanted: Sequence[str] = names()
    added: Sequence[str] = plugins()
    if name is not None:
        wanted = (name,)
    if needing is not None:
        wanted = with_needs(wanted, needing)
        added = with_needs(added, needing, PLUGINS.find)
    if as_json:
        print_json([_row(make(each)) for each in wanted])
    else:
        _print_methods(wanted, added)


def _row(method: Method) -> dict[str, Any]:
    """What a list says about a method."""
    from ..experiments import kinds

    cls = type(method)
    return {
        "name": method.name,
        "about": _about(cls).split("\n")[0],
        "model": "personal" if cls.traits.personalised else "common",
        "purpose": kinds.purpose(cls),
        "needs": kinds.needs(cls),
        "promises": kinds.promises(cls),
        "settings": method.params(),
    }


def _about(cls: Any) -> str:
    """The docstring of a method's file; with a plug-in, that of the plug-in's file too."""
    doc = sys.modules[cls.__module__].__doc__ or ""
    plugged = getattr(cls, "plugged", None)
    if not plugged:
        return doc
    inner, plugin = plugged
    return f"{_about(inner).strip()}\n\n+{plugin}: {doc}"


def _print_method(name: str) -> None:
    from ..core.lookup import find
    from ..engine.settings import method_rows
    from ..experiments import kinds
    from ..experiments.advise.shortlist import TROUBLES

    cls = find(name)
    # Join lines that were full, so that the text fits a terminal of any width.
    page = re.sub(r"(?m)^(\S.{89,})\n(?=\S)(?![A-Z][a-z ]+:)", r"\1 ", _about(cls).strip())
    console.print(page, highlight=False, markup=False)
    rows = method_rows(name)
    if rows:
        console.print(_settings_table(rows))
    if cls.traits.training:
        listed = ", ".join(f"{key} = {value}" for key, value in cls.traits.training.items())
        console.print(f"By default it trains as in its paper: {listed}.", highlight=False)
    if cls.traits.helps:
        listed = ", ".join(TROUBLES[trouble] for trouble in cls.traits.helps)
        console.print(f"It is made for {listed}.", highlight=False)
    if kinds.needs(cls):
        listed = ", ".join(map(kinds.meaning, kinds.needs(cls)))
        console.print(f"It needs {listed}.", highlight=False)
    if kinds.promises(cls):
        console.print(f"It promises: {'; '.join(kinds.promises(cls))}.", highlight=False)


def _print_methods(wanted: Sequence[str], added: Sequence[str]) -> None:
    """A table for each purpose, of methods and of plug-ins, and what their words mean."""
    from ..core.lookup import METHODS, PLUGINS
    from ..experiments import kinds

    used: set[str] = set()
    for kind, names in kinds.by_purpose(wanted).items():
        rows = {}
        for name in names:
            cls = METHODS.find(name)
            rows[name] = _about(cls).split("\n")[0].partition(": ")[2], cls
        used |= _print_kind(kind, "method", rows)
    for kind, names in kinds.plugins_by_purpose(added).items():
        rows = {}
        for name in names:
            plugin = PLUGINS.find(name)
            rows[f"+{name}"] = (plugin.__doc__ or "").split("\n")[0], plugin
        used |= _print_kind(kind, "plug-in", rows)
    for need in sorted(used - {"images"}):
        console.print(f"{need}: {kinds.meaning(need)}", highlight=False, markup=False)
    console.print(
        "`fedloom methods NAME` says more about one, with its settings; `--needs nothing` lists "
        "those that run everywhere.",
        highlight=False,
    )


def _print_kind(kind: str, heading: str, rows: Mapping[str, tuple[str, type[Method]]]) -> set[str]:
    """The table of one purpose; returns the needs that stand in it."""
    from ..experiments import kinds

    table = Table(heading, "what it is", "needs", "promises", **LAID_OUT, title=kind)
    used: set[str] = set()
    for name, (about, cls) in rows.items():
        needs = kinds.needs(cls)
        used |= set(needs)
        table.add_row(name, escape(about), ", ".join(needs), "; ".join(kinds.promises(cls)))
    console.print(table)
    return used


def models() -> None:
    """List the networks and the adapters with their options and defaults."""
    from .. import adapters
    from .. import models as networks
    from ..engine.settings import adapter_rows, model_rows

    kinds = (
        ("model", networks.MODELS, networks, model_rows),
        ("adapter", adapters.ADAPTERS, adapters, adapter_rows),
    )
    for kind, registry, room, rows_of in kinds:
        table = Table(kind, "option", "what it is", box=box.SIMPLE_HEAD)
        for name in registry.names():
            table.add_row(name, "", escape(room.doc(name)))
            for key, default, meaning in rows_of(name):
                table.add_row("", escape(f"{key}={default}"), escape(meaning))
        console.print(table)


def settings(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the whole page docs/settings.md.")
    ] = False,
) -> None:
    """Explain every setting that does not belong to one method, partition or model."""
    from ..engine import settings as tables

    if markdown:
        print(tables.markdown(), end="")
        return
    for section, (_, about) in tables.SECTIONS.items():
        console.print(f"\n[bold]{section or 'run'}[/]: {about}", highlight=False)
        console.print(_settings_table(tables.rows(section)))
    console.print(
        "Methods have settings of their own (`fedloom methods NAME`), and so have partitions\n"
        "(`fedloom data list`) and models (`fedloom models`). Give each with `--set key=value`."
    )


def _settings_table(rows: Iterable[tuple[str, str, str]]) -> Table:
    table = Table("key", "default", "meaning", box=box.SIMPLE_HEAD)
    for key, default, meaning in rows:
        table.add_row(escape(key), escape(default), escape(meaning))
    return table

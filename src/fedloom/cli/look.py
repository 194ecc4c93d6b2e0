"""The commands that show what there is: `methods`, `models`, `settings`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
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
            help="Only methods that need this: batchnorm, body, images, validation, projection, "
            "prompts, dual, or nothing.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods by what they are for; with a name, show all about one, and its settings."""
    from ..core.lookup import make, names
    from ..experiments.kinds import with_needs

    if name is not None and not as_json:
        _print_method(name)
        return
    wanted: Sequence[str] = names()
    if name is not None:
        wanted = (name,)
    if needing is not None:
        wanted = with_needs(wanted, needing)
    if as_json:
        print_json([_row(make(each)) for each in wanted])
    else:
        _print_methods(wanted, plugins_too=needing is None)


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


def _print_methods(wanted: Sequence[str], plugins_too: bool) -> None:
    """A table for each purpose, and what their words mean."""
    from ..core.lookup import METHODS, PLUGINS, plugins
    from ..experiments import kinds

    used: dict[str, None] = {}  # a set that keeps the order
    for kind, names in kinds.by_purpose(wanted).items():
        table = Table("method", "what it is", "needs", "promises", **LAID_OUT, title=kind)
        for name in names:
            cls = METHODS.find(name)
            used |= dict.fromkeys(kinds.needs(cls))
            about = _about(cls).split("\n")[0].partition(": ")[2]
            held = "; ".join(kinds.promises(cls))
            table.add_row(name, escape(about), ", ".join(kinds.needs(cls)), held)
        console.print(table)
    if plugins_too:
        table = Table("plug-in", "what it is", **LAID_OUT, title=kinds.ADDED)
        for plugin in plugins():
            about = _about(PLUGINS.find(plugin)).split("\n")[0]
            table.add_row(f"...+{plugin}", escape(about.partition(": ")[2] or about))
        console.print(table)
    for need in sorted(set(used) - {"images"}):
        console.print(f"{need}: {kinds.meaning(need)}", highlight=False, markup=False)
    console.print(
        "`fedloom methods NAME` says more about one, with its settings; `--needs nothing` lists "
        "those that run everywhere.",
        highlight=False,
    )


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

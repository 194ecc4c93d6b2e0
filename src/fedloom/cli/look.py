"""The commands that show what there is: `methods`, `models`, `settings`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Column, Table

from .options import AsJson, console, print_json

if TYPE_CHECKING:
    from ..core.method import Method


def methods(
    name: Annotated[
        str | None, typer.Argument(help="Show one method's page, with its settings.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods with their settings and defaults; with a name, show all about one."""
    from ..core.lookup import make, names

    if name is not None and not as_json:
        _print_method(name)
        return
    wanted = names()
    if name is not None:
        wanted = (name,)
    rows = [_row(make(each)) for each in wanted]
    if as_json:
        print_json(rows)
    else:
        _print_methods(rows)


def _row(method: Method) -> dict[str, Any]:
    """What a list says about a method."""
    model = "common"
    if method.traits.personalised:
        model = "personal"
    return {
        "name": method.name,
        "about": _about(type(method)).split("\n")[0],
        "model": model,
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
    from ..experiments.advise.shortlist import NEEDS, TROUBLES

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
    if cls.traits.needs:
        listed = ", ".join(NEEDS[need] for need in cls.traits.needs)
        console.print(f"It needs {listed}.", highlight=False)


def _print_methods(rows: Iterable[dict[str, Any]]) -> None:
    from ..core.lookup import PLUGINS, plugins
    from ..engine.settings import plugin_rows, shown

    settings = Column("settings", overflow="fold")
    table = Table("method", "what it is", "gives", settings, box=box.SIMPLE_HEAD)
    for row in rows:
        values = ", ".join(f"{key}={shown(value)}" for key, value in row["settings"].items())
        table.add_row(row["name"], row["about"], f"{row['model']} model", values)
    for plugin in plugins():
        values = ", ".join(f"{key}={value}" for key, value, _ in plugin_rows(plugin))
        about = _about(PLUGINS.find(plugin)).split("\n")[0]
        table.add_row(f"...+{plugin}", about, "as the method", values)
    console.print(table)


def models() -> None:
    """List the networks with their options and defaults."""
    from .. import models as networks
    from ..engine.settings import model_rows

    table = Table("model", "option", "what it is", box=box.SIMPLE_HEAD)
    for name in networks.MODELS.names():
        table.add_row(name, "", escape(networks.doc(name)))
        for key, default, meaning in model_rows(name):
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

"""The command line: all commands, and the panels in which `fedloom --help` shows them.

Commands import heavy modules only when they run, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any

import typer
from click import Context
from typer.core import TyperGroup

from ..core.errors import FedloomError
from . import (
    bench,
    data,
    experiments,
    extend,
    features,
    flower,
    look,
    predict,
    report,
    reproduce,
    run,
)
from .options import SECTIONS, errors

# Every command stands here once, in the order in which people come to need them.
PANELS = {
    "Work": ("run", "compare", "report", "resume", "sweep", "reproduce", "encode"),
    "Look": ("methods", "data", "models", "encoders", "settings", "cache"),
    "Extend": ("new", "check", "pretrain", "bench"),
    "Serve": ("export", "predict", "personalise", "flower", "dash"),
}


class Panels(TyperGroup):
    """Shows the commands in the panels and the order of `PANELS`."""

    def list_commands(self, ctx: Context) -> list[str]:
        names = []
        for panel, commands in PANELS.items():
            for name in commands:
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]
                names.append(name)
        return names


app = typer.Typer(
    cls=Panels,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests them too
    help="Federated learning when clients do not look alike: "
    "run, compare and check methods on one engine.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from ..core.version import __version__

        print(f"fedloom {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version)
    ] = False,
) -> None:
    pass


for command in (
    run.run,
    run.resume,
    run.personalise,
    run.export,
    predict.predict,
    experiments.compare,
    experiments.sweep,
    reproduce.reproduce,
    report.dash,
    look.methods,
    look.models,
    look.settings,
    features.encoders,
    features.encode,
    extend.new,
    extend.check,
):
    app.command()(command)
app.command(epilog=f"The page has these sections: {SECTIONS}.")(report.report)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(flower.app, name="flower")
app.add_typer(features.cache_app, name="cache")
app.add_typer(features.pretrain_app, name="pretrain")
bench.app.command("encoders")(features.bench_encoders)


def main() -> None:
    """Entry point: an error that the user can mend is one sentence and a non-zero exit."""
    warnings.showwarning = _print_warning
    try:
        app()
    except FedloomError as error:
        errors.print(f"error: {error}", highlight=False, soft_wrap=True, markup=False)
        sys.exit(2)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    errors.print(f"note: {message}", highlight=False, soft_wrap=True)

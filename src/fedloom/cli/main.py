"""The command line: all commands, and the panels in which `fedloom --help` shows them.

Commands import heavy modules only when they run, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
import warnings
from typing import Annotated, Any

import typer
from click import Context
from typer.core import TyperGroup

from ..core.errors import FedloomError
from . import (
    advise,
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
    "Work": ("advise", "run", "compare", "report", "resume", "sweep", "reproduce", "encode"),
    "Look": ("methods", "data", "models", "encoders", "settings", "cache"),
    "Extend": ("new", "check", "verify", "pretrain", "bench"),
    "Serve": ("export", "predict", "personalise", "flower", "dash"),
}


# What the system says of a file or folder that the user can do something about.
MENDABLE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENOTDIR,
    errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO,
)  # fmt: skip


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
    advise.advise,
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
    extend.verify,
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
    """Entry point: an error is one sentence and a non-zero exit.

    2 is for what the user can mend, 3 for a fault of fedloom, whose traceback goes to a file.
    """
    warnings.showwarning = _print_warning
    try:
        app()
    except FedloomError as error:
        _print_error(str(error))
        sys.exit(2)
    except OSError as error:
        if error.errno not in MENDABLE or error.filename is None:
            _print_error(_unexpected(error))
            sys.exit(3)
        file = os.fsdecode(error.filename)
        _print_error(f"{file} cannot be read or written: {error.strerror}.")
        sys.exit(2)
    except Exception as error:
        _print_error(_unexpected(error))
        sys.exit(3)


def _print_error(sentence: str) -> None:
    errors.print(f"error: {sentence}", highlight=False, soft_wrap=True, markup=False)


def _unexpected(error: Exception) -> str:
    """One sentence about an error that nobody foresaw, with the file that has its traceback."""
    cause = "".join(traceback.format_exception_only(error)).strip().splitlines()[0].rstrip(".")
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="fedloom-", suffix=".txt", errors="backslashreplace", delete=False
        ) as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return f"{cause}; the traceback could not be written to a file."
    return f"{cause}; the traceback is in {file.name}."


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    errors.print(f"note: {message}", highlight=False, soft_wrap=True)

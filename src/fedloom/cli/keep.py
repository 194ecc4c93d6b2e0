"""`fedloom data import`, `get` and `about`: published data sets come to this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from .options import Root, console, errors

if TYPE_CHECKING:
    from ..data.keep import Imported
    from ..data.published import Published

Published_ = Annotated[
    str, typer.Argument(metavar="NAME", help="A published data set (see `fedloom data`).")
]
Replace = Annotated[bool, typer.Option("--replace", help="Import it anew if it is there already.")]
DOWNLOADS = ".downloads"
LARGE = 50_000_000  # bytes from which on a log says how far a file has got


def import_(
    name: Published_,
    raw: Annotated[Path, typer.Argument(help="The folder or archive, as it was downloaded.")],
    data_root: Root = None,
    replace: Replace = False,
) -> None:
    """Read a published data set as it was downloaded, check that it is complete, and keep it."""
    from ..data.catalogue import data_folder
    from ..data.keep import import_raw
    from ..data.published import find

    entry = find(name)
    with _progress_bars() as tell:
        imported = import_raw(entry, raw, data_folder(data_root), replace=replace, tell=tell)
    _print_result(entry, imported)


def get(
    name: Published_,
    data_root: Root = None,
    replace: Replace = False,
    hub: Annotated[bool, typer.Option("--hub", help="Take the Hugging Face hub's copy.")] = False,
    keep_downloads: Annotated[
        bool, typer.Option(help="Do not remove what was fetched after it is imported.")
    ] = False,
) -> None:
    """Fetch a published data set, continuing where an earlier attempt stopped, and import it."""
    from ..data.catalogue import data_folder
    from ..data.fetch import fetch
    from ..data.keep import import_raw, refuse_taken
    from ..data.published import find

    entry = find(name)
    root = data_folder(data_root)
    refuse_taken(entry, root / entry.name, replace)
    folder = root / DOWNLOADS / (f"{entry.name}-hub" if hub else entry.name)
    with _progress_bars() as tell:
        raw = fetch(entry, folder, tell, hub)
        imported = import_raw(entry, raw, root, replace=replace, tell=tell)
    if not keep_downloads:
        shutil.rmtree(folder)
    _print_result(entry, imported)


def about(name: Published_) -> None:
    """What a published data set is: counts, layouts, licence, citation, where it is published."""
    from ..data.published import find

    entry = find(name)
    lines = [f"{entry.name}: {entry.title}, {entry.about}", f"classes    {entry.class_count}"]
    for domain, parts in entry.counts.items():
        told = ", ".join(f"{part} {number}" for part, number in parts.items())
        lines.append(f"samples    {domain}: {told or 'no published count'}")
    for layout in entry.layouts:
        lines.append(f"layout     {layout.about}")
    for download in entry.downloads:
        where = download.url or f"by hand from {download.page}"
        lines.append(f"file       {download.file}, {where}")
    if entry.hub:
        lines.append(f"hub        {entry.hub}")
    lines += [f"licence    {entry.licence}", f"citation   {entry.citation}"]
    lines.append(f"published  {entry.home}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _print_result(entry: Published, imported: Imported) -> None:
    """Say what there is now; the sentence is for people, `fedloom.json` for programs."""
    parts = imported.found.tally()
    told = []
    for domain in imported.found.domains:
        counts = ", ".join(
            f"{number} {part or 'samples'}" for part, number in parts[domain].items()
        )
        told.append(counts if len(parts) == 1 else f"{domain} {counts}")
    console.print(
        f"{entry.title} is complete and kept in {imported.folder}: {'; '.join(told)}; "
        f"{len(imported.found.classes)} classes. It was read as {imported.layout}. "
        f"Licence: {entry.licence}. Use it with --data {entry.name}.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@contextmanager
def _progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each file that is fetched or unpacked; in a log, a line at every tenth of it."""
    if not console.is_terminal:
        yield _Tenths()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total or None)

        yield tell


class _Tenths:
    """Says how far each file has got, to standard error, ten times at most."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        tenth = done * 10 // total if total else 0
        if total > LARGE and tenth > self._told.get(what, 0):
            self._told[what] = tenth
            errors.print(f"{what}: {10 * tenth} %", highlight=False, markup=False)


# ------------------------------------------------------------------------------ for the list


def presence(name: str, data_root: str | None) -> str:
    """Whether a set is there: `imported` as published, `yes` in another form, or `-`."""
    from ..data.catalogue import locate
    from ..data.store import is_kept

    if name == "digits4":
        return "yes"
    path = locate(name, data_root)
    if path is None:
        return "-"
    return "imported" if is_kept(path) else "yes"


def what_to_type(name: str, data_root: str | None) -> str:
    """The option that uses a set, or the command that brings it here."""
    from ..data.published import published

    if presence(name, data_root) != "-":
        return f"--data {name}"
    entry = published().get(name)
    if entry is None:
        return ""
    return entry.command


def facts(name: str, data_root: str | None) -> dict[str, Any]:
    """What a program may want to know of a set."""
    from ..data.catalogue import ABOUT
    from ..data.published import published

    values: dict[str, Any] = {
        "about": ABOUT[name],
        "there": presence(name, data_root) != "-",
        "imported": presence(name, data_root) == "imported",
        "command": what_to_type(name, data_root),
    }
    if name in published():
        entry = asdict(published()[name])
        for key in ("title", "counts", "class_count", "licence", "citation", "home"):
            values[key] = entry[key]
    return values

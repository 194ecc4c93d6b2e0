"""`fedloom data`: which data sets there are, what is in them, who would get what."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from ..core.errors import FedloomError
from .options import AsJson, BadFile, Clients, Partition, Root, Set, console
from .options import given as _given

if TYPE_CHECKING:
    from ..data.federation import Dataset, Federation

app = typer.Typer(help="The data sets at hand.", invoke_without_command=True)
Name = Annotated[str, typer.Argument(help="A known name (see `fedloom data`) or a path.")]
Seed = Annotated[int, typer.Option(help="Seed of the partition.")]


@app.callback()
def data(context: typer.Context, as_json: AsJson = False) -> None:
    """List data sets and partitions; names are looked up below `FEDLOOM_DATA` or `--data-root`."""
    if context.invoked_subcommand is None:
        list_(None, as_json)


@app.command("list")
def list_(data_root: Root = None, as_json: AsJson = False) -> None:
    """The data sets known by name, whether their files are there, and the partitions."""
    from ..data import partitions
    from ..data.catalogue import ABOUT, locate
    from ..data.readers.base import formats

    there = {name: name == "digits4" or locate(name, data_root) is not None for name in ABOUT}
    dealt = {name: partitions.options(name) for name in partitions.PARTITIONS.names()}
    if as_json:
        sets = {name: {"about": about, "there": there[name]} for name, about in ABOUT.items()}
        print(json.dumps({"data": sets, "partitions": dealt}, indent=1, default=str))
        return
    table = Table("data set", "there", "what it is", box=box.SIMPLE_HEAD)
    for name, about in ABOUT.items():
        table.add_row(name, "yes" if there[name] else "-", about)
    console.print(table)
    table = Table("partition", "option", "what it does", box=box.SIMPLE_HEAD)
    for name, partition in partitions.PARTITIONS.items():
        table.add_row(name, "", partitions.doc(name))
        for key, option in partition.options.items():
            table.add_row("", f"{key}={option.default}", option.description)
    console.print(table)
    console.print(
        "fedloom looks for these data sets below FEDLOOM_DATA or --data-root. It also takes the "
        f"path of: {'; '.join(format[0].lower() + format[1:] for format in formats())}.",
        highlight=False,
    )


@app.command()
def show(
    name: Name,
    partition: Partition = None,
    clients: Clients = None,
    seed: Seed = 0,
    set_: Set = None,
    data_root: Root = None,
    on_bad_file: BadFile = None,
    as_json: AsJson = False,
) -> None:
    """Read a data set and say what is in it; with `--partition`, who would get what."""
    if clients is not None and partition is None:
        raise FedloomError("--clients is for a partition: say --partition NAME too.")
    # Without a partition one client has everything, which any data set allows.
    made = _deal(name, partition, clients if partition else 1, seed, set_, data_root, on_bad_file)
    data = made.data
    facts: dict[str, Any] = {
        "name": data.name,
        "kind": data.kind,
        "samples": len(data.y),
        "train": int((~data.test).sum()),
        "test": int(data.test.sum()),
        "shape": list(data.x.shape[1:]),
        "classes": list(data.classes),
        "domains": {d: int((data.domain == i).sum()) for i, d in enumerate(data.domains)},
    }
    if partition:
        facts |= {"partition": made.description, "clients": made.describe()["clients"]}
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    table = Table.grid(padding=(0, 2))
    for key, value in facts.items():
        if key != "clients":
            table.add_row(key, escape(_said(value)))
    console.print(table, highlight=False)
    if partition:
        table = Table(
            "client",
            "domain",
            "train",
            "validation",
            "test",
            "training samples per class",
            box=box.SIMPLE_HEAD,
        )
        for k, c in enumerate(facts["clients"]):
            sizes = [str(c[part]) for part in ("train", "validation", "test")]
            table.add_row(
                str(k), escape(c["domain"] or "several"), *sizes, " ".join(map(str, c["counts"]))
            )
        console.print(table)


@app.command()
def check(
    path: Name, set_: Set = None, data_root: Root = None, on_bad_file: BadFile = None
) -> None:
    """Read a data set completely and say whether it can be used; what is wrong is named."""
    from ..data.catalogue import load
    from ..engine.config import build, parse_set

    changes = parse_set(set_ or []) | _given(data_root=data_root, on_bad_file=on_bad_file)
    config = build({"data": path, "partition": "iid"}, changes)
    with _reading() as progress:
        found = load(path, config.source, root=data_root, progress=progress)
    tested = int(found.test.sum())
    counted = ", ".join(
        f"{n} {what}{'es' if what == 'class' else 's'}" if n != 1 else f"1 {what}"
        for n, what in ((len(found.classes), "class"), (len(found.domains), "domain"))
    )
    console.print(
        f"{path} is fine: {len(found.y) - tested} training and {tested} test samples "
        f"({found.kind}), {counted}.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    for doubt in _doubts(found):
        console.print(f"note: {doubt}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def picture(
    name: Name,
    out: Annotated[Path, typer.Option(help="The picture to write, a .png.")],
    partition: Partition = None,
    clients: Clients = None,
    seed: Seed = 0,
    set_: Set = None,
    data_root: Root = None,
    on_bad_file: BadFile = None,
) -> None:
    """Draw samples of every domain, and a map and histograms of which client gets what."""
    from ..report.pictures import picture as draw

    if out.suffix.lower() != ".png":
        raise FedloomError(f"--out wants the name of a .png, got {str(out)!r}.")
    made = draw(_deal(name, partition or "auto", clients, seed, set_, data_root, on_bad_file))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(made)
    except OSError as error:
        raise FedloomError(f"cannot write {out}: {error.strerror or error}.") from error
    console.print(f"wrote {out}", highlight=False, markup=False, soft_wrap=True)


def _deal(
    name: str,
    partition: str | None,
    clients: int | None,
    seed: int,
    set_: list[str] | None,
    data_root: str | None,
    on_bad_file: str | None,
) -> Federation:
    """The data set dealt out (at random if no partition is named), as a run would have it."""
    from ..engine.config import build, parse_set
    from ..engine.setup import deal

    given = {"data": name, "seed": seed, **_given(partition=partition or "iid", clients=clients)}
    config = build(
        given, parse_set(set_ or []) | _given(data_root=data_root, on_bad_file=on_bad_file)
    )
    with _reading() as progress:
        return deal(config, progress)


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _doubts(data: Dataset) -> Iterator[str]:
    """What can be read but will hardly serve."""
    if len(data.classes) < 2:
        yield "with a single class there is nothing to learn."
    have = set(data.y.unique().tolist())
    lost = [name for i, name in enumerate(data.classes) if i not in have]
    if data.y.ndim == 1 and lost:
        shown = ", ".join(lost[:10])
        if len(lost) > 10:
            shown += f" and {len(lost) - 10} more"
        yield f"no sample of {shown} is left."
    if not data.test.any():
        yield (
            "without test samples nothing can be measured; --set split=merged takes them from the "
            "others."
        )
    if data.test.all():
        yield "there are no training samples."


@contextmanager
def _reading() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar for decoding, on a terminal, from the first image on."""
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("reading images", visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)
